// A trainer that lives through three generations in one process: its rank and the number of ranks
// change, a rank is killed, another one comes, aborts of a generation that is over arrive late.
// After each step it holds the bits of a run that nothing happened to. So does a job whose ranks carry residuals,
// where a rank is killed and a newcomer takes its place: what the dead one carried comes from a survivor.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/support/carrier_hook.h"
#include "tests/support/file_exchange.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "worker/state/hook_choice.h"
#include "worker/trainer/trainer.h"

enum { STEPS = 14, GENERATIONS = 3, MEMBERS = 4, AWAY = -1 };

// Which rank each process is in each generation. Member 0 is killed in the first, member 3 comes
// for the last.
static const int places[GENERATIONS][MEMBERS] = {
    {0, 1, 2, AWAY}, {AWAY, 1, 0, AWAY}, {AWAY, 1, 2, 0}};
static const int worlds[GENERATIONS] = {3, 2, 3};
// Applied steps after which the first two end, and one at which an abort of the first comes late.
enum { KILLED_AT = 5, LATE_AT = 7, ABORTED_AT = 9 };

static const char spec_text[] =
    "{\"name\":\"sessions\",\"exact\":true,\"logical_shards\":4,\"world\":{\"min\":1,\"max\":4},"
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[160,192,64,5],\"batch_norm\":\"local\"}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":6,\"global_batch\":48},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"grad_clip_norm\":1},"
    "\"reducer\":{\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,\"timeout_seconds\":30},"
    "\"steps\":{\"target\":14}}";

// The other story, of a job whose hook is tests/support/carrier_hook.h's.
enum { REPLACED_GENERATIONS = 2 };
static const int replaced_places[REPLACED_GENERATIONS][MEMBERS] = {{0, 1, 2, AWAY}, {AWAY, 1, 2, 0}};
static const int replaced_worlds[REPLACED_GENERATIONS] = {3, 3};
static const char carrying_spec[] =
    "{\"name\":\"sessions\",\"logical_shards\":6,\"world\":{\"min\":1,\"max\":4},"
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[40,24,5]}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":4,\"global_batch\":24},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003},"
    "\"reducer\":{\"first_bucket_bytes\":256,\"bucket_cap_bytes\":2048,\"timeout_seconds\":30},"
    "\"steps\":{\"target\":14}}";

static bool carries(void) {
    const char *wanted = getenv("RANKS_CARRY");
    return wanted && *wanted == '1';
}

gs_status __real_gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook);
gs_status __wrap_gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook);
gs_status __wrap_gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook) {
    if (!carries()) return __real_gs_job_hook_choose(out, hook);
    *out = (gs_job_hook_choice){.choice = {.hook = &carrier_hook}};
    return gs_ok();
}

static uint32_t num_generations(void) {
    return carries() ? REPLACED_GENERATIONS : GENERATIONS;
}

static gs_place place_of(uint32_t generation, int member) {
    uint32_t g = generation - 1;
    return (gs_place){.generation = generation,
                      .rank = carries() ? replaced_places[g][member] : places[g][member],
                      .world_size = carries() ? replaced_worlds[g] : worlds[g]};
}

typedef struct life {
    const gs_rank_env *env;
    int member;
    uint32_t generation;
    gs_control control;
    file_exchange exchange;
    int64_t applied;  // as last logged
} life;

static gs_status exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                          const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    life *self = ctx;
    return file_exchange_run(&self->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline);
}

static bool hear_report(void *ctx, const gs_step_report *report) {
    (void)ctx;
    (void)report;
    return true;
}

static void hear_checkpoint(void *ctx, const gs_checkpoint_result *result) {
    (void)ctx;
    (void)result;
}

static void hear_fault(void *ctx, const gs_fault *fault) {
    (void)ctx;
    (void)fault;
}

static void hear_order(void *ctx, const gs_order_report *report) {
    (void)ctx;
    (void)report;
}

// Nobody is told to apply what another one has applied: the next generation brings them level. But for what each
// rank has of its own: of that nobody else has the next step's.
static gs_status settle(void *ctx, gs_settle_verdict *verdict, const gs_settlement *settlement) {
    (void)ctx;
    *verdict = (gs_settle_verdict){.apply = carries() && settlement->complete &&
                                            settlement->applied_step == KILLED_AT - 1};
    return gs_ok();
}

static const gs_control_ops ops = {.exchange = exchange,
                                   .report = hear_report,
                                   .checkpointed = hear_checkpoint,
                                   .fault = hear_fault,
                                   .ordered = hear_order,
                                   .settle = settle};

