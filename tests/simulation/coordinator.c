#include "tests/simulation/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/disk.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/people.h"
#include "tests/simulation/peer.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/rows.h"
#include "tests/simulation/sets.h"
#include "tests/simulation/trainer.h"

#define MAX_TURNS 8      // behind one event: more go in circles
#define EXCHANGE_TICKS 300
#define STREAM_TICKS 20
#define BYE_TICKS 60
#define SETTLE_TICKS 100  // a rank asks for so long before it asks again
#define ORPHAN (30 * SECONDS)
#define LONG_ORPHAN (120 * SECONDS)  // what ranks do alone, others are not saved from by that
#define HEARD_TICKS 35    // what came while the coordinator stood still is heard for `dead_ns` before a deadline is over
#define MOST_TICKS 450  // of 100 ms, of a coordinator that runs: a call is answered before

coordinator_ends coordinator_ended[GS_NUM_EFFECTS];
uint64_t coordinator_taken[GS_NUM_MACHINES][GS_MAX_TRANSITIONS];

// A call that the engine was given.
typedef struct open_call {
    gs_call number;
    sim_caller caller;
    uint64_t request;
    gs_engine_event_kind kind;
    bool is_stream, was_told;
    int ticks;  // that it has waited; a stream: that nobody holds it
    struct open_call *next;
} open_call;

typedef struct held_event {
    gs_engine_event event;
    sim_caller caller;
    uint64_t request, connection;
    bool is_stream, is_loss, is_completion, was_closed;
    struct held_event *next;
} held_event;

struct sim_coordinator {
    gs_engine *engine;  // NULL: dead
    uint64_t life, num_lives;
    gs_call last_call;
    open_call *calls;
    int effects_to_live;  // of last_kind; 0: no end is near
    gs_effect_kind last_kind;
    int64_t away_ns;      // after that end
    bool dies;            // in the midst of a step
    bool power_failed;    // that is why it dies
    int64_t suspended_until_ns, ticked_ns;
    held_event *held, **held_end;
};

// Each life may have another limit for ranks that hear nobody, longer or shorter than they were told before.
static gs_timing draw_timing(sim_world *world) {
    gs_timing timing = gs_timing_default;
    timing.tick_ns = 100 * MILLISECONDS;
    timing.heartbeat_ns = 400 * MILLISECONDS;
    timing.suspect_ns = 1600 * MILLISECONDS;
    timing.dead_ns = 3 * SECONDS;
    timing.settle_ns = 4 * SECONDS;
    timing.grace_ns = 5 * SECONDS;
    timing.hang_least_ns = 6 * SECONDS;
    timing.hang_first_ns = 20 * SECONDS;
    timing.leave_ns = 8 * SECONDS;
    timing.agent_dead_ns = 4 * SECONDS;
    timing.agent_grace_ns = 10 * SECONDS;
    timing.connect_ns = 15 * SECONDS;
    timing.prepare_ns = 15 * SECONDS;
    timing.hello_ns = 20 * SECONDS;
    timing.save_ns = 30 * SECONDS;
    timing.drain_ns = 10 * SECONDS;
    timing.orphan_ns = dice_chance(&world->dice, 0.3) ? LONG_ORPHAN : ORPHAN;
    timing.absent_ns = 8 * SECONDS;
    timing.longest_pace_ns = 0;
    timing.series_keep_ns = 4 * SECONDS;
    return timing;
}

bool coordinator_is_alive(const sim_world *world) { return world->coordinator->engine != NULL; }
uint64_t coordinator_life(const sim_world *world) { return world->coordinator->engine ? world->coordinator->life : 0; }

const gs_engine *coordinator_engine(const sim_world *world) { return world->coordinator->engine; }

const gs_state *coordinator_state(const sim_world *world) {
    return world->coordinator->engine ? gs_engine_state(world->coordinator->engine) : NULL;
}

static open_call *find_call(sim_coordinator *coordinator, gs_call number) {
    for (open_call *call = coordinator->calls; call; call = call->next) {
        if (call->number == number) return call;
    }
    return NULL;
}

