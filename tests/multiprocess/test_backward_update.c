// Where updates of buckets begin early, and what a rank's log says where they do not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "worker/pass/backward_update.h"

#define IN_BACKWARD "\"optimizer\":{\"in_backward\":true}"
#define DEALT(more) "\"reducer\":{\"sharding\":\"optimizer\",\"zero_overlap\":\"step\"}" more
#define CLIPPING ",\"optimizer\":{\"grad_clip_norm\":1}"

typedef struct job {
    const char *what, *members;
    int world_size;
    gs_helper_thread helper;
    const char *chosen;    // GRADSYNC_EARLY_UPDATES
    const char *obstacle;  // NULL: there is none
    bool is_silent;        // the log says nothing
} job;

static const job jobs[] = {
    {"a thread moves", IN_BACKWARD, 2, GS_HELPER_ON, "", NULL, true},
    {"a thread moves what is dealt", DEALT(""), 2, GS_HELPER_ON, "", NULL, true},
    {"the owner moves", IN_BACKWARD, 2, GS_HELPER_OFF, "",
     "what=optimizer.in_backward reason=\"no core to spare: ", false},
    {"the owner moves what is dealt", DEALT(""), 2, GS_HELPER_OFF, "",
     "what=reducer.zero_overlap reason=\"no core to spare: ", false},
    {"one rank", IN_BACKWARD, 1, GS_HELPER_ON, "", "reason=\"one rank sends nothing\"", false},
    {"one rank, and is told", IN_BACKWARD, 1, GS_HELPER_ON, "1",
     "reason=\"one rank sends nothing\"", false},
    {"clips", DEALT(CLIPPING), 2, GS_HELPER_ON, "",
     "reason=\"clipping takes the norm of all gradients\"", false},
    {"clips, and is told", DEALT(CLIPPING), 2, GS_HELPER_ON, "1",
     "reason=\"clipping takes the norm of all gradients\"", false},
    {"is told to", IN_BACKWARD, 2, GS_HELPER_OFF, "1", NULL, true},
    {"is told not to", IN_BACKWARD, 2, GS_HELPER_ON, "0", "reason=\"GRADSYNC_EARLY_UPDATES is 0\"",
     false},
    {"does not want it", "\"optimizer\":{}", 2, GS_HELPER_ON, "1", "", true},
};

// What was said of it.
typedef struct heard {
    char line[400];
    int num_lines;
} heard;

static void hear(void *ctx, gs_log_level level, const char *line) {
    heard *of = ctx;
    if (level != GS_LOG_INFO || !strstr(line, "updates come at the end of steps")) return;
    snprintf(of->line, sizeof of->line, "%s", line);
    of->num_lines++;
}

static gs_status decode(gs_job_spec *spec, const char *members) {
    char text[500];
    gs_json *object;
    gs_field_errors errors = {0};
    snprintf(text, sizeof text,
             "{\"world\":{\"max\":2},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}},"
             "\"steps\":{\"target\":3},%s}",
             members);
    GS_TRY(gs_json_parse(&object, text, strlen(text)));
    gs_status status = gs_job_spec_decode(spec, object, &errors);
    gs_json_release(object);
    return status.code ? gs_error(status.code, "%s", errors.items[0].message) : status;
}

static gs_status check(const job *of, const comm_rank *rank, const heard *log, bool is_early) {
    char whose[24];
    snprintf(whose, sizeof whose, " rank=%d ", rank->rank);
    if (is_early != !of->obstacle)
        return gs_error(GS_INTERNAL, "updates come %s", is_early ? "early" : "at the end");
    if (log->num_lines != !of->is_silent)
        return gs_error(GS_INTERNAL, "said %d times: %s", log->num_lines, log->line);
    if (of->is_silent || (strstr(log->line, of->obstacle) && strstr(log->line, whose)))
        return gs_ok();
    return gs_error(GS_INTERNAL, "said \"%s\"", log->line);
}

static gs_status create(const job *of, comm_rank *rank) {
    static gs_job_spec spec, whole;  // a state that is dealt has parameters when it is laid out
    heard log = {0};
    gs_trainer_state state;
    gs_backward_update *update = NULL;
    GS_TRY(decode(&spec, of->members));
    GS_TRY(decode(&whole, "\"optimizer\":{}"));
    GS_TRY(gs_trainer_state_init(&state, &whole, rank->device));
    gs_log_set_sink(hear, &log);
    gs_status status = gs_backward_update_create(
        &update, &(gs_backward_update_options){.spec = &spec, .state = &state, .comm = rank->comm});
    gs_log_set_sink(NULL, NULL);
    if (!status.code) status = check(of, rank, &log, update != NULL);
    gs_backward_update_destroy(update);
    gs_trainer_state_release(&state);
    return status;
}

static gs_status run_job(const gs_rank_env *env, const job *of) {
    comm_rank rank;
    gs_comm_options options = {.generation = (uint32_t)(of - jobs) + 1, .helper = of->helper};
    setenv("GRADSYNC_EARLY_UPDATES", of->chosen, 1);
    gs_status status = comm_rank_open(&rank, env, 4096, &options);
    if (!status.code) status = create(of, &rank);
    comm_rank_close(&rank);
    return gs_status_prefix(status, "%s", of->what);
}

static gs_status run_jobs(const gs_rank_env *env) {
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        if (jobs[i].world_size == env->world_size) GS_TRY(run_job(env, &jobs[i]));
    }
    return gs_ok();
}

static void updates_are_early_where_something_else_moves_buckets(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; world_size++)
        assert_ok(gs_ranks_run("jobs", world_size, "", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"jobs", run_jobs}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_are_early_where_something_else_moves_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
