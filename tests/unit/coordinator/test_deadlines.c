// When the engine judges, to the tick: who is silent, who hangs, what a restart of the coordinator does to either; and that
// it goes by the time that has passed, whatever the wall says.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define BEAT_NS gs_timing_default.heartbeat_ns
#define PROMISED_NS (25 * gs_timing_default.tick_ns)  // behind its deadline a verdict comes within that
#define LONG_NS (300 * GS_NS_PER_SEC)
#define DAY_MS INT64_C(86400000)
#define FIRST_STEPS 20  // deadlines.c
#define OTHER_AGENT 8   // its incarnation

// How the ranks live.
typedef struct manners {
    bool silent[GS_PLAY_RANKS], waits[GS_PLAY_RANKS], stepping;
    int64_t wall_jump_ms;  // at each beat, there and back
} manners;

static const manners healthy = {.stepping = true};

static void both(gs_play *play, gs_engine_event_kind kind) {
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, kind);
}

static void connect_ranks(gs_play *play) {
    both(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    both(play, GS_ON_READY);
    both(play, GS_ON_COMM_UP);
    both(play, GS_ON_STEP);
}

static void beat(gs_play *play, const manners *how) {
    gs_engine_event agent = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = GS_PLAY_AGENT, .generation = -1}};
    play->wall_ms += how->wall_jump_ms;
    gs_play_hear(play, &agent);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        if (how->silent[i]) continue;
        gs_engine_event event = gs_play_message(play, i, GS_ON_HEARTBEAT);
        event.heartbeat.activity = how->waits[i] ? GS_ACTIVITY_WAITS : GS_ACTIVITY_OTHER;
        gs_play_hear(play, &event);
    }
    if (how->stepping) gs_play_say(play, 0, GS_ON_STEP);
    play->wall_ms -= how->wall_jump_ms;
}

static bool is_judged(const gs_play *play) {
    const gs_run *run = gs_play_run(play);
    return !run || run->phase >= GS_RUN_SETTLING;
}

// Until there is a verdict, or for so long: how long it was.
static int64_t live(gs_play *play, const manners *how, int64_t ns) {
    int64_t begin_ns = play->now_ns, beat_ns = begin_ns;
    while (play->now_ns - begin_ns < ns && !is_judged(play)) {
        gs_play_wait(play, gs_timing_default.tick_ns);
        if (play->now_ns - beat_ns < BEAT_NS || is_judged(play)) continue;
        beat_ns = play->now_ns;
        beat(play, how);
    }
    return play->now_ns - begin_ns;
}

static void open_training(gs_play *play) {
    gs_play_open(play);
    connect_ranks(play);
    gs_play_run(play)->job->spec.reducer.timeout_seconds = 1;
    live(play, &healthy, 3 * GS_NS_PER_SEC);
    assert_false(is_judged(play));
    assert_true(gs_play_run(play)->step > FIRST_STEPS);
}

static void assert_verdict(const gs_play *play, const char *reason, int member) {
    const gs_run_cause *cause = &gs_play_run(play)->cause;
    assert_true(cause->set);
    assert_string_equal(cause->reason, reason);
    assert_int_equal(cause->member, member);
}

static void assert_within(int64_t ns, int64_t deadline_ns) {
    assert_true(ns >= deadline_ns - BEAT_NS);  // the last word came up to a beat before
    assert_true(ns <= deadline_ns + PROMISED_NS);
}

static void who_is_silent_is_judged_in_time(void **unused) {
    (void)unused;
    for (int who = 0; who < GS_PLAY_RANKS; who++) {
        gs_play play;
        open_training(&play);
        manners how = {.waits = {true, true}};
        how.silent[who] = true;
        assert_within(live(&play, &how, LONG_NS), gs_timing_default.dead_ns);
        assert_verdict(&play, "WorkerSilent", who);
        gs_play_close(&play);
    }
}