static void close_call(sim_coordinator *coordinator, open_call *call) {
    open_call **link = &coordinator->calls;
    while (*link != call) link = &(*link)->next;
    *link = call->next;
    free(call);
}

static void perform_answer(sim_world *world, const gs_effect *effect, bool ends_stream) {
    open_call *call = find_call(world->coordinator, effect->call);
    if (!call || call->is_stream != ends_stream) {
        oracle_fail(world, "call %llu is answered twice, or by the wrong kind of answer",
                    (unsigned long long)effect->call);
        return;
    }
    sim_answer answer = {.request = call->request, .ends_stream = ends_stream};
    answer.status = ends_stream ? effect->ending : effect->reply.status;
    if (!ends_stream) {
        answer.apply = effect->reply.apply;
        answer.save = effect->reply.save;
        answer.job = effect->job ? effect->job->id : 0;
        answer.is_forgotten = call->kind == GS_ON_CREATE_JOB && effect->reply.code && !strcmp(effect->reply.code, "wrong_state");
        answer.state = effect->job ? effect->job->state : GS_JOB_QUEUED;
        if (call->kind == GS_ON_CREATE_JOB && effect->job && !answer.status.code) promises_check_accepted(world, effect->job);
        if (call->kind == GS_ON_STOP_JOB && effect->job && !answer.status.code) promises_check_told(world, effect->job);
        if (effect->reply.kind == GS_REPLY_SETTLE && !answer.status.code)
            sets_answer_settle(world, trainer_find(world, call->caller.id), effect);
        if (effect->reply.kind == GS_REPLY_EXCHANGE && !answer.status.code)
            trainer_find(world, call->caller.id)->exchanged_life = world->coordinator->life;
    }
    peer_answer(world, &call->caller, &answer);
    close_call(world->coordinator, call);
}

static void fill_member_item(sim_item *item, const gs_effect *effect) {
    const gs_run *run = effect->run;
    const gs_member *member = effect->member;
    const gs_member_message *message = &effect->member_message;
    item->member_order = message->order;
    item->job = effect->job->id;
    item->generation = run->generation;
    item->begun_ns = run->begun_ns;
    item->rank = member->rank;
    item->world_size = run->num_members;
    item->base_step = run->base_step;
    item->send_params = message->send_params;
    item->orphan_ns = message->orphan_ns;
    item->save = run->saving;
    if (message->order == GS_TELL_PREPARE || message->order == GS_TELL_REPLAN)
        snprintf(item->plan_hash, sizeof item->plan_hash, "%s", message->facts->hash);
}

static void fill_agent_item(sim_item *item, const gs_effect *effect, const gs_state *state) {
    const gs_agent_message *message = &effect->agent_message;
    item->is_for_agent = true;
    item->agent_order = message->order;
    item->slot = message->slot;
    item->incarnation = message->incarnation;
    item->kill = message->kill;
    item->grace_ns = (int64_t)(message->grace_seconds * (double)SECONDS);
    if (message->order != GS_TELL_START_RANK) return;
    item->slot = effect->member->slot;
    item->job = effect->job->id;
    item->incarnation = effect->member->incarnation;
    item->launch_token = effect->member->launch_token;
    item->last_generation = state->generations.next - 1;
    item->target = effect->job->spec.steps.target;
    item->save_every = effect->job->spec.checkpoint.every_steps;
    if (!message->resume) return;
    item->resume_step = message->resume->step;
    snprintf(item->checkpoint, sizeof item->checkpoint, "%s", message->resume->directory);
}

static void perform_item(sim_world *world, const gs_effect *effect) {
    open_call *call = find_call(world->coordinator, effect->call);
    if (call) call->was_told = true;
    if (!call || !call->is_stream) {
        oracle_fail(world, "an item for call %llu, which is no stream", (unsigned long long)effect->call);
        return;
    }
    sim_item item = {0};
    const gs_cluster *cluster = &coordinator_state(world)->cluster;
    item.request = call->request;
    snprintf(item.cluster, sizeof item.cluster, "%s", cluster->id);
    item.epoch = cluster->epoch;
    item.life = cluster->life;
    if (effect->kind == GS_DO_TELL_MEMBER) fill_member_item(&item, effect);
    else fill_agent_item(&item, effect, coordinator_state(world));
    peer_item(world, &call->caller, &item);
}

