// Every message of a trainer in every state that a trainer can be in: one table says what becomes of each pair. Then the
// same messages from whoever is not that trainer any more, or never was: refused in every state, and nothing changes.
// Rows M3, M7 of docs/faults.md.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "rpc/schema/launch_token.h"
#include "tests/unit/coordinator/engine_play.h"

#define SELF 0
#define OTHER 1

static const gs_engine_event_kind messages[] = {GS_ON_HELLO,     GS_ON_PARAMS, GS_ON_READY, GS_ON_EXCHANGE,
                                                GS_ON_COMM_UP,   GS_ON_HEARTBEAT, GS_ON_STEP, GS_ON_FAULT,
                                                GS_ON_SETTLE,    GS_ON_CHECKPOINTED, GS_ON_BYE, GS_ON_READY_ORDER};
#define NUM_MESSAGES (sizeof messages / sizeof messages[0])

static void both(gs_play *play, gs_engine_event_kind kind) {
    gs_play_say(play, OTHER, kind);
    gs_play_say(play, SELF, kind);
}

static void to_here(gs_play *play) { gs_play_say(play, SELF, GS_ON_HELLO); }

static void to_preparing(gs_play *play) {
    both(play, GS_ON_HELLO);
    gs_play_say(play, OTHER, GS_ON_PARAMS);
}

static void to_ready(gs_play *play) {
    to_preparing(play);
    gs_play_say(play, SELF, GS_ON_READY);
}

static void to_connecting(gs_play *play) {
    to_ready(play);
    gs_play_say(play, OTHER, GS_ON_READY);
}

static void to_up(gs_play *play) {
    to_connecting(play);
    gs_play_say(play, SELF, GS_ON_COMM_UP);
}

static void to_training(gs_play *play) {
    to_up(play);
    gs_play_say(play, OTHER, GS_ON_COMM_UP);
    both(play, GS_ON_STEP);
}

static void to_reloading(gs_play *play) {
    to_training(play);
    gs_play_reopen(play);
}

static void to_aborted(gs_play *play) {
    to_training(play);
    gs_play_say(play, OTHER, GS_ON_SETTLE);
}

static void to_asking(gs_play *play) {
    to_training(play);
    gs_play_say(play, SELF, GS_ON_SETTLE);
}

static void to_settled(gs_play *play) {
    to_asking(play);
    gs_play_say(play, OTHER, GS_ON_SETTLE);
}

static void to_leaving(gs_play *play) {
    to_training(play);
    gs_engine_event bye = gs_play_message(play, SELF, GS_ON_BYE);
    bye.bye.reason = GS_BYE_TARGET_REACHED;
    gs_play_hear(play, &bye);
}

static void to_left(gs_play *play) {
    to_settled(play);
    gs_play_say(play, SELF, GS_ON_BYE);
}

static void to_exited(gs_play *play) {
    to_left(play);
    gs_play_say(play, SELF, GS_ON_EXITED);
}

// Others have taken its place; it speaks with what it was.
static void to_replaced(gs_play *play) {
    to_exited(play);
    const gs_play_rank was = play->ranks[SELF];
    gs_play_say(play, OTHER, GS_ON_EXITED);
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_true(play->ranks[SELF].incarnation != was.incarnation);
    play->ranks[SELF] = was;
}

static void to_launched(gs_play *play) { (void)play; }

// What becomes of a message, in the order of `messages`: r refused, i answered, both without a trace; n noted, and nobody moves on;
// m the run or a trainer moves on. What is repeated to a later life of the coordinator is answered.
static const struct {
    const char *name;
    void (*reach)(gs_play *play);
    const char *phase, *stage;
    const char *outcomes;
} states[] = {
    {"launched", to_launched, "launching", "launched", "mrrrrnrrrrmr"},
    {"here", to_here, "launching", "here", "inirinrmmnmr"},
    {"preparing", to_preparing, "preparing", "here", "iimrinrmmnmr"},
    {"ready", to_ready, "preparing", "ready", "iiirinrmmnmr"},
    {"connecting", to_connecting, "connecting", "ready", "iiinmnrmmnmr"},
    {"up", to_up, "connecting", "up", "iiininrmmnmr"},
    {"training", to_training, "training", "up", "iiininnmmnmn"},
    {"reloading", to_reloading, "reloading", "up", "niirinnmmnmr"},
    {"aborted", to_aborted, "settling", "up", "iiirinnimnmr"},
    {"asking", to_asking, "settling", "settling", "iiirinniinmr"},
    {"settled", to_settled, "ending", "settled", "iiirinnirnmr"},
    {"leaving", to_leaving, "training", "leaving", "iirrrnrrrnnr"},
    {"left", to_left, "ending", "leaving", "iirrrnrrrnir"},
    {"exited", to_exited, "ending", "exited", "rrrrrrrrrrrr"},
    {"replaced", to_replaced, "launching", "launched", "rrrrrrrrrrrr"},
};
#define NUM_STATES (sizeof states / sizeof states[0])

