#include "tests/simulation/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/checkpoint/life_sign.h"
#include "rpc/schema/launch_token.h"
#include "tests/simulation/fences.h"
#include "tests/simulation/files.h"
#include "tests/simulation/group.h"
#include "tests/simulation/model.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"
#include "tests/simulation/standing.h"

#define PLAN_NS (60 * MILLISECONDS)
#define CONNECT_NS (60 * MILLISECONDS)
#define BOOT_NS (200 * MILLISECONDS)
#define HEARTBEAT_NS (400 * MILLISECONDS)
#define SETTLE_ALONE_NS (10 * SECONDS)
#define BYE_ALONE_NS (2 * SECONDS)
#define IDLE_ORPHAN_NS (60 * SECONDS)
#define SAVES_FAIL 0.01
#define ODDITIES 0.003

static sim_trainer *of(sim_peer *peer) { return (sim_trainer *)(void *)peer; }

sim_trainer *trainer_find(const sim_world *world, uint64_t id) {
    for (sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (trainer->peer.id == id) return trainer;
    }
    return NULL;
}

bool trainer_lives(const sim_trainer *trainer) { return trainer->state != TRAINER_GONE; }

gs_membership trainer_membership(const sim_trainer *trainer) {
    switch (trainer->state) {
    case TRAINER_BOOTING: return GS_MEMBERSHIP_UNTOLD;
    case TRAINER_ARMED: return GS_MEMBERSHIP_WAITS;
    case TRAINER_RUNNING: return GS_MEMBERSHIP_TRAINS;
    default: return trainer->state < TRAINER_ARMED ? GS_MEMBERSHIP_FORMS : GS_MEMBERSHIP_LEAVES;
    }
}

bool trainer_moves(const sim_world *world, const sim_trainer *trainer) {
    return trainer_lives(trainer) && peer_moves(world, &trainer->peer);
}

bool trainer_is_led(const sim_world *world, const sim_trainer *trainer) {
    int64_t pulse_ns = trainer->agent->pulse_ns;
    int64_t led_ns = pulse_ns > trainer->answered_ns ? pulse_ns : trainer->answered_ns;
    return !trainer->agent->holds && world->now_ns - led_ns < GS_LIFE_UNSEEN_NS;
}

static int64_t bound_to(const sim_trainer *trainer) { return trainer->generation ? (int64_t)trainer->generation : -1; }

static void end(sim_world *world, sim_trainer *trainer, int exit_code, int signal) {
    if (!trainer_lives(trainer)) return;
    trainer->state = TRAINER_GONE;
    world_tell(world, "trainer %d (rank %d of generation %u) ends: code %d signal %d", trainer->number, trainer->rank,
               trainer->generation, exit_code, signal);
    peer_end(world, &trainer->peer);
    agent_reap(world, trainer->agent, trainer, exit_code, signal);
    if (trainer->group) group_break(world, trainer->group);
}

void trainer_kill(sim_world *world, sim_trainer *trainer, int signal) { end(world, trainer, -1, signal); }

static gs_plan_report report_plan(const sim_trainer *trainer) {
    gs_digest plan, next;
    gs_plan_report report = {.told = gs_digest_parse(&plan, trainer->plan_hash), .plan_step = trainer->plan_step};
    if (report.told) report.plan = gs_digest_fold(plan);
    if (gs_digest_parse(&next, trainer->next_plan_hash)) report.next_plan = gs_digest_fold(next);
    return report;
}

void trainer_switch_plan(sim_trainer *trainer) {
    memcpy(trainer->plan_hash, trainer->next_plan_hash, sizeof trainer->plan_hash);
    trainer->next_plan_hash[0] = '\0';
    trainer->plan_step = trainer->applied_step;
}

void trainer_accuse(sim_world *world, sim_trainer *trainer, gs_fault_kind kind, int rank) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_FAULT, bound_to(trainer));
    trainer->fault = gs_fault_facts_of(kind, rank);
    trainer->fault.reporter = trainer->rank;
    event.fault.facts = &trainer->fault;
    event.fault.text = "as it says";
    if (kind == GS_FAULT_NUMERICS || kind == GS_FAULT_DIVERGENCE || kind == GS_FAULT_DAMAGED) sets_spoilt(world, trainer->generation);
    peer_call(world, &trainer->peer, &event);
}

