#include "gradsync/hooks/hook_facts.h"

#include <string.h>

#include "gradsync/hooks/hook_calls.h"

static size_t count_choice(const gs_hook_choice *choice) {
    size_t count = 1 + choice->hook->num_options;
    return choice->inner ? count + count_choice(choice->inner) : count;
}

size_t gs_hook_facts_count(const gs_hook_set *set) {
    size_t count = 0;
    for (size_t i = 0; i < set->num_hooks; i++) count += count_choice(&set->hooks[i].choice);
    return count;
}

static void put_name(char out[GS_HOOK_NAME_LEN], const char *name) {
    memcpy(out, name, strnlen(name, GS_HOOK_NAME_LEN - 1));
}

static gs_hook_fact *write_choice(gs_hook_fact *next, const gs_hook_choice *choice, int64_t depth) {
    const gs_comm_hook *hook = choice->hook;
    for (size_t i = 0; i <= hook->num_options; i++, next++) {
        memset(next, 0, sizeof *next);
        put_name(next->hook, hook->name);
        next->depth = depth;
        if (!i) continue;
        const gs_hook_option *option = &hook->options[i - 1];
        put_name(next->option, option->name);
        next->value = gs_hook_option_value(choice, option->name);
    }
    return choice->inner ? write_choice(next, choice->inner, depth + 1) : next;
}

void gs_hook_facts_write(gs_hook_fact *facts, const gs_hook_set *set) {
    gs_hook_fact *next = facts;
    for (size_t i = 0; i < set->num_hooks; i++) {
        gs_hook_fact *own = next;
        next = write_choice(next, &set->hooks[i].choice, 0);
        own->num_phases = set->hooks[i].needs.num_phases;
        own->most_posts = set->hooks[i].needs.most_posts;
    }
}

static gs_status differ(const gs_hook_fact *theirs, const gs_hook_fact *ours) {
    if (strcmp(theirs->hook, ours->hook) != 0 || theirs->depth != ours->depth)
        return gs_error(GS_FAILED_PRECONDITION, "communication hook \"%.47s\" against \"%.47s\"",
                        theirs->hook, ours->hook);
    if (strcmp(theirs->option, ours->option) != 0)
        return gs_error(GS_FAILED_PRECONDITION,
                        "communication hook \"%.47s\": knows \"%.47s\" against \"%.47s\"",
                        ours->hook, theirs->option, ours->option);
    if (theirs->num_phases != ours->num_phases || theirs->most_posts != ours->most_posts)
        return gs_error(
            GS_FAILED_PRECONDITION,
            "communication hook \"%.47s\": phases %lld against %lld, collectives in one "
            "%lld against %lld",
            ours->hook, (long long)theirs->num_phases, (long long)ours->num_phases,
            (long long)theirs->most_posts, (long long)ours->most_posts);
    return gs_error(GS_FAILED_PRECONDITION,
                    "communication hook \"%.47s\": option %.47s %.17g against %.17g", ours->hook,
                    ours->option, theirs->value, ours->value);
}

gs_status gs_hook_facts_compare(const gs_hook_fact *theirs, size_t num_theirs,
                                const gs_hook_fact *ours, size_t num_ours) {
    for (size_t i = 0; i < num_theirs && i < num_ours; i++) {
        if (memcmp(&theirs[i], &ours[i], sizeof ours[i]) != 0) return differ(&theirs[i], &ours[i]);
    }
    if (num_theirs == num_ours) return gs_ok();
    const gs_hook_fact *more = num_theirs > num_ours ? &theirs[num_ours] : &ours[num_theirs];
    return gs_error(GS_FAILED_PRECONDITION, "communication hook \"%.47s\"%s against %s", more->hook,
                    num_theirs > num_ours ? "" : " missing", num_theirs > num_ours ? "none" : "it");
}
