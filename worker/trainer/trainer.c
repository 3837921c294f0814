#include "worker/trainer/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/strbuf.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/model_import.h"
#include "worker/data/data_loader.h"
#include "worker/data/mapped_file.h"
#include "worker/telemetry/telemetry.h"
#include "worker/trainer/generate.h"

// Updates left out one after the other because of gradients that are not finite, before giving up.
#define MOST_SKIPPED_IN_A_ROW 100
#define MOST_SKIPPED_WHILE_SCALING 1000
// A save at the end is waited for this long.
#define FINAL_SAVE_SECONDS 600.0
#define LAST_UPDATE_SECONDS 60.0

struct gs_trainer {
    gs_trainer_options options;
    gs_device *device;
    gs_trainer_state state;
    gs_replica_set *replica_set;  // NULL: one replica
    gs_digest data_digest;
    char arithmetic[256];
    bool logs_digests;

    gs_session *session;
    gs_telemetry telemetry;
    gs_checkpoint_writer *writer;  // made by the first save
    uint64_t skipped_saves;
    bool drained, stop_saves;
    bool inputs_ended;     // a rank has no data left, and the job stops then
    bool diverged;         // replicas differ
    bool state_is_broken;  // that, or an update failed half-way: never to be saved
};

static void report_save(void *ctx, const gs_checkpoint_result *result) {
    gs_trainer *trainer = ctx;
    gs_control *control = trainer->options.control;
    if (result->status.code) {
        char text[300];
        gs_log_warn("checkpoint failed", "job=%s step=%lld cause=%s error=%s",
                    trainer->options.job, (long long)result->step, result->cause,
                    gs_log_quote(text, sizeof text, result->status.message));
    } else {
        gs_log_info("checkpoint written", "job=%s step=%lld name=%s bytes=%llu seconds=%.3f",
                    trainer->options.job, (long long)result->step, result->name,
                    (unsigned long long)result->bytes, result->seconds);
    }
    control->ops->checkpointed(control->ctx, result);
}

static gs_status save(gs_trainer *trainer, const char *reason, gs_deadline deadline) {
    if (!trainer->writer) {
        gs_checkpoint_writer_options options = {.directory = trainer->options.checkpoints_dir,
                                                .job = trainer->options.job,
                                                .spec = trainer->options.spec,
                                                .state = &trainer->state,
                                                .done = report_save,
                                                .ctx = trainer};
        GS_TRY(gs_checkpoint_writer_create(&trainer->writer, &options));
    }
    gs_control_set_phase(trainer->options.control, GS_PHASE_CHECKPOINT);
    return gs_checkpoint_writer_start_save(trainer->writer, reason,
                                           gs_session_world_size(trainer->session), deadline);
}

static gs_status save_and_wait(gs_trainer *trainer, const char *reason) {
    gs_deadline deadline = gs_deadline_in_seconds(FINAL_SAVE_SECONDS);
    GS_TRY(save(trainer, reason, deadline));
    return gs_checkpoint_writer_wait(trainer->writer, deadline);
}

// Opens the data once as a single rank would: errors show before anybody waits for this rank.
static gs_status check_data(gs_trainer *trainer) {
    const gs_job_spec *spec = trainer->options.spec;
    gs_data_loader_options options = {
        .spec = spec,
        .split = GS_TRAIN,
        .data_root = trainer->options.data_root,
        .shards = {.num_shards = (int)spec->logical_shards,
                   .world_size =
                       spec->data.split == GS_SPLIT_BY_RANK ? (int)spec->world.max : 1},
        .consumed = trainer->state.position.consumed,
        .ring_batches = 1};
    gs_data_loader *loader;
    GS_TRY(gs_data_loader_open(&loader, &options));
    trainer->data_digest = gs_data_loader_digest(loader);
    gs_data_loader_close(loader);
    return gs_ok();
}

static void *find_imported(const gs_state_snapshot *into, size_t tensor) {
    return into->memory + into->offsets[tensor];
}

