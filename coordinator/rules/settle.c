#include "coordinator/rules/settle.h"

// Further than any other survivor can be, where two others at least stand together: what it says is not true.
static void leave_out_who_is_alone(gs_settle_member *members, size_t num_members) {
    gs_settle_member *first = NULL;
    int64_t furthest = -1, least = INT64_MAX;  // of the others
    size_t num_survivors = 0;
    for (size_t i = 0; i < num_members; i++) {
        if (!members[i].survived) continue;
        if (members[i].is_apart) return;
        num_survivors++;
        if (!first || members[i].applied_step > first->applied_step) first = &members[i];
    }
    for (size_t i = 0; i < num_members; i++) {
        const gs_settle_member *other = &members[i];
        if (!other->survived || other == first) continue;
        if (other->applied_step > furthest) furthest = other->applied_step;
        if (other->applied_step < least) least = other->applied_step;
    }
    bool are_together = num_survivors > 2 && furthest - least <= 1;
    if (are_together && first->applied_step > furthest + 1) first->survived = false;
}

int64_t gs_settle_decide(gs_settle_member *members, size_t num_members, int64_t reported_step,
                         int64_t saved_step) {
    leave_out_who_is_alone(members, num_members);
    int64_t newest = -1;
    bool all_complete = true, level = true;
    for (size_t i = 0; i < num_members; i++) {
        members[i].apply = members[i].save = false;
        if (!members[i].survived) continue;
        if (newest >= 0 && members[i].applied_step != newest) level = false;
        if (members[i].applied_step > newest) newest = members[i].applied_step;
        if (!members[i].complete) all_complete = false;
    }
    if (newest < 0) return -1;

    // Who survived has entered no commit but the next one: of a step further than that nobody can be, whatever somebody has told.
    int64_t target = reported_step == newest + 1 ? reported_step : newest;
    // Nobody applied the step in flight, but all hold it: it is not lost either.
    if (level && target == newest && all_complete) target = newest + 1;

    bool saver_found = false;
    int64_t reached = -1;
    for (size_t i = 0; i < num_members; i++) {
        gs_settle_member *member = &members[i];
        if (!member->survived) continue;
        member->apply = member->applied_step == target - 1 && member->complete;
        int64_t step = member->applied_step + (member->apply ? 1 : 0);
        if (step > reached) reached = step;
    }
    for (size_t i = 0; i < num_members && !saver_found; i++) {
        gs_settle_member *member = &members[i];
        if (!member->survived) continue;
        if (member->applied_step + (member->apply ? 1 : 0) != reached) continue;
        member->save = reached > saved_step && reached > 0;
        saver_found = true;
    }
    return reached;
}
