#include "gradsync/hooks/low_rank_options.h"

#include "gradsync/hooks/hook_calls.h"

gs_low_rank_options gs_low_rank_options_of(const gs_hook_choice *choice) {
    return (gs_low_rank_options){
        .rank = (int)gs_hook_option_value(choice, "rank"),
        .start_step = (int64_t)gs_hook_option_value(choice, "start_step"),
        .min_compression_rate = gs_hook_option_value(choice, "min_compression_rate"),
        .error_feedback = gs_hook_option_value(choice, "error_feedback") != 0,
        .warm_start = gs_hook_option_value(choice, "warm_start") != 0,
        .epsilon = gs_hook_option_value(choice, "orthogonalization_epsilon"),
        .seed = (uint64_t)gs_hook_option_value(choice, "seed"),
    };
}

gs_status gs_low_rank_options_check(const gs_hook_setup *setup) {
    const gs_low_rank_options options = gs_low_rank_options_of(setup->choice);
    GS_TRY(gs_hook_check_feedback(setup));
    GS_TRY(gs_hook_refuse_exact(setup));
    if (options.start_step < 2 && (options.error_feedback || options.warm_start))
        return gs_error(GS_INVALID_ARGUMENT, "option start_step: %lld, with %s at least 2",
                        (long long)options.start_step,
                        options.error_feedback ? "error_feedback" : "warm_start");
    return gs_ok();
}