// Into a copy in host memory, where the file's types and orders are turned into ours.
static gs_status import_file(gs_trainer_state *state, const char *path) {
    gs_state_snapshot into = {0};
    size_t first_buffer = state->num_tensors - state->num_buffers;
    void **tensors = calloc(state->num_params + state->num_buffers + 1, sizeof *tensors);
    gs_status status = tensors ? gs_state_snapshot_init(&into, state)
                               : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (!status.code) status = gs_state_snapshot_take(&into, state);
    if (!status.code) {
        for (size_t i = 0; i < state->num_params; i++) tensors[i] = find_imported(&into, i);
        for (size_t i = 0; i < state->num_buffers; i++)
            tensors[state->num_params + i] = find_imported(&into, first_buffer + i);
        status = gs_model_import(&state->model, tensors, tensors + state->num_params, path);
    }
    if (!status.code) status = gs_state_snapshot_restore(&into, state);
    gs_state_snapshot_release(&into);
    free(tensors);
    return status;
}

static gs_status import_model(gs_trainer *trainer) {
    const char *name = trainer->options.spec->model.init_from;
    char path[64];
    int file_fd = -1, root_fd = open(trainer->options.data_root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) return gs_error_from_errno(errno, "%s", trainer->options.data_root);
    gs_status status = gs_open_below(&file_fd, root_fd, name, 0);
    close(root_fd);
    if (status.code) return gs_status_prefix(status, "model.init_from");
    // Opened by its descriptor, so that it is the file that was found below the root.
    snprintf(path, sizeof path, "/proc/self/fd/%d", file_fd);
    status = import_file(&trainer->state, path);
    close(file_fd);
    return gs_status_prefix(status, "model.init_from: %s", name);
}

// A GPU that is not there is no passing trouble: the job, or the worker, is set up otherwise.
static gs_status open_device(gs_trainer *trainer, const gs_device_options *options) {
    const char *name = trainer->options.device ? trainer->options.device : "cpu";
    const char *place = trainer->options.place ? trainer->options.place : "here";
    bool on_gpu = strcmp(name, "cpu") != 0;
    long long num_replicas = (long long)trainer->options.spec->world.replicas_per_process;
    if (on_gpu && num_replicas > 1)
        return gs_error(GS_FAILED_PRECONDITION,
                        "world.replicas_per_process %lld: a process on a GPU has one replica",
                        num_replicas);
    gs_status status = gs_device_open(&trainer->device, name, options);
    bool is_missing = status.code == GS_UNAVAILABLE || status.code == GS_UNIMPLEMENTED;
    if (on_gpu && is_missing)
        return gs_error(GS_FAILED_PRECONDITION, "world.device cuda: %s: %s", place, status.message);
    return status;
}

static gs_status boot(gs_trainer *trainer) {
    const gs_trainer_options *options = &trainer->options;
    if (!options->control->timeline) {
        GS_TRY(gs_timeline_create(&options->control->timeline, options->spec->tracing.ring_steps));
    }
    int num_replicas = (int)options->spec->world.replicas_per_process;
    int num_threads = options->num_threads / num_replicas;
    gs_device_options device = {.num_threads = num_threads > 0 ? num_threads : 1,
                                .tf32 = options->spec->model.precision == GS_PRECISION_TF32,
                                .same_bits = options->spec->exact};
    GS_TRY(open_device(trainer, &device));
    gs_device_arithmetic(trainer->device, trainer->arithmetic, sizeof trainer->arithmetic);
    GS_TRY(gs_trainer_state_init(&trainer->state, options->spec, trainer->device));
    if (options->resume && *options->resume) {
        GS_TRY(gs_checkpoint_load(&trainer->state, options->resume, options->spec));
    } else if (*options->spec->model.init_from) {
        GS_TRY(import_model(trainer));
    }
    atomic_store(&options->control->applied_step, trainer->state.position.step);
    if (num_replicas > 1)
        GS_TRY(gs_replica_set_create(&trainer->replica_set, options->spec, &trainer->state,
                                     device.num_threads));
    return check_data(trainer);
}

gs_status gs_trainer_create(gs_trainer **out, const gs_trainer_options *options) {
    gs_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer) return gs_error(GS_RESOURCE_EXHAUSTED, "trainer: out of memory");
    trainer->options = *options;
    const char *wanted = getenv("GRADSYNC_STEP_DIGESTS");
    trainer->logs_digests = wanted && strcmp(wanted, "1") == 0;
    gs_status status = boot(trainer);
    if (status.code) {
        gs_trainer_destroy(trainer);
        return status;
    }
    *out = trainer;
    return gs_ok();
}