void trainer_repeat_itself(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_STEP, bound_to(trainer) - 1);
    event.step.applied_step = trainer->applied_step + 1000;
    event.step.step_seconds = 0.3;
    peer_send(world, &trainer->peer, &event);
}

void trainer_lie(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_STEP, bound_to(trainer));
    event.step.applied_step = trainer->applied_step + (int64_t)dice_between(&world->dice, 2, 200);
    event.step.step_seconds = 0.3;
    trainer->has_lied = true;
    sets_lied_to(world, trainer->peer.job);
    world_tell(world, "trainer %d tells of step %lld", trainer->number, (long long)event.step.applied_step);
    peer_send(world, &trainer->peer, &event);
}

void trainer_err(sim_world *world, sim_trainer *trainer) {
    if (!trainer_lives(trainer) || trainer->state >= TRAINER_LEAVING) return;
    bool is_for_good = dice_chance(&world->dice, 0.15);
    bool speaks = trainer->peer.connection && dice_chance(&world->dice, 0.7);
    world_tell(world, "trainer %d has an error%s", trainer->number, is_for_good ? " that stays" : "");
    if (trainer->group) group_break(world, trainer->group);
    if (!speaks) {
        end(world, trainer, is_for_good ? 65 : 1, 0);
        return;
    }
    if (trainer->group && dice_chance(&world->dice, 0.5)) trainer_accuse(world, trainer, GS_FAULT_NUMERICS, trainer->rank);
    trainer_leave(world, trainer, GS_BYE_ERROR, is_for_good ? 65 : 1);
}

void trainer_suspend(sim_world *world, sim_trainer *trainer, int64_t ns) {
    peer_suspend(world, &trainer->peer, ns);
}

static bool owes_report(const sim_trainer *trainer) { return trainer->num_told < trainer->num_saves; }

// One after the other.
static void tell_saved(sim_world *world, sim_trainer *trainer) {
    if (!owes_report(trainer) || trainer->save_request || !peer_hears(world, &trainer->peer)) return;
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_CHECKPOINTED, -1);
    const char *name = trainer->saves[trainer->num_told].name;
    int64_t step = trainer->saves[trainer->num_told].step;
    event.checkpointed = (gs_save_report){.directory = name};
    event.checkpointed.found = (gs_checkpoint_report){.step = step, .bytes = 1000, .world_size = 1};
    if (trainer->saves[trainer->num_told].failed) {
        event.checkpointed.failed = true;
        event.checkpointed.cause = GS_SAVE_SPACE;
        event.checkpointed.error = "no space left on device";
    }
    snprintf(event.checkpointed.found.state_digest, GS_DIGEST_TEXT_LEN, "s%lld", (long long)step);
    trainer->save_request = peer_call(world, &trainer->peer, &event);
}

// Others have taken its place in its directory, or its host does not see that, or has no room there.
static bool is_shut_out(const sim_world *world, const sim_trainer *trainer) {
    bool is_closed = fences_are_above(world, trainer->peer.job, trainer->launch_cluster, trainer->generation);
    return is_closed || world->now_ns < trainer->agent->disk_back_ns || world->now_ns < trainer->agent->room_back_ns;
}

void trainer_save(sim_world *world, sim_trainer *trainer, const char *reason) {
    if (trainer->num_saves == MAX_SAVES) return;
    char *name = trainer->saves[trainer->num_saves].name;
    // No two saves have one name, as in the product, where a whole checkpoint draws 32 bits for it.
    snprintf(name, sizeof trainer->saves[0].name, "step-%lld-g%u-%s-%d.%d", (long long)trainer->applied_step,
             trainer->generation, reason, trainer->number, trainer->num_saves);
    trainer->saves[trainer->num_saves].step = trainer->applied_step;
    bool has_no_room = !world->is_calm && dice_chance(&world->dice, SAVES_FAIL);
    trainer->saves[trainer->num_saves].failed = has_no_room || is_shut_out(world, trainer);
    if (!trainer->saves[trainer->num_saves++].failed)
        files_save(world, trainer->peer.job, name, trainer->applied_step, trainer->generation, trainer->cluster);
    world_tell(world, "trainer %d %s step %lld (%s)", trainer->number, trainer->saves[trainer->num_saves - 1].failed ? "cannot save" : "saves",
               (long long)trainer->applied_step, reason);
    tell_saved(world, trainer);
}