static void tell_orders(const sim_world *world, const gs_effect *effect) {
    static const char *const of_members[] = {"welcome", "prepare", "start", "go", "abort", "drain", "replan", "cadence"};
    static const char *const of_agents[] = {"welcome", "start rank", "stop rank", "describe rank", "adopt rank", "cadence"};
    if (effect->kind == GS_DO_TELL_MEMBER)
        world_tell(world, "  coordinator → rank %d of generation %u of %s: %s", gs_member_index(effect->member), effect->run->generation,
                   effect->job->id_text, of_members[effect->member_message.order]);
    else if (effect->kind == GS_DO_TELL_AGENT && effect->agent_message.order < (int)(sizeof of_agents / sizeof *of_agents))
        world_tell(world, "  coordinator → %s: %s%s", effect->agent->name, of_agents[effect->agent_message.order],
                   effect->agent_message.kill ? " (kill)" : "");
    else if (effect->kind == GS_DO_REPLY && effect->reply.status.code)
        world_tell(world, "  coordinator refuses: %s", effect->reply.status.message);
}

static void tell(sim_world *world, const gs_effect *effect) {
    if (!world->options.tells) return;
    tell_orders(world, effect);
    if (effect->kind >= GS_DO_WRITE_JOB && effect->kind <= GS_DO_PURGE)
        world_tell(world, "  coordinator asks the disk: %s %s %s", gs_effect_name(effect->kind),
                   effect->job ? effect->job->id_text : "", effect->text ? effect->text : "");
    if (effect->kind == GS_DO_NOTE)
        world_tell(world, "  coordinator: %s: %s", effect->note.reason, effect->note.message);
    else if (effect->kind == GS_DO_LOG) world_tell(world, "  coordinator logs: %s %s", effect->log.event, effect->text);
}

// The build may be one without assertions.
static void check_log(sim_world *world, const gs_effect *effect) {
    if (strcmp(effect->log.event, "transition refused") == 0) oracle_fail(world, "a transition is refused: %s", effect->text);
}

static void perform(sim_world *world, const gs_effect *effect) {
    tell(world, effect);
    switch (effect->kind) {
    case GS_DO_REPLY: perform_answer(world, effect, false); break;
    case GS_DO_END: perform_answer(world, effect, true); break;
    case GS_DO_TELL_MEMBER:
    case GS_DO_TELL_AGENT: perform_item(world, effect); break;
    case GS_DO_LOG: check_log(world, effect); break;
    default: break;
    }
    oracle_see_effect(world, effect);
    people_see_effect(world, effect);
    disk_perform(world, world->coordinator->life, effect, gs_engine_state(world->coordinator->engine));
}

static void die(sim_world *world);

static bool is_last(sim_coordinator *coordinator, gs_effect_kind kind, bool others_follow) {
    bool counts = coordinator->last_kind == GS_NUM_EFFECTS || coordinator->last_kind == kind;
    if (!coordinator->effects_to_live || !counts || --coordinator->effects_to_live > 0) return false;
    coordinator_ended[kind].all++;
    coordinator_ended[kind].unfinished += others_follow;
    return true;
}

static void step(sim_world *world, gs_engine_event *event) {
    sim_coordinator *coordinator = world->coordinator;
    event->now_ns = world->now_ns;
    event->wall_ms = world->wall_ms;
    event->random = dice_roll(&world->dice);
    world->num_events++;
    oracle_see_event(world, event);
    gs_effects effects = gs_engine_step(coordinator->engine, event);
    oracle_took(world, event, &effects);
    for (size_t i = 0; i < effects.count && !coordinator->dies; i++) {
        perform(world, &effects.items[i]);
        coordinator->dies = is_last(coordinator, effects.items[i].kind, i + 1 < effects.count);
    }
    gs_engine_event_release(event);
    if (coordinator->dies) die(world);
    else oracle_check_state(world);
}