void gs_trainer_destroy(gs_trainer *trainer) {
    if (!trainer) return;
    gs_checkpoint_writer_destroy(trainer->writer);
    gs_session_destroy(trainer->session);
    gs_replica_set_destroy(trainer->replica_set);
    gs_trainer_state_release(&trainer->state);
    gs_device_close(trainer->device);
    free(trainer);
}

const gs_trainer_state *gs_trainer_get_state(const gs_trainer *trainer) {
    return &trainer->state;
}

gs_digest gs_trainer_data_digest(const gs_trainer *trainer) {
    return trainer->data_digest;
}

const char *gs_trainer_arithmetic(const gs_trainer *trainer) {
    return trainer->arithmetic;
}

gs_status gs_trainer_prepare(gs_trainer *trainer, const gs_assignment *assignment) {
    gs_session_destroy(trainer->session);
    trainer->session = NULL;
    gs_session_options options = {.spec = trainer->options.spec,
                                  .state = &trainer->state,
                                  .control = trainer->options.control,
                                  .data_root = trainer->options.data_root,
                                  .generation = assignment->generation,
                                  .rank = assignment->rank,
                                  .world_size = assignment->world_size,
                                  .num_shards = assignment->num_shards,
                                  .plan = assignment->plan,
                                  .replica_set = trainer->replica_set,
                                  .plan_is_observed = assignment->plan_is_observed};
    return gs_session_create(&trainer->session, &options);
}

gs_status gs_trainer_connect(gs_trainer *trainer, gs_deadline deadline) {
    GS_TRY(gs_session_connect(trainer->session, deadline));
    gs_telemetry_init(&trainer->telemetry, trainer->session);
    return gs_ok();
}

const gs_session *gs_trainer_get_session(const gs_trainer *trainer) {
    return trainer->session;
}

const char *gs_trainer_end_name(gs_trainer_end end) {
    static const char *const names[] = {"target_reached", "drained", "aborted", "error",
                                        "data_ended"};
    return names[end];
}

void gs_trainer_outcome_release(gs_trainer_outcome *outcome) {
    free(outcome->sample);
    *outcome = (gs_trainer_outcome){0};
}

static bool writes_files(const gs_trainer *trainer) {
    return gs_session_rank(trainer->session) == 0;
}

static void log_digest(const gs_trainer *trainer) {
    if (!trainer->logs_digests) return;
    char digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, gs_trainer_state_digest(&trainer->state));
    gs_log_debug("step digest", "job=%s rank=%d step=%lld digest=%s", trainer->options.job,
                 gs_session_rank(trainer->session), (long long)trainer->state.position.step,
                 digest);
}

static bool report(gs_trainer *trainer) {
    const gs_control *control = trainer->options.control;
    gs_json *step_report = gs_telemetry_report(&trainer->telemetry, writes_files(trainer));
    bool heard = control->ops->report(control->ctx, step_report);
    gs_telemetry_note_heard(&trainer->telemetry, heard);
    return heard;
}

bool gs_trainer_report_rest(gs_trainer *trainer) {
    if (!trainer->session || trainer->telemetry.totals.steps == 0) return true;
    bool heard = true;
    while (heard && gs_telemetry_waits(&trainer->telemetry)) heard = report(trainer);
    return heard;
}

static gs_status evaluate_when_due(gs_trainer *trainer) {
    const gs_job_spec *spec = trainer->options.spec;
    int64_t step = trainer->state.position.step;
    if (!gs_session_can_evaluate(trainer->session)) return gs_ok();
    bool due = step % spec->data.eval_every_steps == 0, ends = step == spec->steps.target;
    if (trainer->inputs_ended ? due : !due && !ends) return gs_ok();
    gs_evaluation evaluation;
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_session_evaluate(trainer->session, &evaluation));
    gs_timeline_add(trainer->options.control->timeline, GS_SPAN_EVALUATE, begin_ns);
    trainer->telemetry.evaluation = evaluation;
    trainer->telemetry.has_evaluation = true;
    return gs_ok();
}