static void say_bye(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_BYE, bound_to(trainer));
    event.bye = (gs_bye_report){.reason = trainer->bye_reason, .exit_code = trainer->exit_code, .class = "", .error = "",
                                .hint = "", .applied_step = trainer->applied_step, .plan = report_plan(trainer)};
    trainer->bye_request = peer_call(world, &trainer->peer, &event);
}

static void wait_for_bye(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_trainer *trainer = trainer_find(world, id);
    if (!trainer_lives(trainer)) return;
    bool waited = world->now_ns - trainer->bye_since_ns >= BYE_ALONE_NS;
    bool hears = peer_hears(world, &trainer->peer);
    if (!hears && waited) {
        end(world, trainer, trainer->exit_code, 0);
        return;
    }
    // What is saved is told before.
    if (hears && !trainer->bye_request && !owes_report(trainer)) say_bye(world, trainer);
    if (hears) tell_saved(world, trainer);
    if (world->now_ns - trainer->bye_since_ns >= 5 * BYE_ALONE_NS) {
        end(world, trainer, trainer->exit_code, 0);
        return;
    }
    world_after(world, 200 * MILLISECONDS, wait_for_bye, id, NULL);
}

void trainer_leave(sim_world *world, sim_trainer *trainer, gs_bye_reason reason, int exit_code) {
    if (!trainer_lives(trainer) || trainer->state == TRAINER_LEAVING) return;
    trainer->state = TRAINER_LEAVING;
    trainer->bye_reason = reason;
    trainer->exit_code = exit_code;
    trainer->bye_since_ns = world->now_ns;
    wait_for_bye(world, trainer->peer.id, NULL);
}

// Nobody can decide: it keeps what it has for certain.
static void settle_alone(sim_world *world, sim_trainer *trainer) {
    world_tell(world, "trainer %d settles alone at step %lld", trainer->number, (long long)trainer->applied_step);
    trainer_save(world, trainer, "orphaned");
    trainer_leave(world, trainer, GS_BYE_OTHER, 75);
}

static void ask_to_settle(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_SETTLE, bound_to(trainer));
    event.settle = (gs_settle_question){.applied_step = trainer->applied_step, .complete = trainer->is_complete};
    trainer->settle_request = peer_call(world, &trainer->peer, &event);
}

static void wait_to_settle(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_trainer *trainer = trainer_find(world, id);
    if (trainer->state != TRAINER_SETTLING) return;
    if (!trainer_moves(world, trainer)) {
        world_after(world, SECONDS, wait_to_settle, id, NULL);
        return;
    }
    int64_t waited_ns = world->now_ns - trainer->settle_since_ns;
    bool hears = peer_hears(world, &trainer->peer);
    if ((!hears && waited_ns >= SETTLE_ALONE_NS) || waited_ns >= 60 * SECONDS) {
        settle_alone(world, trainer);
        return;
    }
    if (hears && !trainer->settle_request) ask_to_settle(world, trainer);
    world_after(world, 300 * MILLISECONDS, wait_to_settle, id, NULL);
}

void trainer_settle(sim_world *world, sim_trainer *trainer) {
    if (!trainer_lives(trainer) || trainer->state >= TRAINER_SETTLING) return;
    bool trained = trainer->state == TRAINER_RUNNING || trainer->state == TRAINER_ARMED;
    trainer->state = TRAINER_SETTLING;
    trainer->settle_since_ns = world->now_ns;
    if (trainer->group) group_break(world, trainer->group);
    if (trained && trainer->group && dice_chance(&world->dice, 0.7)) {
        gs_engine_event event = peer_event(&trainer->peer, GS_ON_FAULT, bound_to(trainer));
        trainer->fault = gs_fault_facts_of(GS_FAULT_PEER_LOST, -1);
        for (int i = 0; i < trainer->group->num_members; i++) {
            const sim_trainer *other = trainer->group->members[i];
            if (!trainer_lives(other)) gs_fault_accuse(&trainer->fault, other->rank);
        }
        event.fault.facts = &trainer->fault;
        event.fault.text = "the communicator broke";
        peer_call(world, &trainer->peer, &event);
    }
    wait_to_settle(world, trainer->peer.id, NULL);
}