static void step_kind(sim_world *world, gs_engine_event_kind kind) {
    step(world, &(gs_engine_event){.kind = kind, .from = {.generation = -1}});
}

// An event and what is looked at behind it.
static void take(sim_world *world, gs_engine_event *event) {
    step(world, event);
    for (int i = 0; coordinator_is_alive(world) && coordinator_state(world)->schedule_needed; i++) {
        if (i == MAX_TURNS) {
            oracle_fail(world, "the engine asks for turn after turn");
            return;
        }
        step_kind(world, GS_ON_TURN);
    }
}

static bool is_suspended(const sim_world *world) { return world->coordinator->suspended_until_ns > world->now_ns; }

static void hold(sim_world *world, const held_event *what) {
    held_event *held = malloc(sizeof *held);
    *held = *what;
    held->next = NULL;
    *world->coordinator->held_end = held;
    world->coordinator->held_end = &held->next;
}

// An answer that was lost with its connection is given again by the server, which keeps it for the caller's session.
static bool answers_again(sim_world *world, const sim_caller *caller, uint64_t request, gs_engine_event *event) {
    if (event->kind != GS_ON_EXCHANGE || trainer_find(world, caller->id)->exchanged_life != world->coordinator->life) return false;
    peer_answer(world, caller, &(sim_answer){.request = request});
    gs_engine_event_release(event);
    return true;
}

void coordinator_hear(sim_world *world, const sim_caller *caller, uint64_t request, bool is_stream,
                      gs_engine_event *event) {
    sim_coordinator *coordinator = world->coordinator;
    if (!coordinator->engine) {
        gs_engine_event_release(event);
        return;
    }
    if (is_suspended(world)) {
        hold(world, &(held_event){.event = *event, .caller = *caller, .request = request, .is_stream = is_stream});
        return;
    }
    if (answers_again(world, caller, request, event)) return;
    if (request) {
        open_call *call = calloc(1, sizeof *call);
        *call = (open_call){.number = ++coordinator->last_call, .caller = *caller, .request = request,
                            .kind = event->kind, .is_stream = is_stream, .next = coordinator->calls};
        coordinator->calls = call;
        event->from.call = call->number;
    }
    gs_call number = event->from.call;
    take(world, event);
    const open_call *call = number && is_stream ? find_call(coordinator, number) : NULL;
    if (call && !call->was_told) oracle_fail(world, "a hello is neither welcomed nor refused");
}

void coordinator_lose(sim_world *world, uint64_t connection, bool was_closed) {
    sim_coordinator *coordinator = world->coordinator;
    if (!coordinator->engine) return;
    if (is_suspended(world)) {
        hold(world, &(held_event){.is_loss = true, .connection = connection, .was_closed = was_closed});
        return;
    }
    for (open_call *call = coordinator->calls, *next; call; call = next) {
        next = call->next;
        // The server keeps it for the caller's session, which comes back for its answer (answers_again).
        if (call->caller.connection != connection || call->kind == GS_ON_EXCHANGE) continue;
        gs_engine_event event = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
        event.gone.call = call->number;
        event.gone.was_closed = was_closed;
        close_call(coordinator, call);
        take(world, &event);
        if (!coordinator->engine) return;
        next = coordinator->calls;  // others may have been answered meanwhile
    }
}

void coordinator_complete(sim_world *world, uint64_t life, gs_engine_event *event) {
    sim_coordinator *coordinator = world->coordinator;
    if (!coordinator->engine || coordinator->life != life) {
        gs_engine_event_release(event);
        return;
    }
    event->from.generation = -1;
    take(world, event);
}

// The server ends what its caller waits for no longer.
static open_call *find_overdue(sim_world *world) {
    for (open_call *call = world->coordinator->calls; call; call = call->next) {
        if (call->kind == GS_ON_EXCHANGE && call->ticks > EXCHANGE_TICKS) return call;
    }
    return NULL;
}