// Rank 0, on the ranks' own count. Never waits for the disk; a failed save does not stop the training.
static void save_when_due(gs_trainer *trainer) {
    const gs_job_spec *spec = trainer->options.spec;
    int64_t step = trainer->state.position.step, every = spec->checkpoint.every_steps;
    if (!writes_files(trainer) || every == 0 || step % every != 0) return;
    if (step >= spec->steps.target) return;  // the save at the end is this one
    int64_t begin_ns = gs_now_ns();
    gs_status status = save(trainer, "periodic", (gs_deadline){0});
    if (status.code) {
        trainer->skipped_saves++;
        gs_log_warn("checkpoint skipped", "job=%s step=%lld skipped=%llu reason=\"%s\"",
                    trainer->options.job, (long long)step,
                    (unsigned long long)trainer->skipped_saves, status.message);
    }
    gs_timeline_add(trainer->options.control->timeline, GS_SPAN_CHECKPOINT, begin_ns);
    gs_telemetry_add_checkpoint(&trainer->telemetry,
                                (double)(gs_now_ns() - begin_ns) / (double)GS_NS_PER_SEC);
}

static gs_status apply_step(gs_trainer *trainer, gs_step_facts *facts) {
    gs_status status = gs_session_apply(trainer->session, facts);
    if (status.code) trainer->state_is_broken = true;
    return status;
}

static gs_step_votes collect_votes(const gs_trainer *trainer) {
    gs_step_votes votes = {0};
    bool save_asked;
    votes.drain = gs_control_drains(trainer->options.control, &save_asked);
    votes.checkpoint = votes.drain && save_asked && trainer->options.spec->checkpoint.on_stop;
    return votes;
}

static void log_switch(const gs_trainer *trainer, const gs_step_facts *facts) {
    if (!facts->plan_revision || !writes_files(trainer)) return;
    gs_log_info("plan switched", "job=%s rank=0 step=%lld revision=%d buckets=%zu seconds=%.6f",
                trainer->options.job, (long long)facts->step, facts->plan_revision,
                facts->stats->num_buckets, facts->switch_seconds);
}

// A loss scale that is still above 1 finds its place yet: from the largest float down are 128
// halvings.
static bool skips_for_ever(const gs_position *position) {
    bool is_scaling = position->loss_scale.scale > 1;
    int64_t most = is_scaling ? MOST_SKIPPED_WHILE_SCALING : MOST_SKIPPED_IN_A_ROW;
    return position->skipped_in_a_row >= most;
}

static gs_status check_skipped(const gs_trainer *trainer, int64_t step) {
    const gs_position *position = &trainer->state.position;
    if (!skips_for_ever(position)) return gs_ok();
    return gs_error(GS_OUT_OF_RANGE, "step %lld: gradients were not finite %lld times in a row",
                    (long long)step, (long long)position->skipped_in_a_row);
}

static gs_status run_step(gs_trainer *trainer) {
    gs_timeline *timeline = trainer->options.control->timeline;
    int64_t begin_ns = gs_now_ns();
    gs_timeline_begin(timeline, trainer->state.position.step);
    gs_step_votes votes = collect_votes(trainer);
    gs_step_facts facts;
    gs_status status = gs_session_run_step(trainer->session, &facts, &votes);
    trainer->diverged = facts.diverged;
    trainer->state_is_broken = facts.diverged;
    trainer->inputs_ended = facts.inputs_ended;
    if (facts.inputs_ended) {
        char text[300];
        gs_log_info("data ended", "job=%s rank=%d step=%lld reason=%s", trainer->options.job,
                    gs_session_rank(trainer->session), (long long)facts.step,
                    gs_log_quote(text, sizeof text, status.message));
        return evaluate_when_due(trainer);
    }
    if (status.code) return status;
    GS_TRY(apply_step(trainer, &facts));
    log_switch(trainer, &facts);
    atomic_store(&trainer->options.control->applied_step, trainer->state.position.step);
    gs_telemetry_observe(&trainer->telemetry, &facts, gs_now_ns() - begin_ns);
    trainer->drained = facts.drain;
    trainer->stop_saves = facts.checkpoint;
    // Whatever becomes of this, the step is done.
    GS_TRY(gs_session_finish_epoch(trainer->session));
    log_digest(trainer);
    GS_TRY(check_skipped(trainer, facts.step));
    GS_TRY(evaluate_when_due(trainer));
    save_when_due(trainer);
    gs_timeline_finish(timeline, facts.samples, facts.nonfinite_ranks == 0);
    if (gs_telemetry_is_due(&trainer->telemetry)) report(trainer);
    return gs_ok();
}