// Rank 0 tells in which order gradients came: after the first step, and when it has lost who heard it.
static void tell_order(sim_world *world, sim_trainer *trainer) {
    if (trainer->rank != 0 || trainer->order_is_told || !peer_hears(world, &trainer->peer)) return;
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_READY_ORDER, bound_to(trainer));
    size_t count = model_num_params();
    event.ready_order = (gs_order_report){.order = {.params = malloc(count * sizeof(size_t)), .count = count},
                                          .settled = dice_chance(&world->dice, 0.7)};
    for (size_t i = 0; i < count; i++) event.ready_order.order.params[i] = (count - i + (size_t)trainer->order_shift) % count;
    trainer->order_is_told = event.ready_order.settled;
    peer_call(world, &trainer->peer, &event);
}

void trainer_applied(sim_world *world, sim_trainer *trainer) {
    trainer->applied_step++;
    trainer->is_complete = false;
    tell_order(world, trainer);
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_STEP, bound_to(trainer));
    event.step.applied_step = trainer->applied_step;
    event.step.step_seconds = 0.3;
    peer_send(world, &trainer->peer, &event);
}

static void say_hello(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_HELLO, bound_to(trainer));
    snprintf(trainer->job_text, sizeof trainer->job_text, "%s", "");
    gs_job_id_format(trainer->job_text, trainer->peer.job);
    event.hello = (gs_trainer_hello){.job = trainer->job_text, .cluster = trainer->cluster, .incarnation = trainer->peer.incarnation,
                                     .launch_token = trainer->launch_token, .pid = 1,
                                     .applied_step = trainer->applied_step, .host = trainer->agent->host,
                                     .boot_id = "boot", .params_digest = model_params_digest(), .data_digest = trainer->oddity == ODDITY_DATA ? "other" : "data",
                                     .arithmetic = trainer->oddity == ODDITY_ARITHMETIC ? 2 : 1,
                                     .seen = peer_seen(&trainer->peer)};
    peer_open_stream(world, &trainer->peer, &event);
}

void trainer_forge_hello(sim_world *world, sim_trainer *trainer) {
    if (!trainer->peer.stream_request || !trainer->is_welcome) return;
    uint64_t own = trainer->peer.stream_request;
    trainer->launch_token ^= 1;
    say_hello(world, trainer);
    trainer->launch_token ^= 1;
    trainer->peer.stream_request = own;
    if (!trainer->peer.shown_token) return;
    gs_engine_event step = peer_event(&trainer->peer, GS_ON_STEP, bound_to(trainer));
    step.from.who.token ^= dice_chance(&world->dice, 0.5) ? 2 : step.from.who.token;  // another, or none
    step.step.applied_step = trainer->applied_step + 3;
    peer_send(world, &trainer->peer, &step);
}

static void connected(sim_world *world, sim_peer *peer) {
    sim_trainer *trainer = of(peer);
    trainer->is_welcome = false;
    if (trainer->state >= TRAINER_WAITING) say_hello(world, trainer);
    trainer->settle_request = trainer->bye_request = trainer->save_request = trainer->ready_request = 0;
    trainer->comm_up_request = 0;
    if (!trainer->has_exchanged) trainer->exchange_request = 0;
}

static void lost(sim_world *world, sim_peer *peer) {
    (void)world;
    sim_trainer *trainer = of(peer);
    trainer->is_welcome = trainer->order_is_told = false;
    trainer->settle_request = trainer->bye_request = trainer->save_request = 0;
}

static void send_ready(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_READY, bound_to(trainer));
    event.ready = (gs_ready_report){.plan_hash = trainer->oddity == ODDITY_PLAN ? "xxh3:0123456789abcdef0123456789abcdef" : trainer->plan_hash,
                                     .state_digest = trainer->oddity == ODDITY_STATE ? "other" : "state", .applied_step = trainer->applied_step};
    trainer->ready_request = peer_call(world, &trainer->peer, &event);
}

// A device that hangs when it is opened: the others wait in their exchange.
static bool hangs(sim_world *world, sim_trainer *trainer) {
    if (world->is_calm || !dice_chance(&world->dice, 0.001)) return false;
    world_tell(world, "trainer %d never comes into its communicator", trainer->number);
    trainer_suspend(world, trainer, 100000 * SECONDS);
    return true;
}

static void send_exchange(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_EXCHANGE, bound_to(trainer));
    event.exchange.request = (gs_exchange_request){.tag = "world", .bytes = strdup("abc")};
    trainer->exchange_request = peer_call(world, &trainer->peer, &event);
}

