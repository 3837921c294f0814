#include "tests/support/trainer_rank.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/rules/settle.h"
#include "core/bucket_plan.h"
#include "core/log.h"
#include "core/thread.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_plan.h"
#include "tests/support/test_device.h"
#include "rpc/checkpoint/safetensors.h"
#include "worker/trainer/trainer.h"
#ifdef GRADSYNC_CUDA_SIM
#include "tests/cuda_sim/machine.h"
#endif

#define TRAIN_SECONDS 200.0

#define SETTLE_SECONDS 60.0

typedef struct rank_run {
    const gs_rank_env *env;
    const char *dir, *data_root, *device;
    bool writes_params;
    FILE *record;
    const gs_job_spec *spec;
    gs_control *control;
    const gs_trainer_state *state;
    int num_orders;    // told; rank 0
    int64_t withheld;  // the rank that gets no new plan; −1: all do
} rank_run;

static gs_status exchange_bytes(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    const rank_run *run = ctx;
    return gs_rank_exchange(run->env->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char path[600], temporary[620];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    FILE *file = fopen(temporary, "w");
    if (!file) return;
    fputs(text, file);
    fclose(file);
    rename(temporary, path);
}

// The last one says what the whole run was.
static bool keep_report(void *ctx, const gs_step_report *report) {
    const rank_run *run = ctx;
    char name[32], text[100];
    snprintf(name, sizeof name, "report-%d", run->env->rank);
    snprintf(text, sizeof text, "%lld %.17g\n",
             (long long)gs_step_report_get(report, GS_REPORT_ALL_TOKENS, -1),
             gs_step_report_get(report, GS_REPORT_LOSS, -1));
    write_text(run->dir, name, text);
    return true;
}

// What the coordinator does with a part: whoever comes last finds all.
static bool is_whole(const rank_run *run, const gs_checkpoint_result *result) {
    char path[700];
    gs_json *manifest = NULL;
    uint64_t bytes;
    if (result->request.num_parts == 1) return true;
    snprintf(path, sizeof path, "%s/checkpoints/%s", run->dir, result->name);
    gs_status status = gs_checkpoint_commit(&manifest, &bytes, path);
    gs_json_release(manifest);
    return !status.code;
}

static void keep_unsaved(const rank_run *run, const gs_checkpoint_result *result) {
    char path[600];
    snprintf(path, sizeof path, "%s/unsaved-%d", run->dir, run->env->rank);
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "%lld\n", (long long)result->step);
    fclose(file);
}

static void keep_checkpoint(void *ctx, const gs_checkpoint_result *result) {
    const rank_run *run = ctx;
    if (result->status.code) keep_unsaved(run, result);
    if (!result->status.code && is_whole(run, result))
        write_text(run->dir, "checkpoint", result->name);
}

static void note_fault(void *ctx, const gs_fault *fault) {
    const rank_run *run = ctx;
    char text[400];
    int suspect = 0;
    while (suspect < GS_COMM_MAX_RANKS && !gs_comm_failure_names(&fault->comm, suspect)) suspect++;
    if (suspect == GS_COMM_MAX_RANKS) suspect = -1;
    snprintf(text, sizeof text, "fault %s suspect %d: %s", gs_fault_kind_name(fault->kind), suspect,
             fault->status.message);
    gs_rank_note(run->env, text);
}

