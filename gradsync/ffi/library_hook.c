// A hook of the library's for a reducer, by name, of ffi.h.
#include <string.h>

#include "gradsync/ffi/object.h"

// Of a reducer that is not open yet.
static gs_status find_hook(const gs_comm_hook **out, const gs_ffi_reducer *reducer,
                           const char *name, bool wraps) {
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    GS_TRY(gs_ffi_expect(!reducer->reducer, "the reducer is open"));
    GS_TRY(gs_ffi_given(name, "hook's name"));
    *out = gs_comm_hook_find(name);
    if (*out && (*out)->wraps == wraps) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "the library has no hook \"%.60s\"%s", name,
                    wraps ? " around others" : "");
}

int gs_ffi_reducer_choose_hook(gs_ffi_reducer *reducer, const char *name) {
    const gs_comm_hook *hook;
    int code = gs_ffi_keep(reducer, find_hook(&hook, reducer, name, false));
    if (code) return code;
    reducer->choice = (gs_hook_choice){.hook = hook, .numbers = reducer->numbers};
    reducer->options.tally = GS_TALLY_IN_BUCKETS;
    reducer->options.hooks = &reducer->choice;
    reducer->options.num_hooks = 1;
    return 0;
}

static gs_status set_option(gs_ffi_reducer *reducer, const char *name, double number) {
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    GS_TRY(gs_ffi_expect(!reducer->reducer, "the reducer is open"));
    GS_TRY(gs_ffi_given(name, "option's name"));
    gs_hook_choice *choice = &reducer->choice;
    GS_TRY(gs_ffi_expect(choice->numbers, "no hook of the library's is chosen"));
    size_t at = 0;
    while (at < choice->num_numbers && strcmp(reducer->numbers[at].name, name) != 0) at++;
    if (at < choice->num_numbers) {
        reducer->numbers[at].number = number;
        return gs_ok();
    }
    for (size_t i = 0; i < choice->hook->num_options && at < GS_FFI_HOOK_NUMBERS; i++) {
        const gs_hook_option *option = &choice->hook->options[i];
        if (strcmp(option->name, name) != 0) continue;
        reducer->numbers[choice->num_numbers++] = (gs_hook_number){option->name, number};
        return gs_ok();
    }
    return gs_error(GS_INVALID_ARGUMENT, "hook %s has no option \"%.60s\"", choice->hook->name,
                    name);
}

int gs_ffi_reducer_set_hook_option(gs_ffi_reducer *reducer, const char *name, double number) {
    return gs_ffi_keep(reducer, set_option(reducer, name, number));
}

int gs_ffi_reducer_wrap_hook(gs_ffi_reducer *reducer, const char *wrapper) {
    const gs_comm_hook *hook;
    gs_status status = find_hook(&hook, reducer, wrapper, true);
    if (!status.code)
        status = gs_ffi_expect(reducer->choice.numbers, "no hook of the library's is chosen");
    int code = gs_ffi_keep(reducer, status);
    if (code) return code;
    reducer->wrapper = (gs_hook_choice){.hook = hook, .inner = &reducer->choice};
    reducer->options.hooks = &reducer->wrapper;
    return 0;
}