static void send_comm_up(sim_world *world, sim_trainer *trainer) {
    gs_engine_event event = peer_event(&trainer->peer, GS_ON_COMM_UP, bound_to(trainer));
    event.comm_up.backend = "sim";
    trainer->comm_up_request = peer_call(world, &trainer->peer, &event);
}

// What it is about to do waits while it stands still.
static bool waits(sim_world *world, const sim_trainer *trainer, world_deed deed) {
    if (!trainer_lives(trainer) || trainer_moves(world, trainer)) return false;
    world_after(world, trainer->peer.suspended_until_ns - world->now_ns, deed, trainer->peer.id, NULL);
    return true;
}

static void build_plan(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_trainer *trainer = trainer_find(world, id);
    if (waits(world, trainer, build_plan)) return;
    if (trainer->state == TRAINER_PREPARED) send_ready(world, trainer);
}

static void connect_ranks(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_trainer *trainer = trainer_find(world, id);
    if (waits(world, trainer, connect_ranks) || trainer->state != TRAINER_CONNECTING) return;
    trainer->state = TRAINER_ARMED;
    if (trainer->rank == 0) fences_raise(world, trainer->peer.job, trainer->launch_cluster, trainer->generation);
    send_comm_up(world, trainer);
}

static void take_welcome(sim_world *world, sim_trainer *trainer, const sim_item *item) {
    trainer->is_welcome = true;
    trainer->answered_ns = world->now_ns;
    peer_see(&trainer->peer, item);
    if (item->send_params) {
        gs_engine_event event = peer_event(&trainer->peer, GS_ON_PARAMS, -1);
        model_params_page(&event.params.page);
        peer_call(world, &trainer->peer, &event);
    }
    tell_saved(world, trainer);
}

// The one that is in use calls back the one that waits.
static void take_plan(sim_trainer *trainer, const sim_item *item) {
    bool is_same = !strcmp(trainer->plan_hash, item->plan_hash);
    snprintf(trainer->next_plan_hash, sizeof trainer->next_plan_hash, "%s", is_same ? "" : item->plan_hash);
}

static void take_item(sim_world *world, sim_peer *peer, const sim_item *item) {
    sim_trainer *trainer = of(peer);
    if (!trainer_lives(trainer)) return;
    switch (item->member_order) {
    case GS_TELL_WELCOME: take_welcome(world, trainer, item); break;
    case GS_TELL_PREPARE:
        if (trainer->state == TRAINER_WAITING) {
            trainer->generation = item->generation;
            trainer->rank = item->rank;
            trainer->world_size = item->world_size;
            trainer->state = TRAINER_PREPARED;
            snprintf(trainer->plan_hash, sizeof trainer->plan_hash, "%s", item->plan_hash);
            sets_prepared(world, trainer->peer.job, item->generation, item->rank, trainer->peer.incarnation);
        }
        if (trainer->state == TRAINER_PREPARED) world_after(world, dice_delay_ns(&world->dice, PLAN_NS), build_plan, trainer->peer.id, NULL);
        break;
    case GS_TELL_START:
        if (trainer->state == TRAINER_PREPARED) {
            trainer->state = TRAINER_CONNECTING;
            trainer->group = group_join(world, trainer, item);
        }
        if (trainer->state == TRAINER_CONNECTING && !trainer->exchange_request && !hangs(world, trainer)) send_exchange(world, trainer);
        break;
    case GS_TELL_GO:
        if (trainer->state < TRAINER_ARMED && !world->is_of_before)
            oracle_fail(world, "trainer %d is told to go, and is not in its communicator", trainer->number);
        if (trainer->state == TRAINER_ARMED && item->generation == trainer->generation) {
            trainer->state = TRAINER_RUNNING;
            group_try_to_step(world, trainer->group);
        }
        break;
    case GS_TELL_ABORT:
        if (trainer->state == TRAINER_WAITING) trainer_leave(world, trainer, GS_BYE_OTHER, 75);
        else trainer_settle(world, trainer);
        break;
    case GS_TELL_DRAIN:
        if (trainer->group) group_drain(trainer->group);
        break;
    case GS_TELL_REPLAN: take_plan(trainer, item); break;
    case GS_TELL_CADENCE: break;  // its steps come when they come
    }
}