// Among many each run has its turn: a verdict comes some ticks later, and is the same.
static void who_is_silent_among_many_is_judged_in_time(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    ((gs_timing *)(uintptr_t)&gs_engine_state(play.engine)->timing)->ranks_a_tick = 1;  // as if they were thrice as many as a tick looks at
    manners how = {.waits = {true, true}, .silent = {false, true}};
    assert_within(live(&play, &how, LONG_NS), gs_timing_default.dead_ns);
    assert_verdict(&play, "WorkerSilent", 1);
    gs_play_close(&play);
}

// Its ranks are not heard either: that is all that becomes of it.
static void a_worker_that_is_not_heard_is_lost_in_time(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    play.watched_reason = "WorkerLost";
    gs_play_lose_worker(&play);
    gs_play_wait(&play, gs_timing_default.agent_dead_ns - BEAT_NS);
    assert_int_equal(play.num_watched, 0);
    gs_play_wait(&play, BEAT_NS + PROMISED_NS);
    assert_int_equal(play.num_watched, 1);
    gs_play_wait(&play, 20 * gs_timing_default.agent_dead_ns);
    assert_int_equal(play.num_watched, 1);
    assert_false(is_judged(&play));
    gs_play_close(&play);
}

// Of the time in which the coordinator stood nothing counts; what is silent behind it is judged as ever.
static void a_coordinator_that_stood_judges_from_then_on(void **unused) {
    (void)unused;
    // The shorter one is too short to silence everybody.
    for (int64_t stood_ns = 600 * GS_NS_PER_MS; stood_ns <= 30 * GS_NS_PER_SEC; stood_ns *= 50) {
        gs_play play;
        open_training(&play);
        play.now_ns += stood_ns;
        live(&play, &healthy, 10 * GS_NS_PER_SEC);
        assert_false(is_judged(&play));
        manners how = {.waits = {true, true}};
        how.silent[1] = true;
        live(&play, &how, gs_timing_default.dead_ns * 4 / 5);
        play.now_ns += stood_ns;
        assert_within(live(&play, &how, LONG_NS), gs_timing_default.dead_ns);
        assert_verdict(&play, "WorkerSilent", 1);
        gs_play_close(&play);
    }
}

// What it hears first behind that counts from then on: a rank that never answers is waited for no longer than ever.
static void what_is_heard_behind_a_standstill_has_its_own_time(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    play.now_ns += 3600 * GS_NS_PER_SEC;
    gs_play_say(&play, 1, GS_ON_SETTLE);
    gs_call asked = play.last_call;
    int64_t asked_ns = play.now_ns;
    gs_status answer;
    while (!gs_play_is_answered(&play, asked, &answer) && play.now_ns - asked_ns < LONG_NS)
        gs_play_wait(&play, gs_timing_default.tick_ns);
    assert_in_range(play.now_ns - asked_ns, gs_timing_default.settle_ns, gs_timing_default.settle_ns + PROMISED_NS);
    gs_play_close(&play);
}

// Its deadline passed while the coordinator stood, or a moment before: what it said meanwhile is heard first.
static void who_was_all_but_late_then_is_heard_first(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    both(&play, GS_ON_HELLO);
    gs_play_say(&play, 0, GS_ON_PARAMS);
    gs_play_say(&play, 0, GS_ON_READY);
    const manners how = {.waits = {false}};
    live(&play, &how, gs_timing_default.prepare_ns - gs_timing_default.tick_ns);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_PREPARING);
    play.now_ns += 30 * GS_NS_PER_SEC;
    gs_play_wait(&play, BEAT_NS);
    assert_false(is_judged(&play));
    gs_play_say(&play, 1, GS_ON_READY);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_CONNECTING);
    assert_within(live(&play, &how, LONG_NS), gs_timing_default.connect_ns);
    gs_play_close(&play);
}

