#include "worker/state/hook_choice.h"

#include <stdio.h>
#include <string.h>

static gs_status find_hook(const gs_comm_hook **out, const char *name) {
    *out = gs_comm_hook_find(name);
    return *out ? gs_ok()
                : gs_error(GS_UNIMPLEMENTED, "reducer.hook: this worker has no hook \"%s\"", name);
}

static size_t take_numbers(gs_hook_number *numbers, const gs_job_hook *hook) {
    size_t count = 0;
    for (const gs_job_hook_member *member = gs_job_hook_kind_of(hook)->members; member->name; member++) {
        if (!gs_job_hook_is_number(member->name)) continue;
        numbers[count++] =
            (gs_hook_number){member->name, gs_job_hook_number(hook, member->name)};
    }
    return count;
}

gs_status gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook) {
    *out = (gs_job_hook_choice){0};
    if (hook->kind == GS_JOB_HOOK_ALLREDUCE && !hook->wrap) return gs_ok();
    GS_TRY(find_hook(&out->choice.hook, gs_job_hook_kind_of(hook)->name));
    out->choice.numbers = out->numbers;
    out->choice.num_numbers = take_numbers(out->numbers, hook);
    if (!hook->wrap) return gs_ok();
    out->inner = out->choice;
    out->choice = (gs_hook_choice){.inner = &out->inner};
    char wrapper[GS_HOOK_NAME_LEN];
    snprintf(wrapper, sizeof wrapper, "wrap_%s", gs_wrap_words[hook->wrap]);
    return find_hook(&out->choice.hook, wrapper);
}