static void let_fate_happen(life *self) {
    if (self->generation == 1 && self->member == 0 && self->applied == KILLED_AT) raise(SIGKILL);
    if (carries()) return;
    if (self->generation == 2 && self->member == 1 && self->applied == LATE_AT)
        gs_mailbox_abort(&self->control.mailbox, 1, "an old story");
    if (self->generation == 2 && self->member == 2 && self->applied == ABORTED_AT)
        gs_mailbox_abort(&self->control.mailbox, 2, "a new one");
}

static void note_held(life *self, int64_t step, gs_digest digest) {
    char text[GS_DIGEST_TEXT_LEN], note[100];
    gs_digest_format(text, digest);
    snprintf(note, sizeof note, "held %lld %s", (long long)step, text);
    gs_rank_note(self->env, note);
}

static void read_line(void *ctx, gs_log_level level, const char *line) {
    life *self = ctx;
    long long step;
    char text[GS_DIGEST_TEXT_LEN];
    gs_digest digest;
    if (level >= GS_LOG_WARN) fprintf(stderr, "member %d: %s\n", self->member, line);
    const char *at = strstr(line, "msg=\"step digest\"");
    if (at) at = strstr(at, "step=");
    if (!at || sscanf(at, "step=%lld digest=%37s", &step, text) != 2) return;
    if (gs_digest_parse(&digest, text)) note_held(self, step, digest);
    if (step == self->applied) return;  // told again while settling
    self->applied = step;
    let_fate_happen(self);
}

static gs_status live_one_generation(life *self, gs_trainer *trainer, const gs_job_spec *spec,
                                     gs_trainer_outcome *outcome) {
    const gs_trainer_state *state = gs_trainer_get_state(trainer);
    const gs_plan_policy policy = gs_job_spec_plan_policy(spec);
    gs_bucket_plan plan;
    const gs_place place = place_of(self->generation, self->member);
    self->exchange.generation = self->generation;
    self->exchange.rank = place.rank;
    GS_TRY(gs_plan_policy_apply(&plan, &policy, state->param_specs, state->num_params, NULL));
    const gs_assignment assignment = {.place = place,
                                      .num_shards = (int)spec->logical_shards,
                                      .plan = &plan};
    gs_status status = gs_trainer_prepare(trainer, &assignment);
    gs_bucket_plan_release(&plan);
    GS_TRY(status);
    GS_TRY(gs_trainer_connect(trainer, soon()));
    note_held(self, state->position.step, gs_session_state_digest(gs_trainer_get_session(trainer)));
    gs_trainer_run(trainer, outcome);
    return gs_ok();
}

static gs_status live(life *self, gs_trainer *trainer, const gs_job_spec *spec) {
    gs_trainer_end end = GS_TRAINER_ABORTED;
    for (uint32_t g = self->generation; g <= num_generations() && end == GS_TRAINER_ABORTED; g++) {
        gs_trainer_outcome outcome = {0};
        self->generation = g;
        GS_TRY(gs_status_prefix(live_one_generation(self, trainer, spec, &outcome), "generation %u",
                                g));
        end = outcome.end;
        gs_status status = outcome.status;
        gs_trainer_outcome_release(&outcome);
        if (end == GS_TRAINER_FAILED) return status;
        if (!carries() && g == 2 && self->member == 2 && self->applied != ABORTED_AT)
            return gs_error(GS_INTERNAL, "generation 2 ended after %lld steps",
                            (long long)self->applied);
    }
    if (end == GS_TARGET_REACHED && self->generation == num_generations()) return gs_ok();
    return gs_error(GS_INTERNAL, "generation %u: %s after %lld steps", self->generation,
                    gs_trainer_end_name(end), (long long)self->applied);
}

static gs_status run_life(const gs_rank_env *env, int member, uint32_t first_generation) {
    life self = {
        .env = env, .member = member, .generation = first_generation, .exchange.dir = env->arg};
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors errors = {0};
    gs_json *json;
    if (!spec) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    const char *text = carries() ? carrying_spec : spec_text;
    GS_TRY(gs_json_parse(&json, text, strlen(text)));
    GS_TRY(gs_job_spec_decode(spec, json, &errors));
    gs_json_release(json);
    setenv("GRADSYNC_STEP_DIGESTS", "1", 1);
    gs_log_set_level(GS_LOG_DEBUG);
    gs_log_set_sink(read_line, &self);
    gs_control_init(&self.control, &ops, &self);
    const gs_trainer_options options = {.spec = spec,
                                        .control = &self.control,
                                        .job = "j-000000000001",
                                        .data_root = env->arg,
                                        .checkpoints_dir = env->arg,
                                        .num_threads = 1};
    gs_trainer *trainer = NULL;
    gs_status status = gs_trainer_create(&trainer, &options);
    if (!status.code) status = live(&self, trainer, spec);
    gs_trainer_destroy(trainer);
    gs_control_release(&self.control);
    gs_log_set_sink(NULL, NULL);
    free(spec);
    return status;
}

