// What ranks compare of their hooks before the first step: which ones, in which order, with which options.
#ifndef GRADSYNC_HOOKS_HOOK_FACTS_H
#define GRADSYNC_HOOKS_HOOK_FACTS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/hooks/hook_set.h"

// A hook, or one of its options as it holds, given or not. Bytes that are not used are zero.
typedef struct gs_hook_fact {
    char hook[GS_HOOK_NAME_LEN];
    char option[GS_HOOK_NAME_LEN];  // "": the hook itself
    double value;
    int64_t depth;  // 0: a hook of the reducer; 1: the one that it wraps …
    // Of the reducer's hooks themselves: which lanes a bucket goes through, and how many may be on
    // their way.
    int64_t num_phases, most_posts;
} gs_hook_fact;

size_t gs_hook_facts_count(const gs_hook_set *set);
void gs_hook_facts_write(gs_hook_fact *facts, const gs_hook_set *set);  // so many of them
// FAILED_PRECONDITION says the first difference.
GS_NODISCARD gs_status gs_hook_facts_compare(const gs_hook_fact *theirs, size_t num_theirs,
                                             const gs_hook_fact *ours, size_t num_ours);

#endif