static bool exists(const char *dir, const char *format, int rank) {
    char name[64], path[600];
    snprintf(name, sizeof name, format, rank);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static bool read_settlement(gs_settle_member *member, const char *dir, int rank) {
    char path[600];
    long long step;
    int complete;
    snprintf(path, sizeof path, "%s/settle-%d", dir, rank);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool is_read = fscanf(file, "%lld %d", &step, &complete) == 2;
    fclose(file);
    *member = (gs_settle_member){.survived = true, .applied_step = step, .complete = complete != 0};
    return is_read;
}

// What the coordinator does: waits for every rank to settle or to be gone, then decides.
static gs_status settle_by_files(void *ctx, gs_settle_verdict *verdict,
                                 const gs_settlement *settlement) {
    const rank_run *run = ctx;
    gs_settle_member members[16] = {0};
    char name[32], text[64];
    snprintf(name, sizeof name, "settle-%d", settlement->rank);
    snprintf(text, sizeof text, "%lld %d\n", (long long)settlement->applied_step,
             settlement->complete);
    write_text(run->dir, name, text);
    gs_rank_note(run->env, "settling");
    gs_deadline deadline = gs_deadline_in_seconds(SETTLE_SECONDS);
    for (int rank = 0; rank < run->env->world_size; rank++) {
        while (!read_settlement(&members[rank], run->dir, rank) &&
               !exists(run->dir, "dead-%d", rank)) {
            if (gs_deadline_passed(deadline)) {
                return gs_error(GS_UNAVAILABLE, "rank %d neither settled nor died", rank);
            }
            gs_sleep_ns(GS_NS_PER_MS);
        }
    }
    gs_settle_decide(members, (size_t)run->env->world_size, 0, 0);
    verdict->apply = members[settlement->rank].apply;
    verdict->save = members[settlement->rank].save;
    return gs_ok();
}

// What the coordinator does with an order: from here every rank makes its plan itself.
static void keep_order(void *ctx, const gs_order_report *report) {
    rank_run *run = ctx;
    char name[32], path[600], temporary[620];
    if (!report->settled || run->spec->reducer.rebuild_after_steps == 0) return;
    snprintf(name, sizeof name, "order-%d", run->num_orders++);
    snprintf(path, sizeof path, "%s/%s", run->dir, name);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    if (!file) return;
    for (size_t i = 0; i < report->num_params; i++) fprintf(file, "%zu\n", report->order[i]);
    fclose(file);
    rename(temporary, path);
}

static bool read_order(size_t *order, size_t num_params, const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool whole = true;
    for (size_t i = 0; i < num_params && whole; i++) whole = fscanf(file, "%zu", &order[i]) == 1;
    fclose(file);
    return whole;
}

// The control thread of this trainer: plans come while it computes.
static void deliver_plans(void *ctx, const atomic_bool *stopping) {
    rank_run *run = ctx;
    char path[600];
    size_t num_params = run->state->num_params;
    size_t *order = calloc(num_params, sizeof *order);
    int revision = 2;
    while (order && !atomic_load(stopping)) {
        gs_plan_offer offer = {.generation = 1, .revision = revision};
        snprintf(path, sizeof path, "%s/order-%d", run->dir, revision - 2);
        if (run->withheld == run->env->rank || !read_order(order, num_params, path)) {
            gs_sleep_ns(GS_NS_PER_MS);
            continue;
        }
        gs_status status = gs_job_plan_make(&offer.plan, run->spec, run->env->world_size,
                                            run->state->param_specs, num_params, order);
        if (status.code) abort();
        offer.digest = gs_digest_fold(gs_bucket_plan_digest(&offer.plan));
        gs_mailbox_offer_plan(&run->control->mailbox, &offer);
        revision++;
    }
    free(order);
}

static void write_plan(const rank_run *run) {
    char name[32], text[100];
    snprintf(name, sizeof name, "plan-%d", run->env->rank);
    snprintf(text, sizeof text, "%llu %lld\n",
             (unsigned long long)atomic_load(&run->control->progress.plan_digest),
             (long long)atomic_load(&run->control->progress.plan_step));
    write_text(run->dir, name, text);
}

static const gs_control_ops ops = {.exchange = exchange_bytes,
                                   .report = keep_report,
                                   .checkpointed = keep_checkpoint,
                                   .fault = note_fault,
                                   .ordered = keep_order,
                                   .settle = settle_by_files};

// What the program has asked of the CUDA runtime up to here; the software machine alone counts it.
static void record_calls(const rank_run *run, long long step) {
#ifdef GRADSYNC_CUDA_SIM
    char path[600];
    snprintf(path, sizeof path, "%s/calls-%d", run->dir, run->env->rank);
    FILE *file = fopen(path, "a");
    if (!file) return;
    gs_sim_counters calls = gs_sim_count();
    fprintf(file, "%lld %llu %llu %llu\n", step, (unsigned long long)(calls.mallocs + calls.frees),
            (unsigned long long)calls.host_waits, (unsigned long long)calls.pageable_copies);
    fclose(file);
#else
    (void)run;
    (void)step;
#endif
}

static void record_line(void *ctx, gs_log_level level, const char *line) {
    const rank_run *run = ctx;
    long long step;
    char digest[GS_DIGEST_TEXT_LEN];
    const char *at = strstr(line, "msg=\"step digest\"");
    if (!at) {
        if (level >= GS_LOG_WARN) fprintf(stderr, "rank %d: %s\n", run->env->rank, line);
        return;
    }
    at = strstr(at, "step=");
    if (at && sscanf(at, "step=%lld digest=%37s", &step, digest) == 2) {
        fprintf(run->record, "%lld %s\n", step, digest);
        fflush(run->record);
        record_calls(run, step);
    }
}

static gs_status write_at(const char *path, const void *data, size_t bytes, size_t offset) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    bool is_written = fd >= 0 && pwrite(fd, data, bytes, (off_t)offset) == (ssize_t)bytes;
    if (fd >= 0) close(fd);
    return is_written ? gs_ok() : gs_error(GS_INTERNAL, "cannot write %s", path);
}