static void who_died_while_nobody_looked_is_missed_at_once(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    gs_play_reopen_without_worker(&play);
    gs_play_wait(&play, GS_NS_PER_SEC);
    play.ranks[1].is_gone = true;
    gs_play_find_worker(&play);
    gs_play_wait(&play, PROMISED_NS);
    assert_true(is_judged(&play));
    assert_verdict(&play, "WorkerLost", 1);
    gs_play_close(&play);
}

static void who_hangs_is_named_in_time(void **unused) {
    (void)unused;
    static const double timeouts[] = {1, 10, 30};  // seconds, of a collective
    for (int who = 0; who < GS_PLAY_RANKS; who++) {
        for (size_t i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
            gs_play play;
            int64_t hang_ns = (int64_t)(2 * timeouts[i] * GS_NS_PER_SEC);
            if (hang_ns < gs_timing_default.hang_least_ns) hang_ns = gs_timing_default.hang_least_ns;
            open_training(&play);
            gs_play_run(&play)->job->spec.reducer.timeout_seconds = timeouts[i];
            manners how = {.waits = {true, true}};
            how.waits[who] = false;
            assert_within(live(&play, &how, LONG_NS), hang_ns);
            assert_verdict(&play, "WorkerHung", who);
            gs_play_close(&play);
        }
    }
}

// Where each rank tells of its steps every three seconds, no step for five is no hang.
static void who_is_seldom_heard_has_time_to_tell(void **unused) {
    (void)unused;
    const int64_t seldom_ns = 3 * GS_NS_PER_SEC;
    for (int how_told = 0; how_told < 2; how_told++) {
        gs_play play;
        open_training(&play);
        gs_cadence *told = &gs_play_run(&play)->members[1].told;
        *(how_told ? &told->report_ns : &told->heartbeat_ns) = seldom_ns;
        const manners how = {.waits = {false, true}};
        assert_within(live(&play, &how, LONG_NS), 3 * seldom_ns);
        assert_verdict(&play, "WorkerHung", 0);
        gs_play_close(&play);
    }
}

static void say_bye(gs_play *play, int rank) {
    gs_engine_event bye = gs_play_message(play, rank, GS_ON_BYE);
    bye.bye.reason = GS_BYE_TARGET_REACHED;
    bye.bye.exit_code = 0;
    gs_play_hear(play, &bye);
}

// At the target ranks evaluate and save before they leave: that is long work, and not endless.
static void who_hangs_at_the_end_is_named_in_time(void **unused) {
    (void)unused;
    for (int who = 0; who < GS_PLAY_RANKS; who++) {
        for (int left = 0; left < 2; left++) {  // has the other one?
            gs_play play;
            open_training(&play);
            gs_job *job = gs_play_run(&play)->job;
            job->spec.steps.target = gs_play_run(&play)->step;
            if (left) say_bye(&play, 1 - who);
            manners how = {.waits = {true, true}};
            how.waits[who] = false;
            how.silent[1 - who] = left;
            assert_within(live(&play, &how, LONG_NS), 10 * gs_timing_default.hang_least_ns);
            assert_verdict(&play, "WorkerHung", who);
            gs_play_close(&play);
        }
    }
}

// Its last word is known: nothing is lost with its process.
static void who_has_said_bye_and_does_not_end_is_ended(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    gs_play_run(&play)->job->spec.steps.target = gs_play_run(&play)->step;
    for (int i = 0; i < GS_PLAY_RANKS; i++) say_bye(&play, i);
    gs_engine_event ended = gs_play_message(&play, 0, GS_ON_EXITED);
    ended.exited.exit_code = 0;
    gs_play_hear(&play, &ended);
    const manners how = {.silent = {true, true}};
    live(&play, &how, gs_timing_default.save_ns - GS_NS_PER_SEC);
    assert_false(play.ranks[1].ordered_to_die);
    live(&play, &how, 2 * GS_NS_PER_SEC);
    assert_true(play.ranks[1].ordered_to_die);
    gs_engine_event killed = gs_play_message(&play, 1, GS_ON_EXITED);
    killed.exited.exit_code = -1;
    killed.exited.signal = 9;
    gs_play_hear(&play, &killed);
    live(&play, &how, GS_NS_PER_SEC);
    assert_int_equal(gs_job_table_get(&gs_engine_state(play.engine)->jobs, play.job)->state, GS_JOB_SUCCEEDED);
    gs_play_close(&play);
}

