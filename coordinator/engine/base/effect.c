#include "coordinator/engine/base/effect.h"

static const char *const names[GS_NUM_EFFECTS] = {
    [GS_DO_REPLY] = "reply",
    [GS_DO_END] = "end",
    [GS_DO_TELL_MEMBER] = "tell_member",
    [GS_DO_TELL_AGENT] = "tell_agent",
    [GS_DO_WRITE_JOB] = "write_job",
    [GS_DO_DELETE_JOB] = "delete_job",
    [GS_DO_RESERVE_GENERATIONS] = "reserve_generations",
    [GS_DO_WRITE_CHECKPOINT] = "write_checkpoint",
    [GS_DO_DELETE_CHECKPOINT] = "delete_checkpoint",
    [GS_DO_PRUNE_KEYS] = "prune_keys",
    [GS_DO_VERIFY] = "verify",
    [GS_DO_LOOK_AT_PARTS] = "look_at_parts",
    [GS_DO_FIND_DIRECTORIES] = "find_directories",
    [GS_DO_CHECK_CHECKPOINTS] = "check_checkpoints",
    [GS_DO_LOOK_FOR_LIFE] = "look_for_life",
    [GS_DO_REMOVE_CHECKPOINT] = "remove_checkpoint",
    [GS_DO_REMOVE_PARTS] = "remove_parts",
    [GS_DO_SWEEP] = "sweep",
    [GS_DO_PURGE] = "purge",
    [GS_DO_NOTE] = "note",
    [GS_DO_LOG] = "log",
    [GS_DO_ADD_JOB] = "add_job",
    [GS_DO_SHOW_JOB] = "show_job",
    [GS_DO_END_JOB] = "end_job",
    [GS_DO_DROP_JOB] = "drop_job",
    [GS_DO_BEGIN_GENERATION] = "begin_generation",
    [GS_DO_END_RUN] = "end_run",
    [GS_DO_SHOW_FAILURE] = "show_failure",
    [GS_DO_SHOW_PLAN] = "show_plan",
    [GS_DO_SHOW_WORKER] = "show_worker",
    [GS_DO_SHOW_CHECKPOINT] = "show_checkpoint",
    [GS_DO_COUNT] = "count",
};

const char *gs_effect_name(gs_effect_kind kind) {
    return (unsigned)kind < GS_NUM_EFFECTS ? names[kind] : "unknown";
}