// What this rank has of a parameter, into its file; masters, of which each rank has others, into those of all.
static gs_status write_param(const rank_run *run, const gs_trainer_state *state, const char *name,
                             size_t param, size_t offset) {
    char path[600];
    gs_segment held = gs_trainer_state_held(state, param);
    size_t bytes = held.count * sizeof(float);
    void *data = malloc(bytes + 1);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = gs_trainer_state_read(state, param, data);
    for (int rank = 0; rank < run->env->world_size && !status.code; rank++) {
        if (!state->halves && rank != run->env->rank) continue;
        snprintf(path, sizeof path, "%s/%s-%d", run->dir, name, rank);
        status = write_at(path, data, bytes, offset + held.first * sizeof(float));
    }
    free(data);
    return status;
}

// The parameters as a checkpoint has them, fp32, one after the other.
static gs_status write_params(const rank_run *run, gs_trainer *trainer, const char *name) {
    const gs_trainer_state *state = gs_trainer_get_state(trainer);
    size_t offset = 0;
    for (size_t i = 0; i < state->num_params; i++) {
        GS_TRY(write_param(run, state, name, i, offset));
        offset += state->tensors[i].bytes;
    }
    return gs_ok();
}

static gs_status train(rank_run *run, gs_trainer *trainer, const gs_job_spec *spec,
                       gs_trainer_outcome *outcome) {
    const gs_trainer_state *state = gs_trainer_get_state(trainer);
    gs_bucket_plan plan;
    GS_TRY(gs_job_plan_make(&plan, spec, run->env->world_size, state->param_specs, state->num_params,
                            NULL));
    gs_assignment assignment = {.place = {.generation = 1,
                                          .rank = run->env->rank,
                                          .world_size = run->env->world_size},
                                .num_shards = (int)spec->logical_shards,
                                .plan = &plan};
    gs_status status = gs_trainer_prepare(trainer, &assignment);
    gs_bucket_plan_release(&plan);
    if (status.code) return status;
    if (run->writes_params) GS_TRY(write_params(run, trainer, "initial"));
    GS_TRY(gs_trainer_connect(trainer, gs_deadline_in_seconds(60)));
    gs_thread *plans = NULL;
    run->state = state;
    GS_TRY(gs_thread_start(&plans, "plans", deliver_plans, run));
    gs_trainer_run(trainer, outcome);
    gs_thread_stop(plans);
    write_plan(run);
    return gs_ok();
}

static void write_outcome(const rank_run *run, const gs_trainer_outcome *outcome, int64_t step) {
    char name[32], text[100], digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, outcome->state_digest);
    snprintf(name, sizeof name, "outcome-%d", run->env->rank);
    snprintf(text, sizeof text, "%lld %s\n", (long long)step, digest);
    write_text(run->dir, name, text);
}

static gs_status run_trainer(rank_run *run, const gs_job_spec *spec, const char *resume) {
    char checkpoints[600], text[128];
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", run->dir);
    gs_control control;
    gs_control_init(&control, &ops, run);
    run->control = &control;
    run->spec = spec;
    gs_trainer_options options = {.spec = spec,
                                  .control = &control,
                                  .job = "j-000000000001",
                                  .data_root = run->data_root,
                                  .checkpoints_dir = checkpoints,
                                  .resume = resume,
                                  .num_threads = 1,
                                  .device = run->device};
    gs_trainer *trainer = NULL;
    gs_trainer_outcome outcome = {0};
    gs_status status = gs_trainer_create(&trainer, &options);
    if (!status.code) status = train(run, trainer, spec, &outcome);
    if (!status.code && run->writes_params) status = write_params(run, trainer, "params");
    if (!status.code) {
        write_outcome(run, &outcome, gs_trainer_get_state(trainer)->position.step);
        snprintf(text, sizeof text, "end %s %lld", gs_trainer_end_name(outcome.end),
                 (long long)gs_trainer_get_state(trainer)->position.step);
        gs_rank_note(run->env, text);
        if (outcome.end == GS_TRAINER_FAILED) status = outcome.status;
    }
    gs_trainer_outcome_release(&outcome);
    gs_trainer_destroy(trainer);
    gs_control_release(&control);
    return status;
}

