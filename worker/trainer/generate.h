// Text from a model: one token after the other, temperature, counter-based draws.
#ifndef WORKER_TRAINER_GENERATE_H
#define WORKER_TRAINER_GENERATE_H

#include <stdint.h>

#include "core/status.h"
#include "core/strbuf.h"
#include "gradsync/step/model.h"
#include "rpc/schema/job_spec.h"
#include "worker/state/trainer_state.h"

typedef struct gs_generate_options {
    const char *prompt;  // bytes are tokens; empty: starts from a newline
    int64_t tokens;
    double temperature;  // 0: the most likely one always
    uint64_t seed;
    int64_t context, vocab;  // of the model
} gs_generate_options;

// Only for byte vocabularies (vocab ≤ 256). The text (prompt left out) is added to `text`.
// FAILED_PRECONDITION when the model has diverged: its logits are not finite.
GS_NODISCARD gs_status gs_generate(gs_strbuf *text, const gs_model *model, void *const *params,
                                   const void *const *buffers, gs_device *device,
                                   const gs_generate_options *options);

// The sample that the specification asks for, of what was trained: the caller's (free()). NULL: it
// asks for none, or the model writes no bytes.
GS_NODISCARD gs_status gs_generate_sample(char **out, const gs_job_spec *spec,
                                          const gs_trainer_state *state);

#endif
