#include "coordinator/model/run.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "rpc/schema/launch_token.h"

static const char *const phase_names[GS_NUM_RUN_PHASES] = {
    "launching", "preparing", "connecting", "training", "reloading", "settling", "ending"};
static const char *const stage_names[GS_NUM_MEMBER_STAGES] = {
    "launched", "here", "ready", "up", "settling", "settled", "leaving", "exited"};

static const char *const bye_names[GS_NUM_BYE_REASONS] = {
    "none", "target_reached", "data_ended", "drained", "error", "orphaned", "other"};

const char *gs_run_phase_name(gs_run_phase phase) { return phase_names[phase]; }
const char *gs_device_word(bool is_gpu) { return is_gpu ? "cuda" : "cpu"; }
const char *gs_member_stage_name(gs_member_stage stage) { return stage_names[stage]; }

const char *gs_bye_reason_name(gs_bye_reason reason) { return bye_names[reason]; }

gs_bye_reason gs_bye_reason_of(const char *name) {
    for (int i = GS_BYE_TARGET_REACHED; i < GS_BYE_OTHER; i++) {
        if (!strcmp(bye_names[i], name)) return (gs_bye_reason)i;
    }
    return GS_BYE_OTHER;
}

gs_membership gs_membership_of(const char *state) {
    static const struct {
        const char *state;
        gs_membership means;
    } words[] = {{"waiting", GS_MEMBERSHIP_FORMS},    {"prepared", GS_MEMBERSHIP_FORMS},   {"connecting", GS_MEMBERSHIP_FORMS},
                 {"connected", GS_MEMBERSHIP_WAITS},  {"running", GS_MEMBERSHIP_TRAINS},   {"aborting", GS_MEMBERSHIP_LEAVES},
                 {"leaving", GS_MEMBERSHIP_LEAVES}};
    for (size_t i = 0; state && i < sizeof words / sizeof words[0]; i++) {
        if (!strcmp(words[i].state, state)) return words[i].means;
    }
    return GS_MEMBERSHIP_UNTOLD;
}

bool gs_run_phase_from_name(gs_run_phase *phase, const char *name) {
    for (int i = 0; i < GS_NUM_RUN_PHASES; i++) {
        if (strcmp(phase_names[i], name) != 0) continue;
        *phase = (gs_run_phase)i;
        return true;
    }
    return false;
}

gs_run *gs_run_create(gs_job *job, int num_members, int64_t now_ns) {
    gs_run *run = gs_model_alloc(1, sizeof *run);
    run->members = gs_model_alloc((size_t)num_members, sizeof *run->members);
    run->job = job;
    run->num_members = num_members;
    run->cause.member = -1;
    run->plan_step = -1;
    run->step_before = job->step;
    run->begun_ns = run->phase_since_ns = run->progress_ns = now_ns;
    for (int i = 0; i < num_members; i++) {
        run->members[i].job = job;
        run->members[i].rank = -1;
    }
    return run;
}

void gs_run_destroy(gs_run *run) {
    if (!run) return;
    while (run->exchanges) {
        gs_exchange_round *round = run->exchanges;
        run->exchanges = round->next;
        gs_exchange_free(round);
    }
    for (int i = 0; i < run->num_members; i++) {
        free(run->members[i].params);
        free(run->members[i].log_tail);
        gs_param_list_release(&run->members[i].listed);
    }
    gs_bucket_plan_release(&run->plan);
    gs_bucket_plan_release(&run->next.plan);
    free(run->members);
    free(run);
}

gs_member *gs_run_member_of_rank(gs_run *run, int rank) {
    if (!run || rank < 0 || rank >= run->num_members) return NULL;
    return run->members[rank].rank == rank ? &run->members[rank] : NULL;
}

int gs_member_index(const gs_member *member) { return (int)(member - member->job->run->members); }

bool gs_member_is_shown(const gs_member *member, uint64_t shown_token) {
    if (!member->shows_token && !shown_token) return true;
    return shown_token == gs_launch_token_show(member->launch_token);
}

bool gs_member_is_here(const gs_member *member) {
    return member->stage > GS_MEMBER_LAUNCHED && member->stage < GS_MEMBER_EXITED;
}

bool gs_run_all_exited(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage != GS_MEMBER_EXITED) return false;
    }
    return true;
}

bool gs_run_is_broken(const gs_run *run) {
    if (!run->has_trained) return true;
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage >= GS_MEMBER_SETTLING) return true;
    }
    return false;
}

bool gs_run_has_begun(const gs_run *run) { return run->generation && run->generation == run->job->begun_generation; }
bool gs_run_is_kept(const gs_run *run) { return run->has_trained && run->phase >= GS_RUN_TRAINING; }

int64_t gs_run_heard_ns(const gs_run *run) {
    int64_t heard_ns = run->progress_ns;
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].heard_ns > heard_ns) heard_ns = run->members[i].heard_ns;
    return heard_ns;
}

bool gs_run_all_said(const gs_run *run, gs_bye_reason reason) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].bye.reason != reason) return false;
    }
    return true;
}