gs_status trainer_rank_run(const gs_rank_env *env) {
    gs_json *arg;
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors errors = {0};
    if (!spec) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    GS_TRY(gs_json_parse(&arg, env->arg, strlen(env->arg)));
    gs_status status = gs_job_spec_decode(spec, gs_json_get(arg, "spec"), &errors);
    if (status.code && errors.count) {
        status = gs_error(GS_INVALID_ARGUMENT, "%s: %s", errors.items[0].pointer,
                          errors.items[0].message);
    }
    spec->model.gpt2.layer_drop =
        gs_json_double_or(arg, "layer_drop", spec->model.gpt2.layer_drop);
    char path[600];
    rank_run run = {.env = env,
                    .dir = gs_json_string_or(arg, "dir", ""),
                    .data_root = gs_json_string_or(arg, "data_root", gs_json_string_or(arg, "dir", "")),
                    .writes_params = gs_json_bool_or(arg, "params", false),
                    .device = gs_json_string_or(arg, "device", gs_test_device_name()),
                    .withheld = gs_json_int_or(arg, "withheld", -1)};
    snprintf(path, sizeof path, "%s/record-%d", run.dir, env->rank);
    run.record = fopen(path, "a");
    if (!run.record && !status.code) status = gs_error(GS_INTERNAL, "cannot write %s", path);
    setenv("GRADSYNC_EARLY_UPDATES", "1", 0);  // on a machine without cores to spare, too
    setenv("GRADSYNC_STEP_DIGESTS", gs_json_bool_or(arg, "quiet", false) ? "0" : "1", 1);
    gs_log_set_level(GS_LOG_DEBUG);
    gs_log_set_sink(record_line, &run);
    if (!status.code) status = run_trainer(&run, spec, gs_json_string_or(arg, "resume", ""));
    gs_log_set_sink(NULL, NULL);
    if (run.record) fclose(run.record);
    gs_json_release(arg);
    free(spec);
    return status;
}

char *trainer_rank_arg(const char *spec, const char *dir, const char *resume) {
    char *text = NULL;
    if (asprintf(&text, "{\"spec\":%s,\"dir\":\"%s\",\"resume\":\"%s\"}", spec, dir,
                 resume ? resume : "") < 0) {
        abort();
    }
    return text;
}

char *trainer_rank_arg_on(const char *spec, const char *dir, const char *resume,
                          const char *device) {
    char *text = NULL;
    if (asprintf(&text, "{\"spec\":%s,\"dir\":\"%s\",\"resume\":\"%s\",\"device\":\"%s\"}", spec, dir,
                 resume ? resume : "", device) < 0) {
        abort();
    }
    return text;
}

bool trainer_rank_read_record(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir, int rank,
                              char problem[160]) {
    char path[600], text[GS_DIGEST_TEXT_LEN];
    long long step;
    memset(digests, 0, TRAINER_RANK_MAX_STEPS * sizeof digests[0]);
    snprintf(path, sizeof path, "%s/record-%d", dir, rank);
    FILE *file = fopen(path, "r");
    if (!file) return true;
    bool same = true;
    while (same && fscanf(file, "%lld %37s", &step, text) == 2) {
        gs_digest digest;
        if (step < 0 || step >= TRAINER_RANK_MAX_STEPS || !gs_digest_parse(&digest, text)) continue;
        same = gs_digest_fold(digests[step]) == 0 || gs_digest_equal(digests[step], digest);
        if (!same) snprintf(problem, 160, "rank %d held two states at step %lld", rank, step);
        digests[step] = digest;
    }
    fclose(file);
    return same;
}

int64_t trainer_rank_last_step(const gs_digest digests[TRAINER_RANK_MAX_STEPS]) {
    int64_t last = 0;
    for (int64_t step = 0; step < TRAINER_RANK_MAX_STEPS; step++) {
        if (gs_digest_fold(digests[step])) last = step;
    }
    return last;
}

gs_status trainer_rank_read_same(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir,
                                 int world_size) {
    char problem[160] = "";
    if (!trainer_rank_read_record(digests, dir, 0, problem))
        return gs_error(GS_INTERNAL, "%s", problem);
    if (trainer_rank_last_step(digests) == 0) return gs_error(GS_INTERNAL, "no step is on record");
    for (int rank = 1; rank < world_size; rank++) {
        gs_digest others[TRAINER_RANK_MAX_STEPS];
        if (!trainer_rank_read_record(others, dir, rank, problem))
            return gs_error(GS_INTERNAL, "%s", problem);
        for (int step = 0; step < TRAINER_RANK_MAX_STEPS; step++) {
            if (!gs_digest_equal(digests[step], others[step]))
                return gs_error(GS_INTERNAL, "ranks 0 and %d of %d differ at step %d", rank,
                                world_size, step);
        }
    }
    return gs_ok();
}

