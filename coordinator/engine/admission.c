#include "coordinator/engine/admission.h"

static const gs_event_rule rules[GS_NUM_ENGINE_EVENTS] = {
    [GS_ON_NOTHING] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_START] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_TICK] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_TURN] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_DRAIN] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_AGENT_HELLO] = {GS_SPEAKER_AGENT, GS_ROLE_AGENT},
    [GS_ON_AGENT_HEARTBEAT] = {GS_SPEAKER_AGENT, GS_ROLE_AGENT},
    [GS_ON_EXITED] = {GS_SPEAKER_AGENT, GS_ROLE_AGENT},
    [GS_ON_DESCRIBED] = {GS_SPEAKER_AGENT, GS_ROLE_AGENT},
    [GS_ON_HELLO] = {GS_SPEAKER_NEWCOMER, GS_ROLE_TRAINER},
    [GS_ON_PARAMS] = {GS_SPEAKER_HERE, GS_ROLE_TRAINER},
    [GS_ON_READY] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_EXCHANGE] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_COMM_UP] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_HEARTBEAT] = {GS_SPEAKER_MEMBER, GS_ROLE_TRAINER},
    [GS_ON_STEP] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_FAULT] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_SETTLE] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_CHECKPOINTED] = {GS_SPEAKER_HERE, GS_ROLE_TRAINER},
    [GS_ON_BYE] = {GS_SPEAKER_MEMBER, GS_ROLE_TRAINER},
    [GS_ON_READY_ORDER] = {GS_SPEAKER_BOUND, GS_ROLE_TRAINER},
    [GS_ON_CREATE_JOB] = {GS_SPEAKER_PEOPLE, GS_ROLE_OPERATOR},
    [GS_ON_STOP_JOB] = {GS_SPEAKER_PEOPLE, GS_ROLE_OPERATOR},
    [GS_ON_DELETE_JOB] = {GS_SPEAKER_PEOPLE, GS_ROLE_OPERATOR},
    [GS_ON_REPLAN_JOB] = {GS_SPEAKER_PEOPLE, GS_ROLE_OPERATOR},
    [GS_ON_RELEASE_JOB] = {GS_SPEAKER_PEOPLE, GS_ROLE_OPERATOR},
    [GS_ON_ADOPT_JOB] = {GS_SPEAKER_PEOPLE, GS_ROLE_OPERATOR},
    [GS_ON_CALL_GONE] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_TOO_LARGE] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_STORED] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_VERIFIED] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_PARTS_LOOKED] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_DIRECTORIES_FOUND] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_FILES_REMOVED] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_CHECKPOINTS_CHECKED] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
    [GS_ON_LIFE_LOOKED] = {GS_SPEAKER_INSIDE, GS_ROLE_ANYBODY},
};

const gs_event_rule *gs_event_rule_of(gs_engine_event_kind kind) { return &rules[kind]; }

// Before prepare the generation is 0, for all.
static bool may_say(const gs_member *member, gs_speaker speaker, int64_t generation) {
    if (speaker == GS_SPEAKER_MEMBER) return true;
    if (member->stage == GS_MEMBER_LAUNCHED) return false;
    if (speaker == GS_SPEAKER_HERE) return true;
    return member->stage != GS_MEMBER_LEAVING && generation == (int64_t)member->job->run->generation;
}

// Nobody is commanded from an old copy, for the moment until its process ends.
static void refuse_people(gs_engine *engine, gs_call call) {
    gs_reply_refusal(engine, call, gs_error(GS_UNAVAILABLE, "the coordinator is going down: its database is an old copy"),
                     "draining", "start it on the newer data and ask again");
}

// An exit speaks for the trainer, too, before its agent's own hello as well: nobody ends another worker's by what he says.
static const char *find_uncovered(const gs_engine *engine, const gs_engine_event *event) {
    const gs_member *named = event->kind == GS_ON_EXITED ? gs_state_member(&engine->state, event->exited.incarnation) : NULL;
    return gs_identity_uncovered(&engine->state, &event->from.who, named);
}

static void refuse_identity(gs_engine *engine, const gs_engine_event *event, const char *worker) {
    gs_status status = gs_error(GS_PERMISSION_DENIED, "this is worker %s, or a trainer there", worker);
    bool is_stream = event->kind == GS_ON_AGENT_HELLO || event->kind == GS_ON_HELLO;
    if (is_stream) gs_end_stream(engine, event->from.call, status);
    else gs_reply_error(engine, event->from.call, status);
}

gs_member *gs_admit(gs_engine *engine, const gs_engine_event *event, bool *admitted) {
    const gs_event_rule *rule = &rules[event->kind];
    *admitted = rule->speaker != GS_SPEAKER_PEOPLE || !engine->state.cluster.is_old_copy;
    if (!*admitted) refuse_people(engine, event->from.call);
    if (rule->speaker == GS_SPEAKER_INSIDE || rule->speaker == GS_SPEAKER_PEOPLE) return NULL;
    const char *uncovered = find_uncovered(engine, event);
    if (uncovered) {
        *admitted = false;
        refuse_identity(engine, event, uncovered);
        return NULL;
    }
    if (rule->speaker < GS_SPEAKER_MEMBER) return NULL;
    const gs_origin *from = &event->from;
    gs_member *member = NULL;
    if (gs_identity_find_member(&member, &engine->state, &from->who) == GS_IDENTITY_UNSHOWN) {
        *admitted = false;
        gs_reply_error(engine, from->call, gs_error(GS_PERMISSION_DENIED, "this shows no launch token, or not that of this trainer"));
        return NULL;
    }
    if (member && !may_say(member, rule->speaker, from->generation)) member = NULL;
    if (member) {
        member->heard_ns = engine->state.now_ns;
        return member;
    }
    *admitted = false;
    if (rule->speaker == GS_SPEAKER_BOUND)
        gs_reply_error(engine, from->call,
                       gs_error(GS_ABORTED, "generation %lld is over", (long long)from->generation));
    else gs_reply_error(engine, from->call, gs_error(GS_ABORTED, "this trainer belongs to no generation"));
    return NULL;
}