// Phase and stages alone.
static void describe_place(char text[200], const gs_play *play) {
    const gs_run *run = gs_play_run(play);
    int length = snprintf(text, 200, "%s", run ? gs_run_phase_name(run->phase) : "none");
    for (int i = 0; run && i < run->num_members; i++)
        length += snprintf(text + length, 200 - (size_t)length, " %s", gs_member_stage_name(run->members[i].stage));
}

static void reach(gs_play *play, size_t state) {
    gs_play_open(play);
    states[state].reach(play);
    const gs_run *run = gs_play_run(play);
    assert_non_null(run);
    assert_string_equal(gs_run_phase_name(run->phase), states[state].phase);
    assert_string_equal(gs_member_stage_name(run->members[SELF].stage), states[state].stage);
}

static char outcome_of(gs_play *play, gs_engine_event *event) {
    char place[200], place_after[200];
    char *before = gs_play_describe(play);
    describe_place(place, play);
    bool wants_answer = event->from.call != 0;
    gs_play_hear(play, event);
    char *after = gs_play_describe(play);
    describe_place(place_after, play);
    bool same = !strcmp(before, after), refused = wants_answer ? play->answered && play->answer.code : !event->was_admitted;
    char outcome = strcmp(place, place_after) != 0 ? 'm' : !same ? 'n' : refused ? 'r' : 'i';
    free(before);
    free(after);
    return outcome;
}

static void each_message_in_each_state_does_what_the_table_says(void **unused) {
    (void)unused;
    bool as_said = true;
    for (size_t s = 0; s < NUM_STATES; s++) {
        char outcomes[NUM_MESSAGES + 1] = {0};
        assert_int_equal(strlen(states[s].outcomes), NUM_MESSAGES);
        for (size_t m = 0; m < NUM_MESSAGES; m++) {
            gs_play play;
            reach(&play, s);
            gs_engine_event event = gs_play_message(&play, SELF, messages[m]);
            outcomes[m] = outcome_of(&play, &event);
            gs_play_close(&play);
        }
        if (!strcmp(outcomes, states[s].outcomes)) continue;
        as_said = false;
        print_error("%-12s is %s, the table says %s\n", states[s].name, outcomes, states[s].outcomes);
    }
    assert_true(as_said);
}

// A trainer that was started from a checkpoint tells its step from its hello on.
static void a_job_runs_when_its_ranks_step_and_not_before(void **unused) {
    (void)unused;
    for (size_t s = 0; s < NUM_STATES; s++) {
        gs_play play;
        reach(&play, s);
        gs_engine_event beat = gs_play_message(&play, SELF, GS_ON_HEARTBEAT);
        beat.heartbeat.applied_step = 100;
        const gs_run *run = gs_play_run(&play);
        bool trains = run->phase >= GS_RUN_TRAINING, is_there = run->members[SELF].stage != GS_MEMBER_EXITED;
        int64_t step = run->step;
        gs_play_hear(&play, &beat);
        assert_int_equal(run->step, trains && is_there ? 100 : step);
        if (!trains) assert_int_not_equal(run->job->state, GS_JOB_RUNNING);
        gs_play_close(&play);
    }
}

// One way to be somebody else each. False where it makes no difference to this message.
typedef bool (*disguise)(gs_engine_event *event);

static bool is_bound(const gs_engine_event *event) {
    return event->kind != GS_ON_HELLO && event->kind != GS_ON_PARAMS && event->kind != GS_ON_HEARTBEAT &&
           event->kind != GS_ON_CHECKPOINTED && event->kind != GS_ON_BYE;
}

static bool of_older_incarnation(gs_engine_event *event) {
    event->from.who.incarnation ^= 1;
    if (event->kind == GS_ON_HELLO) event->hello.incarnation ^= 1;
    return true;
}

static bool of_another_connection(gs_engine_event *event) {
    event->from.who.incarnation ^= 1;
    return event->kind == GS_ON_HELLO;
}

static bool of_another_job(gs_engine_event *event) {
    event->from.who.job ^= 1;
    if (event->kind == GS_ON_HELLO) event->hello.job = "j-aaaaaaaaaaaa";
    return true;
}

static bool of_older_generation(gs_engine_event *event) {
    event->from.generation--;
    return is_bound(event);
}

static bool of_newer_generation(gs_engine_event *event) {
    event->from.generation++;
    return is_bound(event);
}

static bool of_another_launch(gs_engine_event *event) {
    if (event->kind == GS_ON_HELLO) event->hello.launch_token ^= 1;
    return event->kind == GS_ON_HELLO;
}

static bool of_another_cluster(gs_engine_event *event) {
    if (event->kind == GS_ON_HELLO) event->hello.cluster = "elsewhere";
    return event->kind == GS_ON_HELLO;
}

static bool with_another_workers_key(gs_engine_event *event) {
    event->from.who.principal = (gs_principal){.is_known = true, .name = "somebody"};
    return true;
}