static void end_overdue(sim_world *world) {
    for (open_call *call; world->coordinator->engine && (call = find_overdue(world));) {
        gs_engine_event event = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
        event.gone.call = call->number;
        peer_answer(world, &call->caller, &(sim_answer){.request = call->request, .status = gs_error(GS_DEADLINE_EXCEEDED, "exchange")});
        close_call(world->coordinator, call);
        take(world, &event);
    }
}

static bool is_held(const sim_world *world, const open_call *call) {
    const gs_state *state = coordinator_state(world);
    if (call->caller.kind == CALLER_AGENT) {
        for (size_t i = 0; i < state->agents.count; i++) {
            if (state->agents.items[i]->stream.call == call->number) return true;
        }
        return false;
    }
    const gs_member *member = gs_state_member(state, trainer_find(world, call->caller.id)->peer.incarnation);
    return member && member->stream.call == call->number;
}

static int most_ticks(const open_call *call) {
    if (call->is_stream) return STREAM_TICKS;
    if (call->kind == GS_ON_SETTLE) return SETTLE_TICKS;
    return call->kind == GS_ON_BYE ? BYE_TICKS : MOST_TICKS;
}

// Each request is answered within a bound, and a stream ends with whom it is for.
static void check_calls(sim_world *world) {
    for (open_call *call = world->coordinator->calls; call; call = call->next) {
        call->ticks = call->is_stream && is_held(world, call) ? 0 : call->ticks + 1;
        if (call->ticks > most_ticks(call))
            oracle_fail(world, call->is_stream ? "the stream of a %s is nobody's and is open for %d ticks" : "a %s is not answered within %d ticks",
                        gs_engine_event_name(call->kind), call->ticks - 1);
    }
    end_overdue(world);
}

// A deadline to settle that was all but over is moved by each standstill (gs_deadlines_skip), and with it the answer.
static void note_standstill(sim_world *world) {
    sim_coordinator *coordinator = world->coordinator;
    int64_t stood_ns = world->now_ns - coordinator->ticked_ns;
    coordinator->ticked_ns = world->now_ns;
    if (stood_ns <= coordinator_state(world)->timing.suspect_ns) return;
    for (open_call *call = coordinator->calls; call; call = call->next) {
        if (call->kind == GS_ON_SETTLE && call->ticks > SETTLE_TICKS - HEARD_TICKS) call->ticks = SETTLE_TICKS - HEARD_TICKS;
    }
}

static void tick(sim_world *world, uint64_t life, void *what) {
    (void)what;
    sim_coordinator *coordinator = world->coordinator;
    if (!coordinator->engine || coordinator->life != life) return;
    if (is_suspended(world)) {
        world_after(world, coordinator->suspended_until_ns - world->now_ns, tick, life, NULL);
        return;
    }
    note_standstill(world);
    // What has come while it stood still: heard before it looks at the time, or behind that.
    if (coordinator->held && dice_chance(&world->dice, 0.5)) step_kind(world, GS_ON_TICK);
    while (coordinator->held && coordinator->engine && coordinator->life == life) {
        held_event *held = coordinator->held;
        coordinator->held = held->next;
        if (!coordinator->held) coordinator->held_end = &coordinator->held;
        if (held->is_loss) coordinator_lose(world, held->connection, held->was_closed);
        else coordinator_hear(world, &held->caller, held->request, held->is_stream, &held->event);
        free(held);
    }
    if (!coordinator->engine || coordinator->life != life) return;
    step_kind(world, GS_ON_TICK);
    if (!coordinator->engine) return;
    check_calls(world);
    if (!coordinator->engine) return;
    if (coordinator_state(world)->schedule_needed) step_kind(world, GS_ON_TURN);
    world_after(world, coordinator_state(world) ? coordinator_state(world)->timing.tick_ns : 0, tick, life, NULL);
}

