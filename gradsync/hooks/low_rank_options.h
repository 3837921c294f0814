// The options that both PowerSGD hooks have, and what does not fit together.
#ifndef GRADSYNC_HOOKS_LOW_RANK_OPTIONS_H
#define GRADSYNC_HOOKS_LOW_RANK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/hooks/comm_hook.h"

// Rows of a hook's table of options.
#define GS_LOW_RANK_OPTION_ROWS                                                                    \
    {.name = "rank", .fallback = 1, .least = 1, .most = 64, .is_whole = true},                     \
        {.name = "start_step", .fallback = 1000, .most = 0x1p53, .is_whole = true},                \
        {.name = "error_feedback", .fallback = 1, .most = 1, .is_whole = true},                    \
        {.name = "warm_start", .fallback = 1, .most = 1, .is_whole = true},                        \
        {.name = "orthogonalization_epsilon", .most = 1}, {                                        \
        .name = "seed", .most = 0x1p53, .is_whole = true                                           \
    }

typedef struct gs_low_rank_options {
    int rank;
    int64_t start_step;           // plain sums before it
    double min_compression_rate;  // of a hook that has it
    bool error_feedback, warm_start;
    double
        epsilon;  // added to norms that columns are divided by; 0: a column of zeros is left alone
    uint64_t seed;
} gs_low_rank_options;

// INVALID_ARGUMENT and FAILED_PRECONDITION name the option.
GS_NODISCARD gs_status gs_low_rank_options_check(const gs_hook_setup *setup);
gs_low_rank_options gs_low_rank_options_of(const gs_hook_choice *choice);

#endif