static gs_status body_member(const gs_rank_env *env) {
    return run_life(env, env->rank, 1);
}

static gs_status body_newcomer(const gs_rank_env *env) {
    return run_life(env, MEMBERS - 1, num_generations());
}

static gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];

static int train_undisturbed(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make();
    gs_status status = trainer_rank_train(undisturbed, dir, spec_text, 3, NULL);
    if (status.code) fprintf(stderr, "undisturbed run: %s\n", status.message);
    gs_temp_dir_remove(dir);
    return status.code || trainer_rank_last_step(undisturbed) != STEPS;
}

// Each step from `first` on was held as it had to be: applied there, or received.
static void check_held(gs_ranks *ranks, int rank, int64_t first) {
    for (int64_t step = first; step <= STEPS; step++) {
        char text[GS_DIGEST_TEXT_LEN], wanted[100];
        gs_digest_format(text, undisturbed[step]);
        snprintf(wanted, sizeof wanted, "held %lld %s", (long long)step, text);
        gs_status status = gs_ranks_wait_note(ranks, rank, wanted, gs_deadline_in_seconds(60));
        if (status.code)
            fail_msg("process %d, step %lld: %s", rank, (long long)step, status.message);
    }
}

static void three_generations_in_one_process_hold_the_same_bits(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make();
    gs_ranks *members, *newcomer;
    gs_status statuses[MEMBERS];
    assert_ok(gs_ranks_start(&members, "member", 3, dir, NULL));
    assert_ok(gs_ranks_start(&newcomer, "newcomer", 1, dir, NULL));
    check_held(members, 1, 1);
    check_held(members, 2, 1);
    check_held(newcomer, 0, ABORTED_AT);
    assert_ok(gs_ranks_wait(members, statuses, gs_deadline_in_seconds(60)));
    assert_int_equal(statuses[0].code, GS_ABORTED);  // killed
    assert_ok(statuses[1]);
    assert_ok(statuses[2]);
    assert_ok(gs_ranks_wait(newcomer, statuses, gs_deadline_in_seconds(60)));
    assert_ok(statuses[0]);
    gs_ranks_destroy(members);
    gs_ranks_destroy(newcomer);
    gs_temp_dir_remove(dir);
}

static void newcomer_goes_on_with_the_residuals_of_the_dead(void **state) {
    (void)state;
    static const char *const environment[] = {"RANKS_CARRY=1", NULL};
    char *dir = gs_temp_dir_make();
    gs_ranks *members, *newcomer;
    gs_status statuses[MEMBERS];
    setenv("RANKS_CARRY", "1", 1);
    assert_ok(trainer_rank_train(undisturbed, dir, carrying_spec, 3, NULL));
    unsetenv("RANKS_CARRY");
    assert_ok(gs_ranks_start(&members, "member", 3, dir, environment));
    assert_ok(gs_ranks_start(&newcomer, "newcomer", 1, dir, environment));
    check_held(members, 1, KILLED_AT);
    check_held(members, 2, KILLED_AT);
    check_held(newcomer, 0, KILLED_AT);
    assert_ok(gs_ranks_wait(members, statuses, gs_deadline_in_seconds(60)));
    assert_int_equal(statuses[0].code, GS_ABORTED);  // killed
    assert_ok(statuses[1]);
    assert_ok(statuses[2]);
    assert_ok(gs_ranks_wait(newcomer, statuses, gs_deadline_in_seconds(60)));
    assert_ok(statuses[0]);
    gs_ranks_destroy(members);
    gs_ranks_destroy(newcomer);
    gs_temp_dir_remove(dir);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"member", body_member}, {"newcomer", body_newcomer}, {"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_generations_in_one_process_hold_the_same_bits),
        cmocka_unit_test(newcomer_goes_on_with_the_residuals_of_the_dead),
    };
    return cmocka_run_group_tests(tests, train_undisturbed, NULL);
}