static void take_settlement(sim_world *world, sim_trainer *trainer, const sim_answer *answer) {
    trainer->settle_request = 0;
    if (answer->status.code) {
        settle_alone(world, trainer);
        return;
    }
    if (answer->apply && trainer->is_complete) {
        trainer->applied_step++;
        trainer->is_complete = false;
        sets_settled(world, trainer->peer.job, trainer->generation, trainer->applied_step);
    }
    if (answer->save) trainer_save(world, trainer, "settled");
    trainer_leave(world, trainer, GS_BYE_OTHER, 75);
}

static void refused(sim_world *world, sim_trainer *trainer, gs_status status) {
    world_tell(world, "trainer %d hears: %s", trainer->number, status.message);
    trainer->peer.stream_request = 0;
    trainer->is_welcome = false;
    if (status.code == GS_NOT_FOUND) {  // unknown is not over
        trainer->answered_ns = world->now_ns;
        return;
    }
    if (status.code != GS_ABORTED) return;
    if (trainer->state == TRAINER_WAITING) trainer_leave(world, trainer, GS_BYE_OTHER, 75);
    else trainer_settle(world, trainer);
}

static void take_answer(sim_world *world, sim_peer *peer, const sim_answer *answer) {
    sim_trainer *trainer = of(peer);
    if (!trainer_lives(trainer)) return;
    if (answer->ends_stream) {
        if (answer->request == peer->stream_request) refused(world, trainer, answer->status);
    } else if (answer->request == trainer->settle_request && trainer->state == TRAINER_SETTLING) {
        take_settlement(world, trainer, answer);
    } else if (answer->request == trainer->exchange_request) {
        if (answer->status.code) trainer->exchange_request = 0;
        if (!answer->status.code && trainer->state == TRAINER_CONNECTING) {
            trainer->has_exchanged = true;
            world_after(world, dice_delay_ns(&world->dice, CONNECT_NS), connect_ranks, trainer->peer.id, NULL);
        } else if (answer->status.code) {
            trainer_settle(world, trainer);
        }
    } else if (answer->request == trainer->comm_up_request) {
        trainer->comm_up_request = 0;
    } else if (answer->request == trainer->save_request) {
        trainer->save_request = 0;
        if (!answer->status.code && !trainer->saves[trainer->num_told].failed)
            promises_saved(world, trainer->peer.job, trainer->saves[trainer->num_told].name, trainer->saves[trainer->num_told].step);
        trainer->num_told++;
        tell_saved(world, trainer);
    } else if (answer->request == trainer->bye_request && trainer->state == TRAINER_LEAVING) {
        if (!answer->status.code && trainer->bye_reason == GS_BYE_TARGET_REACHED)
            promises_left(world, trainer->peer.job, trainer->generation, trainer->rank, trainer->world_size);
        end(world, trainer, trainer->exit_code, 0);
    }
}

static const sim_peer_ops ops = {connected, lost, take_item, take_answer};

static void beat(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_trainer *trainer = trainer_find(world, id);
    if (!trainer_lives(trainer)) return;
    world_after(world, HEARTBEAT_NS, beat, id, NULL);
    if (!trainer_moves(world, trainer)) return;
    sim_peer *peer = &trainer->peer;
    bool idle = trainer->state <= TRAINER_CONNECTING;
    if (idle && !peer->connection && world->now_ns - peer->lost_ns > IDLE_ORPHAN_NS) {
        end(world, trainer, 75, 0);
        return;
    }
    bool stood = world->now_ns - trainer->turned_ns >= GS_LIFE_UNSEEN_NS;
    trainer->turned_ns = world->now_ns;
    if (!peer_hears(world, peer) || trainer->state < TRAINER_WAITING) return;
    if (stood && trainer->state < TRAINER_LEAVING) {  // what it has from the coordinator may be from before
        trainer->is_welcome = false;
        say_hello(world, trainer);
    }
    if (trainer->is_welcome) trainer->answered_ns = world->now_ns;
    if (!peer->stream_request && trainer->state < TRAINER_LEAVING) say_hello(world, trainer);
    if (trainer->state == TRAINER_ARMED && !trainer->comm_up_request && trainer->is_welcome) send_comm_up(world, trainer);
    if (trainer->state == TRAINER_CONNECTING && !trainer->exchange_request && trainer->is_welcome) send_exchange(world, trainer);
    tell_saved(world, trainer);
    gs_engine_event event = peer_event(peer, GS_ON_HEARTBEAT, bound_to(trainer));
    event.heartbeat = (gs_heartbeat_report){.applied_step = trainer->applied_step, .rss_bytes = -1, .phase = "forward",
                                            .membership = trainer_membership(trainer), .plan = report_plan(trainer)};
    peer_send(world, peer, &event);
}