static gs_status run_steps(gs_trainer *trainer) {
    const gs_job_spec *spec = trainer->options.spec;
    while (trainer->state.position.step < spec->steps.target && !trainer->drained &&
           !trainer->inputs_ended) {
        GS_TRY(gs_control_check(trainer->options.control));
        if (spec->debug.step_delay_ms) gs_sleep_ns(spec->debug.step_delay_ms * GS_NS_PER_MS);
        GS_TRY(run_step(trainer));
    }
    return gs_ok();
}

// The last update is done, too.
static gs_status await_device(gs_trainer *trainer) {
    gs_status status = gs_stream_wait(gs_device_stream(trainer->device),
                                      gs_deadline_in_seconds(LAST_UPDATE_SECONDS));
    if (status.code) trainer->state_is_broken = true;
    return status;
}

static void make_sample(gs_trainer *trainer, gs_trainer_outcome *outcome) {
    const gs_job_spec *spec = trainer->options.spec;
    bool bytes = spec->model.kind == GS_MODEL_GPT2 && spec->model.gpt2.vocab <= 256;
    if (!bytes || spec->sample.tokens == 0 || !writes_files(trainer)) return;
    gs_generate_options options = {.prompt = spec->sample.prompt,
                                   .tokens = spec->sample.tokens,
                                   .temperature = spec->sample.temperature,
                                   .seed = (uint64_t)spec->model.seed,
                                   .context = spec->model.gpt2.context,
                                   .vocab = spec->model.gpt2.vocab};
    gs_strbuf text = {0};
    const gs_trainer_state *state = &trainer->state;
    gs_status status =
        gs_generate(&text, &state->model, state->values,
                    (const void *const *)gs_buffers_committed(state->buffers), trainer->device,
                    &options);
    if (!status.code) outcome->sample = gs_strbuf_take(&text);
    else gs_log_warn("no sample", "job=%s reason=\"%s\"", trainer->options.job, status.message);
    gs_strbuf_release(&text);
}

// A failed save is reported by report_save and does not turn a finished run into a failed one.
static void finish_run(gs_trainer *trainer, gs_trainer_outcome *outcome) {
    bool reached = trainer->inputs_ended ||
                   trainer->state.position.step >= trainer->options.spec->steps.target;
    // A run that had nothing left to do has nothing to tell: zeros would stand for a loss.
    if (trainer->telemetry.totals.steps > 0) report(trainer);
    if (writes_files(trainer) && (reached || trainer->stop_saves)) {
        gs_status status = save_and_wait(trainer, reached ? "final" : "stop");
        if (status.code) {
            gs_log_warn("no checkpoint at the end", "job=%s reason=\"%s\"", trainer->options.job,
                        status.message);
        }
    }
    if (reached) make_sample(trainer, outcome);
    outcome->end = trainer->inputs_ended ? GS_DATA_ENDED
                   : reached             ? GS_TARGET_REACHED
                                         : GS_DRAINED;
    outcome->status = gs_ok();
    outcome->reason = gs_exit_reason_of(outcome->status);
}

void gs_trainer_run(gs_trainer *trainer, gs_trainer_outcome *outcome) {
    *outcome = (gs_trainer_outcome){0};
    gs_status status = run_steps(trainer);
    if (!status.code) status = await_device(trainer);
    if (status.code) {
        gs_trainer_give_up(trainer, status, outcome);
        return;
    }
    finish_run(trainer, outcome);
    outcome->state_digest = gs_trainer_state_digest(&trainer->state);
}