static bool with_another_pools_key(gs_engine_event *event) {
    event->from.who.principal = (gs_principal){.is_known = true, .is_pool = true, .name = "somebody"};
    return true;
}

static bool with_another_launch_token(gs_engine_event *event) {
    event->from.who.token ^= 2;
    return true;
}

static bool without_launch_token(gs_engine_event *event) {
    event->from.who.token = 0;
    return true;
}

static const struct {
    const char *name;
    disguise put_on;
} disguises[] = {
    {"an older incarnation", of_older_incarnation}, {"another connection", of_another_connection},
    {"another job", of_another_job},                {"an older generation", of_older_generation},
    {"a newer generation", of_newer_generation},    {"another launch", of_another_launch},
    {"another cluster", of_another_cluster},       {"another worker's key", with_another_workers_key},
    {"another pool's key", with_another_pools_key},
    {"another launch token", with_another_launch_token}, {"no launch token", without_launch_token},
};

static void whoever_is_somebody_else_changes_nothing(void **unused) {
    (void)unused;
    for (size_t s = 0; s < NUM_STATES; s++) {
        for (size_t m = 0; m < NUM_MESSAGES; m++) {
            for (size_t d = 0; d < sizeof disguises / sizeof disguises[0]; d++) {
                gs_play play;
                reach(&play, s);
                gs_engine_event event = gs_play_message(&play, SELF, messages[m]);
                bool matters = disguises[d].put_on(&event);
                char outcome = matters ? outcome_of(&play, &event) : 'r';
                if (!matters) gs_engine_event_release(&event);
                if (outcome != 'r')
                    print_error("%s in %s from %s: %c\n", gs_engine_event_name(messages[m]), states[s].name,
                                disguises[d].name, outcome);
                gs_play_close(&play);
                assert_int_equal(outcome, 'r');
            }
        }
    }
}

// Their worker does not say that they show it.
static void trainers_of_before_are_heard_without_a_token(void **unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) {
        gs_play play;
        gs_play_open(&play);
        gs_member *member = gs_state_member(gs_engine_state(play.engine), play.ranks[SELF].incarnation);
        member->shows_token = play.shows_tokens = false;
        gs_engine_event hello = gs_play_message(&play, SELF, GS_ON_HELLO);
        if (i) hello.from.who.token = gs_launch_token_show(play.ranks[SELF].launch_token);
        gs_play_hear(&play, &hello);
        assert_true(hello.was_admitted);
        gs_engine_event beat = gs_play_message(&play, SELF, GS_ON_HEARTBEAT);
        gs_play_hear(&play, &beat);
        assert_int_equal(beat.was_admitted, i == 0);  // who has shown one goes on to do so
        gs_play_close(&play);
    }
}

// With and without an agent's own hello behind it.
static void nobody_ends_another_workers_trainer(void **unused) {
    (void)unused;
    static const uint64_t senders[] = {GS_PLAY_AGENT, GS_PLAY_AGENT + 1};
    for (int i = 0; i < 2; i++) {
        gs_play play;
        gs_play_open(&play);
        gs_play_train(&play);
        const gs_state *state = gs_engine_state(play.engine);
        gs_engine_event event = {.kind = GS_ON_EXITED,
                                 .from = {.call = ++play.last_call, .who.incarnation = senders[i], .generation = -1,
                                          .who.principal = {.is_known = true, .name = "somebody"}},
                                 .exited = {.incarnation = play.ranks[SELF].incarnation, .exit_code = 1}};
        gs_play_hear(&play, &event);
        assert_false(event.was_admitted);
        assert_int_equal(play.answer.code, GS_PERMISSION_DENIED);
        assert_int_equal(gs_state_member(state, play.ranks[SELF].incarnation)->stage, GS_MEMBER_UP);
        gs_play_close(&play);
    }
}

// A worker's heartbeat says that it ends, which would keep jobs away from it.
static void nobody_speaks_for_another_worker(void **unused) {
    (void)unused;
    static const char *const keys[] = {"somebody", "w"};
    for (int i = 0; i < 2; i++) {
        gs_play play;
        gs_play_open(&play);
        gs_engine_event event = {.kind = GS_ON_AGENT_HEARTBEAT,
                                 .from = {.who.incarnation = GS_PLAY_AGENT, .generation = -1,
                                          .who.principal = {.is_known = true, .name = keys[i]}},
                                 .agent_heartbeat = {.is_leaving = true}};
        gs_play_hear(&play, &event);
        const gs_state *state = gs_engine_state(play.engine);
        assert_int_equal(gs_agent_table_of_incarnation(&state->agents, GS_PLAY_AGENT)->is_leaving, i);
        gs_play_close(&play);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_message_in_each_state_does_what_the_table_says),
        cmocka_unit_test(a_job_runs_when_its_ranks_step_and_not_before),
        cmocka_unit_test(nobody_ends_another_workers_trainer),
        cmocka_unit_test(nobody_speaks_for_another_worker),
        cmocka_unit_test(trainers_of_before_are_heard_without_a_token),
        cmocka_unit_test(whoever_is_somebody_else_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