// Loading and compiling are not hanging.
static void the_first_steps_may_take_longer(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    connect_ranks(&play);
    gs_play_run(&play)->job->spec.reducer.timeout_seconds = 1;
    const manners how = {.waits = {true, false}};
    assert_within(live(&play, &how, LONG_NS), gs_timing_default.hang_first_ns);
    assert_verdict(&play, "WorkerHung", 1);
    gs_play_close(&play);
}

static void a_restart_of_the_coordinator_judges_nobody_who_comes_back(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    uint32_t generation = gs_play_run(&play)->generation;
    gs_play_reopen(&play);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_RELOADING);
    both(&play, GS_ON_HELLO);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(&play)->job->state, GS_JOB_RUNNING);
    live(&play, &healthy, 30 * GS_NS_PER_SEC);
    assert_false(is_judged(&play));
    assert_int_equal(gs_play_run(&play)->generation, generation);
    gs_play_close(&play);
}

// A job that was further before it had to go back to an older checkpoint: the steps of now are progress, whatever was
// reached then, and a later life of the coordinator knows it, too.
static void steps_below_what_was_reached_before_are_progress(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    live(&play, &healthy, 60 * GS_NS_PER_SEC);
    int64_t reached = gs_play_run(&play)->step;
    both(&play, GS_ON_EXITED);
    for (int i = 0; i < 100 && !gs_play_run(&play); i++) gs_play_wait(&play, BEAT_NS);
    assert_non_null(gs_play_run(&play));
    connect_ranks(&play);
    live(&play, &healthy, 3 * GS_NS_PER_SEC);
    assert_true(gs_play_run(&play)->step < reached / 2);
    gs_play_reopen(&play);
    both(&play, GS_ON_HELLO);
    int64_t step = gs_play_run(&play)->step;
    assert_true(step < reached / 2);
    gs_play_run(&play)->job->spec.reducer.timeout_seconds = 1;
    live(&play, &healthy, 3 * gs_timing_default.hang_least_ns);
    assert_false(is_judged(&play));
    assert_true(gs_play_run(&play)->step > step && gs_play_run(&play)->step < reached);
    gs_play_close(&play);
}