static void boot(sim_world *world, uint64_t id, void *what) {
    (void)what;
    sim_trainer *trainer = trainer_find(world, id);
    if (!trainer_lives(trainer)) return;
    if (trainer->resumes_from[0] && !files_read(world, trainer->peer.job, trainer->resumes_from)) {
        standing_unread(world, trainer->peer.job, trainer->resumes_from);
        end(world, trainer, 75, 0);
        return;
    }
    if (!world->is_calm && dice_chance(&world->dice, 0.003)) {
        trainer_err(world, trainer);
        return;
    }
    trainer->state = TRAINER_WAITING;
    if (trainer->peer.connection) say_hello(world, trainer);
    beat(world, id, NULL);
}

// The order was on its way when its coordinator lost that worker, and the rank was given up since: it belongs to no set, and ends when
// either says hello.
static bool is_given_up(const sim_world *world, const sim_trainer *trainer) {
    const gs_state *state = coordinator_state(world);
    const gs_agent *agent = state ? gs_agent_table_find(&state->agents, trainer->agent->name) : NULL;
    const gs_member *member = state ? gs_state_member(state, trainer->peer.incarnation) : NULL;
    return state && !(agent && gs_agent_is_connected(agent)) && !(member && member->stage != GS_MEMBER_EXITED);
}

sim_trainer *trainer_start(sim_world *world, sim_agent *agent, const sim_item *item) {
    sim_trainer *trainer = calloc(1, sizeof *trainer);
    trainer->peer = (sim_peer){.kind = CALLER_TRAINER, .incarnation = item->incarnation, .job = item->job, .ops = &ops,
                               .shown_token = world->is_of_before ? 0 : gs_launch_token_show(item->launch_token), .line = agent->line};
    trainer->agent = agent;
    trainer->turned_ns = trainer->answered_ns = world->now_ns;
    trainer->number = ++world->num_trainers;
    trainer->rank = -1;
    trainer->plan_step = -1;
    trainer->order_shift = (int)dice_between(&world->dice, 0, 1);
    if (!world->is_calm && dice_chance(&world->dice, ODDITIES)) trainer->oddity = (trainer_oddity)dice_between(&world->dice, 1, NUM_ODDITIES - 1);
    trainer->launch_token = item->launch_token;
    trainer->last_generation = item->last_generation;
    memcpy(trainer->cluster, item->cluster, sizeof trainer->cluster);
    memcpy(trainer->launch_cluster, item->cluster, sizeof trainer->launch_cluster);
    trainer->applied_step = item->checkpoint[0] ? item->resume_step : 0;
    snprintf(trainer->resumes_from, sizeof trainer->resumes_from, "%s", item->checkpoint);
    trainer->target = item->target;
    trainer->save_every = item->save_every;
    trainer->next = world->trainers;
    world->trainers = trainer;
    world_tell(world, "%s starts trainer %d from step %lld", agent->name, trainer->number, (long long)trainer->applied_step);
    if (!is_given_up(world, trainer)) promises_check_resume(world, item->job, trainer->applied_step);
    peer_create(world, &trainer->peer);
    world_after(world, dice_delay_ns(&world->dice, BOOT_NS), boot, trainer->peer.id, NULL);
    return trainer;
}

static void end_of_grace(sim_world *world, uint64_t id, void *what) {
    (void)what;
    end(world, trainer_find(world, id), -1, 9);
}

void trainer_stop(sim_world *world, sim_trainer *trainer, int64_t grace_ns) {
    if (!trainer_lives(trainer)) return;
    if (grace_ns <= 0) {
        trainer_kill(world, trainer, 9);
        return;
    }
    world_after(world, grace_ns, end_of_grace, trainer->peer.id, NULL);
    // Asked to: it takes its generation along when that is whole, and else itself.
    if (trainer->state == TRAINER_RUNNING && trainer->group && !trainer->group->is_broken) group_drain(trainer->group);
    else if (trainer->state < TRAINER_SETTLING) trainer_leave(world, trainer, GS_BYE_OTHER, 0);
}

void trainers_destroy(sim_world *world) {
    while (world->trainers) {
        sim_trainer *trainer = world->trainers;
        world->trainers = trainer->next;
        free(trainer);
    }
    groups_destroy(world);
}
