// The hooks of a reducer: checked, placed in its arena, told of plans and of what became of a step.
//
// The arena of a reducer, each part on GS_HOOK_PLACE_BYTES:
//
//   places | state of hook 0 | state of hook 1 | … | slots of gradients | buckets of hook 0 | buckets of hook 1 | …
//
// State comes first: what is behind it moves with plans and worlds, and means nothing then. Places say where in it
// a rank's own tensors lie, for ranks that outlive this one (own_places.h); on GPUs nobody could read them.
#ifndef GRADSYNC_HOOKS_HOOK_SET_H
#define GRADSYNC_HOOKS_HOOK_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/hooks/own_places.h"

typedef struct gs_hook_set_options {
    const gs_hook_choice *choices;  // borrowed while the set lives
    size_t num_choices;             // 0: the one that the wire dtype asks for
    const gs_param_spec *params;    // borrowed while the set lives
    size_t num_params;
    gs_dtype wire_dtype;
    bool exact;
    bool divides_later;  // as in gs_hook_setup
    int rank, world_size;
    gs_device *device;  // NULL: only measured
} gs_hook_set_options;

// Of all hooks together.
typedef struct gs_hook_set_needs {
    size_t state_bytes, bucket_bytes;  // state_bytes with the places
    size_t most_own;  // tensors that are a rank's own
    int num_phases;     // most of a hook
    int of_most_phases;  // that hook
    int most_posts;     // of a bucket in one phase
    bool narrows;       // any of them
    bool even_parts;    // the only one
} gs_hook_set_needs;

// One of them.
typedef struct gs_set_hook {
    gs_hook_choice choice;  // its hook is never NULL
    gs_hook_needs needs;
    void *state;  // the hook's own
    bool is_made;
    gs_hook_memory memory;  // of its buckets
} gs_set_hook;

typedef struct gs_hook_set {
    gs_hook_set_options options;
    gs_hook_set_needs needs;
    gs_set_hook *hooks;
    size_t num_hooks;
    gs_hook_param *params;    // in registration order
    gs_hook_param *members;   // in plan order
    gs_hook_layout *buckets;  // of the plan
    gs_own_places *places;    // NULL: nothing is a rank's own, or the host does not reach it
    char names[2 * GS_HOOK_NAME_LEN];  // for people
} gs_hook_set;

// INVALID_ARGUMENT names hook and option.
GS_NODISCARD gs_status gs_hook_set_measure(gs_hook_set_needs *needs,
                                           const gs_hook_set_options *options);
// Makes the hooks. `memory`: where their state goes, state_bytes. Release after an error, too.
GS_NODISCARD gs_status gs_hook_set_init(gs_hook_set *set, const gs_hook_set_options *options,
                                        void *memory);
void gs_hook_set_release(gs_hook_set *set);

// Another rank and world: what buckets need is measured anew. FAILED_PRECONDITION when a hook's state
// would need another size.
GS_NODISCARD gs_status gs_hook_set_resize(gs_hook_set *set, int rank, int world_size);
// The plan of `layout`, or the communicator, is a new one. `memory`: of the buckets, bucket_bytes. `layout`
// and `comm` are borrowed until the next call. All ranks alike.
GS_NODISCARD gs_status gs_hook_set_place(gs_hook_set *set, const gs_grad_layout *layout,
                                         gs_comm *comm, void *memory, gs_deadline deadline);

// What holds follows `step` applied steps, and what follows the next one will be written over. All buckets of that
// are finished: what follows it is what it changed, or where it will not count what was there before.
void gs_hook_set_note(gs_hook_set *set, int64_t step);
void gs_hook_set_finish(gs_hook_set *set, int64_t step, bool will_count);
void gs_hook_set_commit(gs_hook_set *set);
void gs_hook_set_rollback(gs_hook_set *set);

// What hooks say of the step that has finished, added up. `measures`: squares of residuals too, for which their
// tensors are read; a GPU waits. Before the commit.
GS_NODISCARD gs_status gs_hook_set_report(gs_hook_report *report, gs_hook_set *set, bool measures);

// Tensor `index` of the state of all hooks together. False behind the last.
bool gs_hook_set_tensor(gs_hook_state_tensor *out, gs_hook_set *set, size_t index);
// The same of another rank, one of its own, as it was behind `step` applied steps: in that one's arena as this rank
// sees it. NULL: it is not there.
const void *gs_hook_set_peer_data(gs_hook_set *set, size_t index, const gs_comm *comm, int rank,
                                  int64_t step);
// The tensors of all hooks were filled.
GS_NODISCARD gs_status gs_hook_set_loaded(gs_hook_set *set);

#endif