static const gs_job *job_of(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

// Deadlines of ranks and of the job, pauses between restarts, and the age that a later life reads from the record.
static void the_wall_clock_decides_nothing(void **unused) {
    (void)unused;
    const int64_t jumps_ms[] = {DAY_MS, -DAY_MS};
    for (int i = 0; i < 2; i++) {
        gs_play play;
        open_training(&play);
        gs_play_run(&play)->job->spec.steps.deadline_seconds = 60;
        manners how = healthy;
        how.wall_jump_ms = jumps_ms[i];
        live(&play, &how, 20 * GS_NS_PER_SEC);
        play.wall_ms += jumps_ms[i];  // and stays there
        live(&play, &healthy, 10 * GS_NS_PER_SEC);
        assert_false(is_judged(&play));
        gs_play_reopen(&play);
        gs_play_run(&play)->job->spec.steps.deadline_seconds = 60;
        play.wall_ms += jumps_ms[i];
        both(&play, GS_ON_HELLO);
        live(&play, &healthy, 20 * GS_NS_PER_SEC);
        assert_false(is_judged(&play));
        assert_int_equal(job_of(&play)->state, GS_JOB_RUNNING);
        live(&play, &healthy, 10 * GS_NS_PER_SEC);
        assert_string_equal(job_of(&play)->stop_reason, "DeadlineExceeded");
        gs_play_close(&play);
    }
}

// Its process is there, and stands somewhere on its way: its slot is another's by then. The others have come, or nobody has.
static void who_never_says_hello_is_ended_in_time(void **unused) {
    (void)unused;
    for (int others = 0; others < 2; others++) {
        gs_play play;
        gs_play_open(&play);
        if (others) gs_play_say(&play, 0, GS_ON_HELLO);
        const manners how = {.waits = {true, true}, .silent = {!others, true}};
        assert_within(live(&play, &how, LONG_NS), gs_timing_default.hello_ns);
        assert_verdict(&play, "WorkerLate", others);
        gs_play_wait(&play, BEAT_NS);
        for (int i = 0; i < GS_PLAY_RANKS; i++) assert_true(play.ranks[i].ordered_to_die || (others && i == 0 && play.ranks[i].ordered_to_stop));
        gs_play_close(&play);
    }
}

// In the next life of the coordinator it is nobody's. It has nothing to save, so it is not given the time for that; whoever has
// been in a generation is.
static void who_has_not_said_hello_outlives_no_coordinator(void **unused) {
    (void)unused;
    for (uint32_t generation = 0; generation < 2; generation++) {
        gs_play play;
        gs_play_open(&play);
        assert_int_equal(gs_play_run(&play)->phase, GS_RUN_LAUNCHING);
        gs_play_reopen_without_worker(&play);
        assert_null(gs_play_run(&play));
        play.ahead = generation;
        gs_play_find_worker_of(&play, "c");
        for (int i = 0; i < GS_PLAY_RANKS; i++) {
            assert_int_equal(play.ranks[i].ordered_to_die, generation == 0);
            assert_int_equal(play.ranks[i].ordered_to_stop, generation != 0);
        }
        gs_play_close(&play);
    }
}

// Rank 0 has given its bytes and waits for those of rank 1.
static void who_is_kept_waiting_is_not_late(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    both(&play, GS_ON_HELLO);
    gs_play_say(&play, 0, GS_ON_PARAMS);
    both(&play, GS_ON_READY);
    gs_play_say(&play, 0, GS_ON_EXCHANGE);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_CONNECTING);
    const manners how = {.waits = {false}};
    assert_within(live(&play, &how, LONG_NS), gs_timing_default.connect_ns);
    assert_verdict(&play, "WorkerLate", 1);
    gs_play_close(&play);
}

// It has said Bye and does not end; the other has given its bytes.
static void who_leaves_too_soon_keeps_the_others_waiting(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    both(&play, GS_ON_HELLO);
    gs_play_say(&play, 0, GS_ON_PARAMS);
    both(&play, GS_ON_READY);
    gs_play_say(&play, 0, GS_ON_EXCHANGE);
    gs_play_say(&play, 1, GS_ON_BYE);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_CONNECTING);
    const manners how = {.waits = {false}};
    assert_within(live(&play, &how, LONG_NS), gs_timing_default.connect_ns);
    assert_verdict(&play, "WorkerLate", 1);
    gs_play_close(&play);
}

// They count from when they noticed that they are alone, which is behind their last word.
static void who_is_out_of_reach_may_train_until_it_has_stopped_by_itself(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    gs_play_lose_worker(&play);
    gs_play_wait(&play, gs_timing_default.orphan_ns + gs_timing_default.agent_dead_ns / 2);
    assert_false(is_judged(&play));
    gs_play_wait(&play, gs_timing_default.agent_dead_ns);
    assert_true(is_judged(&play));
    gs_play_close(&play);
}