gs_status trainer_rank_train(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir,
                             const char *spec, int world_size, const char *resume) {
    return trainer_rank_train_on(digests, dir, spec, world_size, resume, gs_test_device_name());
}

gs_status trainer_rank_train_on(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir,
                                const char *spec, int world_size, const char *resume,
                                const char *device) {
    char *arg = trainer_rank_arg_on(spec, dir, resume, device);
    gs_status status =
        gs_ranks_run("train", world_size, arg, gs_deadline_in_seconds(TRAIN_SECONDS));
    free(arg);
    if (!status.code) status = trainer_rank_read_same(digests, dir, world_size);
    return gs_status_prefix(status, "%d ranks", world_size);
}

bool trainer_rank_read_report(trainer_rank_report *report, const char *dir, int rank) {
    char path[600];
    long long tokens;
    snprintf(path, sizeof path, "%s/report-%d", dir, rank);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool is_read = fscanf(file, "%lld %lf", &tokens, &report->loss) == 2;
    fclose(file);
    report->tokens = tokens;
    return is_read;
}

bool trainer_rank_read_outcome(gs_digest *digest, int64_t *step, const char *dir, int rank) {
    char path[600], text[GS_DIGEST_TEXT_LEN];
    long long of_step;
    snprintf(path, sizeof path, "%s/outcome-%d", dir, rank);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool is_read = fscanf(file, "%lld %37s", &of_step, text) == 2;
    fclose(file);
    *step = of_step;
    return is_read && gs_digest_parse(digest, text);
}

int trainer_rank_count_unsaved(const char *dir, int rank, int64_t step) {
    char path[600];
    long long told;
    int count = 0;
    snprintf(path, sizeof path, "%s/unsaved-%d", dir, rank);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%lld", &told) == 1) count += told == step;
    if (file) fclose(file);
    return count;
}

char *trainer_rank_checkpoint(const char *dir) {
    char path[600], name[64], *out = NULL;
    snprintf(path, sizeof path, "%s/checkpoint", dir);
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    if (fscanf(file, "%63s", name) != 1 ||
        asprintf(&out, "%s/checkpoints/%s", dir, name) < 0) {
        out = NULL;
    }
    fclose(file);
    return out;
}

static gs_status open_parameters(gs_safetensors **file, const char *dir) {
    char path[700], *checkpoint = trainer_rank_checkpoint(dir);
    if (!checkpoint) return gs_error(GS_NOT_FOUND, "%s: no checkpoint", dir);
    snprintf(path, sizeof path, "%s/part-0.safetensors", checkpoint);
    free(checkpoint);
    return gs_safetensors_load(file, path);
}

static gs_status check_parameters(gs_safetensors *got, gs_safetensors *wanted, gs_near within) {
    size_t compared = 0;
    for (size_t i = 0; i < gs_safetensors_count(wanted); i++) {
        const gs_safetensor *theirs = gs_safetensors_at(wanted, i);
        if (strncmp(theirs->name, "optimizer.", 10) == 0 || theirs->dtype != GS_FP32) continue;
        const gs_safetensor *ours = gs_safetensors_find(got, theirs->name);
        if (!ours || ours->dtype != GS_FP32 || ours->bytes != theirs->bytes)
            return gs_error(GS_DATA_LOSS, "%s is missing or of another shape", theirs->name);
        GS_TRY(check_near_fp32(theirs->name, ours->data, theirs->data,
                               theirs->bytes / sizeof(float), within));
        compared++;
    }
    return compared ? gs_ok() : gs_error(GS_NOT_FOUND, "no parameter to compare");
}

gs_status trainer_rank_check_near(const char *dir, const char *wanted_dir, gs_near within) {
    gs_safetensors *got = NULL, *wanted = NULL;
    gs_status status = open_parameters(&got, dir);
    if (!status.code) status = open_parameters(&wanted, wanted_dir);
    if (!status.code) status = check_parameters(got, wanted, within);
    gs_safetensors_close(got);
    gs_safetensors_close(wanted);
    return status;
}

void trainer_rank_declare_dead(const char *dir, int rank) {
    char name[32];
    snprintf(name, sizeof name, "dead-%d", rank);
    write_text(dir, name, "");
}