static void report_fault(gs_trainer *trainer, gs_status why) {
    gs_control *control = trainer->options.control;
    if (atomic_load(&control->aborted)) return;  // who ended the generation knows why
    gs_fault fault = gs_fault_of(why);
    fault.generation = gs_session_generation(trainer->session);
    fault.rank = gs_session_rank(trainer->session);
    fault.step = trainer->state.position.step;
    bool on_gpu = !gs_device_is_host(trainer->device);
    if (on_gpu && why.code == GS_RESOURCE_EXHAUSTED) fault.kind = "no_device_memory";
    if (gs_device_is_lost(trainer->device)) fault.kind = "device_lost";
    if (trainer->diverged) fault.kind = "divergence";
    if (skips_for_ever(&trainer->state.position)) fault.kind = "numerics";
    control->ops->fault(control->ctx, &fault);
}

// A step that is reduced here is applied at once, so that its digest can be told; the snapshot takes it
// back when the others did without it. False: it could not be tried, the state is as it was.
static bool try_complete_step(gs_trainer *trainer, gs_state_snapshot *before) {
    if (!gs_session_complete(trainer->session) || trainer->state_is_broken) return false;
    gs_status status = gs_state_snapshot_init(before, &trainer->state);
    if (!status.code) status = gs_state_snapshot_take(before, &trainer->state);
    if (status.code) return false;
    gs_step_facts facts = {0};
    return apply_step(trainer, &facts).code == GS_OK;
}

static void settle(gs_trainer *trainer) {
    gs_control *control = trainer->options.control;
    gs_state_snapshot before = {0};
    gs_settlement mine = {.generation = gs_session_generation(trainer->session),
                          .rank = gs_session_rank(trainer->session),
                          .applied_step = trainer->state.position.step,
                          .complete = gs_session_complete(trainer->session) &&
                                      !trainer->state_is_broken,
                          .state_digest = gs_trainer_state_digest(&trainer->state)};
    bool tried = try_complete_step(trainer, &before);
    if (tried) mine.next_digest = gs_trainer_state_digest(&trainer->state);

    gs_settle_verdict verdict = {0};
    gs_status status = control->ops->settle(control->ctx, &verdict, &mine);
    const char *reason = "settled";
    if (status.code) {
        // Nobody can decide. What this rank knows for certain is the step that it had applied.
        gs_log_warn("settled alone", "job=%s rank=%d step=%lld reason=\"%s\"",
                    trainer->options.job, mine.rank, (long long)mine.applied_step, status.message);
        verdict = (gs_settle_verdict){.save = true};
        reason = "orphaned";
    }
    gs_step_facts facts = {0};
    if (tried && !verdict.apply) status = gs_state_snapshot_restore(&before, &trainer->state);
    else if (!tried && verdict.apply && mine.complete) status = apply_step(trainer, &facts);
    else status = gs_ok();
    gs_state_snapshot_release(&before);
    atomic_store(&control->applied_step, trainer->state.position.step);
    log_digest(trainer);
    if (verdict.save && !trainer->state_is_broken && !status.code) {
        status = save_and_wait(trainer, reason);
    }
    if (status.code) {
        gs_log_warn("settling failed", "job=%s rank=%d reason=\"%s\"", trainer->options.job,
                    mine.rank, status.message);
    }
}

void gs_trainer_give_up(gs_trainer *trainer, gs_status why, gs_trainer_outcome *outcome) {
    *outcome = (gs_trainer_outcome){.status = why, .reason = gs_exit_reason_of(why)};
    // Its memory cannot be read, but a new process may well find it sound again.
    bool lost = gs_device_is_lost(trainer->device);
    if (lost) outcome->reason = gs_exit_reason_of_lost_device();
    bool user = strcmp(outcome->reason.error_class, "user") == 0;
    if (trainer->session) {
        gs_session_abort(trainer->session, why.message);
        report_fault(trainer, why);
        // A rank that is at fault itself leaves; the others settle without it.
        if (!user && !lost) settle(trainer);
    }
    bool is_bug = why.code == GS_INTERNAL && !lost;
    outcome->end = user || is_bug ? GS_TRAINER_FAILED : GS_TRAINER_ABORTED;
    if (outcome->end == GS_TRAINER_ABORTED) outcome->reason.exit_code = GS_EXIT_TEMPORARY;
    if (!lost) outcome->state_digest = gs_trainer_state_digest(&trainer->state);
}
