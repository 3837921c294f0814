#include "coordinator/engine/base/orders.h"

// NULL: it is not connected.
static gs_member_message *tell(gs_engine *engine, gs_member *member, gs_member_order order) {
    if (!member->stream.call) return NULL;
    gs_effect *effect = gs_mind_do(engine, GS_DO_TELL_MEMBER);
    effect->call = member->stream.call;
    effect->job = member->job;
    effect->run = member->job->run;
    effect->member = member;
    effect->member_message.order = order;
    return &effect->member_message;
}

void gs_tell_welcome(gs_engine *engine, gs_member *member, bool send_params) {
    member->told = gs_state_cadence(&engine->state);
    member->heartbeat_ns = member->told.heartbeat_ns;
    member->list_asked |= send_params;
    gs_member_message *message = tell(engine, member, GS_TELL_WELCOME);
    if (!message) return;
    message->cadence = member->told;
    message->orphan_ns = member->job->run->told_orphan_ns;
    message->send_params = send_params;
}

static void set_plan(gs_engine *engine, gs_member_message *message, const gs_bucket_plan *plan,
                     const gs_plan_facts *facts, bool is_observed) {
    if (!message) return;
    message->plan = gs_mind_copy(engine, plan, sizeof *plan);  // what it points at is buried, and lasts as long
    message->facts = gs_mind_copy(engine, facts, sizeof *facts);
    message->is_observed = is_observed;
}

void gs_tell_prepare(gs_engine *engine, gs_member *member) {
    gs_job *job = member->job;
    set_plan(engine, tell(engine, member, GS_TELL_PREPARE), &job->run->plan, &job->plan,
             job->ready_order.params != NULL);
}

void gs_tell_start(gs_engine *engine, gs_member *member) { tell(engine, member, GS_TELL_START); }
void gs_tell_go(gs_engine *engine, gs_member *member) { tell(engine, member, GS_TELL_GO); }
void gs_tell_abort(gs_engine *engine, gs_member *member) { tell(engine, member, GS_TELL_ABORT); }
void gs_tell_drain(gs_engine *engine, gs_member *member) { tell(engine, member, GS_TELL_DRAIN); }

void gs_tell_replan(gs_engine *engine, gs_member *member, const gs_bucket_plan *plan,
                    const gs_plan_facts *facts) {
    set_plan(engine, tell(engine, member, GS_TELL_REPLAN), plan, facts, true);
}

static gs_effect *tell_agent(gs_engine *engine, gs_agent *agent, gs_agent_order order) {
    if (!gs_agent_is_connected(agent)) return NULL;
    gs_effect *effect = gs_mind_do(engine, GS_DO_TELL_AGENT);
    effect->call = agent->stream.call;
    effect->agent = agent;
    effect->agent_message.order = order;
    return effect;
}

void gs_tell_agent_welcome(gs_engine *engine, gs_agent *agent) {
    gs_effect *effect = tell_agent(engine, agent, GS_TELL_AGENT_WELCOME);
    agent->told_heartbeat_ns = agent->heartbeat_ns = gs_state_cadence(&engine->state).heartbeat_ns;
    if (effect) effect->agent_message.heartbeat_ns = agent->told_heartbeat_ns;
}

void gs_tell_cadence(gs_engine *engine, gs_member *member) {
    member->told = gs_state_cadence(&engine->state);
    // Who is to be heard more often is expected to be so from its next word on.
    if (member->told.heartbeat_ns > member->heartbeat_ns) member->heartbeat_ns = member->told.heartbeat_ns;
    gs_member_message *message = tell(engine, member, GS_TELL_CADENCE);
    if (message) message->cadence = member->told;
}

void gs_tell_agent_cadence(gs_engine *engine, gs_agent *agent) {
    gs_effect *effect = tell_agent(engine, agent, GS_TELL_AGENT_CADENCE);
    agent->told_heartbeat_ns = gs_state_cadence(&engine->state).heartbeat_ns;
    if (agent->told_heartbeat_ns > agent->heartbeat_ns) agent->heartbeat_ns = agent->told_heartbeat_ns;
    if (effect) effect->agent_message.heartbeat_ns = agent->told_heartbeat_ns;
}

bool gs_order_start_rank(gs_engine *engine, gs_agent *agent, gs_member *member) {
    gs_job *job = member->job;
    const gs_checkpoint *newest = gs_checkpoints_newest(&job->checkpoints);
    const gs_checkpoint *resume = newest ? gs_mind_copy(engine, newest, sizeof *newest) : NULL;
    gs_effect *effect = tell_agent(engine, agent, GS_TELL_START_RANK);
    if (!effect) return false;
    agent->slots[member->slot] = (gs_agent_slot){.incarnation = member->incarnation, .job = job->id};
    effect->job = job;
    effect->run = job->run;
    effect->member = member;
    effect->agent_message.resume = resume;
    member->resume_step = resume ? resume->step : 0;
    return true;
}

void gs_order_stop_slot(gs_engine *engine, gs_agent *agent, int slot, uint64_t incarnation, bool kill,
                        double grace_seconds) {
    gs_effect *effect = tell_agent(engine, agent, GS_TELL_STOP_RANK);
    if (!effect) return;
    effect->agent_message.slot = slot;
    effect->agent_message.incarnation = incarnation;
    effect->agent_message.kill = kill;
    effect->agent_message.grace_seconds = grace_seconds;
}

static void tell_of_slot(gs_engine *engine, gs_agent *agent, int slot, gs_agent_order order) {
    gs_effect *effect = tell_agent(engine, agent, order);
    if (!effect) return;
    effect->agent_message.slot = slot;
    effect->agent_message.incarnation = agent->slots[slot].incarnation;
}

void gs_order_describe_slot(gs_engine *engine, gs_agent *agent, int slot) {
    tell_of_slot(engine, agent, slot, GS_TELL_DESCRIBE_RANK);
}

void gs_order_adopt_slot(gs_engine *engine, gs_agent *agent, int slot) {
    tell_of_slot(engine, agent, slot, GS_TELL_ADOPT_RANK);
}

void gs_order_stop_rank(gs_engine *engine, gs_member *member, bool kill, double grace_seconds) {
    if (member->stage == GS_MEMBER_EXITED) return;
    gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    // Who is out of reach hears that its generation is over when it comes back, and leaves by itself.
    if (!agent || !gs_agent_is_connected(agent)) return;
    member->kill_sent = true;
    gs_order_stop_slot(engine, agent, member->slot, member->incarnation, kill, grace_seconds);
}