// The first that fell silent goes on for as long as another of them hears somebody: they stop together.
static void who_is_out_of_reach_counts_from_the_last_word_of_any(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    gs_play_lose_worker(&play);
    int64_t longer_ns = 2 * BEAT_NS;
    for (int64_t since_ns = play.now_ns; play.now_ns - since_ns < gs_timing_default.dead_ns / 3;) {
        gs_play_wait(&play, BEAT_NS);
        gs_play_say(&play, 1, GS_ON_HEARTBEAT);
    }
    gs_play_wait(&play, gs_timing_default.orphan_ns + gs_timing_default.agent_dead_ns - longer_ns);
    assert_false(is_judged(&play));
    gs_play_wait(&play, 2 * longer_ns + PROMISED_NS);
    assert_verdict(&play, "WorkerSilent", 0);
    gs_play_close(&play);
}

// Rank 1 is on another host, whose worker is heard all the while.
static void part(gs_play *play) {
    gs_member *member = &gs_play_run(play)->members[1];
    snprintf(member->worker, sizeof member->worker, "other");
    member->slot = 0;
    play->ranks[1].is_gone = true;  // of the first worker
    gs_play_find_worker(play);
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO, .from = {.call = ++play->last_call, .who.incarnation = OTHER_AGENT, .generation = -1}};
    event.agent_hello = (gs_agent_hello){.worker = "other", .host = "far", .boot_id = "b2", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 2, .cores = 1, .num_slots = 1, .num_running = 1};
    event.agent_hello.running = calloc(1, sizeof *event.agent_hello.running);
    event.agent_hello.running[0] = (gs_running_trainer){.pid = 1, .incarnation = member->incarnation, .job = play->job, .rank = 1,
                                                        .cluster = "", .generation = gs_play_run(play)->generation};
    gs_play_hear(play, &event);
}

// Until there is a verdict, or for so long: how long it was. Nobody but the other worker and perhaps rank 1 is heard.
static int64_t live_far(gs_play *play, bool is_heard, bool steps, int64_t ns) {
    int64_t begin_ns = play->now_ns;
    while (play->now_ns - begin_ns < ns && !is_judged(play)) {
        gs_engine_event agent = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = OTHER_AGENT, .generation = -1}};
        gs_play_hear(play, &agent);
        if (is_heard) gs_play_say(play, 1, GS_ON_HEARTBEAT);
        if (steps) gs_play_say(play, 1, GS_ON_STEP);
        gs_play_wait(play, BEAT_NS);
    }
    return play->now_ns - begin_ns;
}

// The host of rank 0 is cut off, and a moment later the connection of rank 1 alone is closed: when that was, a while ago. Rank 0 would be judged by now.
static int64_t cut_one_and_close_the_other(gs_play *play) {
    open_training(play);
    part(play);
    gs_play_lose_worker(play);
    live_far(play, true, false, gs_timing_default.dead_ns / 2);
    gs_play_close_line(play, play->rank_streams[1]);
    int64_t closed_ns = play->now_ns;
    live_far(play, false, false, gs_timing_default.dead_ns * 3 / 4);
    assert_false(is_judged(play));
    return closed_ns;
}

// The steps of the other would show that it lives, and nobody could tell of them.
static void who_is_out_of_reach_is_not_judged_while_nobody_could_tell_of_it(void **unused) {
    (void)unused;
    gs_play play;
    cut_one_and_close_the_other(&play);
    gs_play_say(&play, 1, GS_ON_HELLO);
    live_far(&play, true, false, gs_timing_default.dead_ns / 2);
    assert_false(is_judged(&play));
    live_far(&play, true, true, 20 * gs_timing_default.dead_ns);
    assert_false(is_judged(&play));
    gs_play_close(&play);
}

static void who_tells_of_no_step_of_it_says_that_it_is_gone(void **unused) {
    (void)unused;
    gs_play play;
    cut_one_and_close_the_other(&play);
    gs_play_say(&play, 1, GS_ON_HELLO);
    assert_within(live_far(&play, true, false, LONG_NS), gs_timing_default.dead_ns);
    assert_verdict(&play, "WorkerSilent", 0);
    gs_play_close(&play);
}