static void wake(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    sim_coordinator *coordinator = world->coordinator;
    if (coordinator->engine) return;
    gs_timing timing = draw_timing(world);
    coordinator->engine = rows_wake_engine(world, &timing);
    if (!coordinator->engine) {
        world_tell(world, "coordinator: it cannot start");
        world_after(world, SECONDS, wake, 0, NULL);
        return;
    }
    coordinator->life = ++coordinator->num_lives;
    coordinator->effects_to_live = 0;
    coordinator->dies = false;
    coordinator->suspended_until_ns = 0;
    coordinator->ticked_ns = world->now_ns;
    world_tell(world, "coordinator: life %llu begins", (unsigned long long)coordinator->life);
    oracle_begin_life(world);
    uint64_t life = coordinator->life;
    step_kind(world, GS_ON_START);
    world_after(world, timing.tick_ns, tick, life, NULL);
}

static void count_transitions(const gs_engine *engine) {
    for (int machine = 0; machine < GS_NUM_MACHINES; machine++) {
        for (int row = 0; row < GS_MAX_TRANSITIONS; row++)
            coordinator_taken[machine][row] += gs_engine_taken(engine, machine, row);
    }
}

static void drop_all(sim_coordinator *coordinator) {
    while (coordinator->calls) close_call(coordinator, coordinator->calls);
    while (coordinator->held) {
        held_event *held = coordinator->held;
        coordinator->held = held->next;
        if (!held->is_loss) gs_engine_event_release(&held->event);
        free(held);
    }
    coordinator->held_end = &coordinator->held;
}

static void die(sim_world *world) {
    sim_coordinator *coordinator = world->coordinator;
    world_tell(world, "coordinator: life %llu ends", (unsigned long long)coordinator->life);
    count_transitions(coordinator->engine);
    oracle_end_life(world);
    gs_engine_destroy(coordinator->engine);
    coordinator->engine = NULL;
    drop_all(coordinator);
    disk_crash(world, coordinator->power_failed);
    coordinator->power_failed = false;
    peers_lose_coordinator(world);
    world_after(world, coordinator->away_ns, wake, 0, NULL);
}

void coordinator_kill(sim_world *world, int64_t away_ns) {
    if (!world->coordinator->engine) return;
    world->coordinator->away_ns = away_ns;
    die(world);
}

void coordinator_cut_power(sim_world *world, int64_t away_ns) {
    world->coordinator->power_failed = true;
    if (world->coordinator->engine) coordinator_kill(world, away_ns);
    else disk_crash(world, true);
}

void coordinator_kill_at_effect(sim_world *world, gs_effect_kind kind, int effects, int64_t away_ns) {
    world->coordinator->last_kind = kind;
    world->coordinator->effects_to_live = effects;
    world->coordinator->away_ns = away_ns;
}

void coordinator_let_live(sim_world *world) { world->coordinator->effects_to_live = 0; }

static void leave(sim_world *world, uint64_t life, void *what) {
    (void)what;
    if (coordinator_life(world) == life) die(world);
}

void coordinator_shut_down(sim_world *world, int64_t away_ns) {
    sim_coordinator *coordinator = world->coordinator;
    if (!coordinator->engine || is_suspended(world)) return;
    coordinator->away_ns = away_ns;
    step_kind(world, GS_ON_DRAIN);
    world_after(world, dice_delay_ns(&world->dice, 300 * MILLISECONDS), leave, coordinator->life, NULL);
}

int64_t coordinator_stands_ns(const sim_world *world) {
    bool stands = world->coordinator->engine && is_suspended(world);
    return stands ? world->coordinator->suspended_until_ns - world->now_ns : 0;
}

void coordinator_suspend(sim_world *world, int64_t ns) {
    if (!world->coordinator->engine || coordinator_stands_ns(world) >= ns) return;
    world->coordinator->suspended_until_ns = world->now_ns + ns;
    peers_miss_coordinator(world, ns);
}

void coordinator_create(sim_world *world) {
    world->coordinator = calloc(1, sizeof *world->coordinator);
    world->coordinator->held_end = &world->coordinator->held;
    world_after(world, 0, wake, 0, NULL);
}

void coordinator_destroy(sim_world *world) {
    sim_coordinator *coordinator = world->coordinator;
    if (coordinator->engine) {
        count_transitions(coordinator->engine);
        gs_engine_destroy(coordinator->engine);
    }
    drop_all(coordinator);
    free(coordinator);
}
