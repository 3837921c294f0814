#include "rpc/schema/messages.h"

#define KIB ((size_t)1024)

// Bodies: what a method can need at most, so that a mistake or an attack is refused by its size
// alone.
static const gs_method_info methods[GS_NUM_METHODS] = {
    [GS_AGENT_HELLO] = {"AgentHello", GS_STREAM, true, GS_ROLE_AGENT, 256 * KIB},
    [GS_AGENT_HEARTBEAT] = {"AgentHeartbeat", GS_ONE_WAY, true, GS_ROLE_AGENT, 4 * KIB},
    [GS_EXITED] = {"Exited", GS_CALL, true, GS_ROLE_AGENT, 64 * KIB},
    [GS_LOG] = {"Log", GS_CALL, true, GS_ROLE_AGENT, 1024 * KIB},
    [GS_HELLO] = {"Hello", GS_STREAM, true, GS_ROLE_TRAINER, 1024 * KIB},
    [GS_HEARTBEAT] = {"Heartbeat", GS_ONE_WAY, true, GS_ROLE_TRAINER, 4 * KIB},
    [GS_READY] = {"Ready", GS_CALL, true, GS_ROLE_TRAINER, 1024 * KIB},
    [GS_EXCHANGE] = {"Exchange", GS_CALL, true, GS_ROLE_TRAINER, 96 * KIB},
    [GS_COMM_UP] = {"CommUp", GS_CALL, true, GS_ROLE_TRAINER, 4 * KIB},
    [GS_STEP] = {"Step", GS_ONE_WAY, true, GS_ROLE_TRAINER, 256 * KIB},
    [GS_FAULT] = {"Fault", GS_CALL, true, GS_ROLE_TRAINER, 64 * KIB},
    [GS_SETTLE] = {"Settle", GS_CALL, true, GS_ROLE_TRAINER, 4 * KIB},
    [GS_CHECKPOINTED] = {"Checkpointed", GS_CALL, true, GS_ROLE_TRAINER, 256 * KIB},
    [GS_BYE] = {"Bye", GS_CALL, true, GS_ROLE_TRAINER, 64 * KIB},
    [GS_CREATE_JOB] = {"CreateJob", GS_CALL, false, GS_ROLE_OPERATOR, 1024 * KIB},
    [GS_LIST_JOBS] = {"ListJobs", GS_CALL, false, GS_ROLE_VIEWER, 16 * KIB},
    [GS_GET_JOB] = {"GetJob", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_STOP_JOB] = {"StopJob", GS_CALL, false, GS_ROLE_OPERATOR, 4 * KIB},
    [GS_DELETE_JOB] = {"DeleteJob", GS_CALL, false, GS_ROLE_OPERATOR, 4 * KIB},
    [GS_GET_JOB_WORKERS] = {"GetJobWorkers", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_GET_JOB_PLAN] = {"GetJobPlan", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_GET_JOB_METRICS] = {"GetJobMetrics", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_GET_JOB_SERIES] = {"GetJobSeries", GS_CALL, false, GS_ROLE_VIEWER, 16 * KIB},
    [GS_LIST_EVENTS] = {"ListEvents", GS_CALL, false, GS_ROLE_VIEWER, 16 * KIB},
    [GS_READ_LOGS] = {"ReadLogs", GS_CALL, false, GS_ROLE_VIEWER, 16 * KIB},
    [GS_LIST_CHECKPOINTS] = {"ListCheckpoints", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_LIST_WORKERS] = {"ListWorkers", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_PREVIEW_PLAN] = {"PreviewPlan", GS_CALL, false, GS_ROLE_VIEWER, 1024 * KIB},
    [GS_GET_METRICS] = {"GetMetrics", GS_STREAM, false, GS_ROLE_METRICS, 4 * KIB},
    [GS_GET_HEALTH] = {"GetHealth", GS_CALL, false, GS_ROLE_ANYBODY, 4 * KIB},
    [GS_GET_SYSTEM] = {"GetSystem", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_WATCH] = {"Watch", GS_STREAM, false, GS_ROLE_VIEWER, 16 * KIB},
    [GS_READY_ORDER] = {"ReadyOrder", GS_CALL, true, GS_ROLE_TRAINER, 1024 * KIB},
    [GS_REPLAN_JOB] = {"ReplanJob", GS_CALL, false, GS_ROLE_OPERATOR, 4 * KIB},
    // Not control: heartbeats and exchanges go first.
    [GS_TIMELINE] = {"Timeline", GS_CALL, false, GS_ROLE_TRAINER, 1024 * KIB},
    [GS_GET_JOB_TIMELINE] = {"GetJobTimeline", GS_STREAM, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_GET_JOB_DIAGNOSIS] = {"GetJobDiagnosis", GS_CALL, false, GS_ROLE_VIEWER, 4 * KIB},
    [GS_TRACE_JOB] = {"TraceJob", GS_CALL, false, GS_ROLE_OPERATOR, 4 * KIB},
    [GS_RELEASE_JOB] = {"ReleaseJob", GS_CALL, false, GS_ROLE_OPERATOR, 4 * KIB},
    [GS_ADOPT_JOB] = {"AdoptJob", GS_CALL, false, GS_ROLE_OPERATOR, 4 * KIB},
    [GS_STEP_RECORD] = {"StepRecord", GS_ONE_WAY, true, GS_ROLE_TRAINER, 32 * KIB},
    // Not control: heartbeats and exchanges go first.
    [GS_EXAMINED] = {"Examined", GS_ONE_WAY, false, GS_ROLE_AGENT, 64 * KIB},
    [GS_EXAMINE_WORKERS] = {"ExamineWorkers", GS_CALL, false, GS_ROLE_OPERATOR, 16 * KIB},
    [GS_ENROL] = {"Enrol", GS_CALL, false, GS_ROLE_ENROL, 4 * KIB},
    [GS_DESCRIBED] = {"Described", GS_ONE_WAY, true, GS_ROLE_AGENT, 1024 * KIB},
    [GS_RANK_KEYS] = {"RankKeys", GS_ONE_WAY, true, GS_ROLE_AGENT, 64 * KIB},
};

const gs_method_info *gs_method_info_of(gs_method method) {
    if ((unsigned)method >= GS_NUM_METHODS || !methods[method].name) return NULL;
    return &methods[method];
}