// Its worker is there, and can end it.
static void who_is_mute_is_judged_beside_one_that_is_out_of_reach(void **unused) {
    (void)unused;
    gs_play play;
    int64_t closed_ns = cut_one_and_close_the_other(&play);
    live_far(&play, false, false, LONG_NS);
    assert_within(play.now_ns - closed_ns, gs_timing_default.dead_ns);
    assert_verdict(&play, "WorkerSilent", 1);
    gs_play_close(&play);
}

// All hosts were cut off. When that ends one worker is heard a moment before its rank, and everybody else.
static void whose_worker_is_heard_first_has_its_time_from_then_on(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    part(&play);
    live_far(&play, true, true, 4 * BEAT_NS);
    gs_play_wait(&play, gs_timing_default.dead_ns + BEAT_NS);
    assert_false(is_judged(&play));
    int64_t back_ns = live_far(&play, false, false, gs_timing_default.dead_ns - BEAT_NS);
    assert_false(is_judged(&play));
    assert_within(back_ns + live_far(&play, false, false, LONG_NS), gs_timing_default.dead_ns);
    assert_verdict(&play, "WorkerSilent", 1);
    gs_play_close(&play);
}

// It has never looked at the time before.
static void a_life_that_stands_still_at_once_judges_nobody(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play);
    gs_play_reopen(&play);
    play.now_ns += 3 * gs_timing_default.orphan_ns;
    gs_play_wait(&play, gs_timing_default.tick_ns);
    assert_false(is_judged(&play));
    both(&play, GS_ON_HELLO);
    live(&play, &healthy, 3 * GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    gs_play_close(&play);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_silent_is_judged_in_time),
        cmocka_unit_test(who_is_silent_among_many_is_judged_in_time),
        cmocka_unit_test(a_worker_that_is_not_heard_is_lost_in_time),
        cmocka_unit_test(a_coordinator_that_stood_judges_from_then_on),
        cmocka_unit_test(what_is_heard_behind_a_standstill_has_its_own_time),
        cmocka_unit_test(who_was_all_but_late_then_is_heard_first),
        cmocka_unit_test(who_died_while_nobody_looked_is_missed_at_once),
        cmocka_unit_test(who_hangs_is_named_in_time),
        cmocka_unit_test(who_is_seldom_heard_has_time_to_tell),
        cmocka_unit_test(who_hangs_at_the_end_is_named_in_time),
        cmocka_unit_test(who_has_said_bye_and_does_not_end_is_ended),
        cmocka_unit_test(the_first_steps_may_take_longer),
        cmocka_unit_test(a_restart_of_the_coordinator_judges_nobody_who_comes_back),
        cmocka_unit_test(steps_below_what_was_reached_before_are_progress),
        cmocka_unit_test(the_wall_clock_decides_nothing),
        cmocka_unit_test(who_never_says_hello_is_ended_in_time),
        cmocka_unit_test(who_has_not_said_hello_outlives_no_coordinator),
        cmocka_unit_test(who_is_kept_waiting_is_not_late),
        cmocka_unit_test(who_leaves_too_soon_keeps_the_others_waiting),
        cmocka_unit_test(who_is_out_of_reach_may_train_until_it_has_stopped_by_itself),
        cmocka_unit_test(who_is_out_of_reach_counts_from_the_last_word_of_any),
        cmocka_unit_test(who_is_out_of_reach_is_not_judged_while_nobody_could_tell_of_it),
        cmocka_unit_test(who_tells_of_no_step_of_it_says_that_it_is_gone),
        cmocka_unit_test(who_is_mute_is_judged_beside_one_that_is_out_of_reach),
        cmocka_unit_test(whose_worker_is_heard_first_has_its_time_from_then_on),
        cmocka_unit_test(a_life_that_stands_still_at_once_judges_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
