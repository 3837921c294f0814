#include "worker/trainer/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "worker/trainer/generate.h"
#include "worker/trainer/run_loop.h"
#include "worker/trainer/settling.h"
#include "worker/trainer/startup.h"

#define LAST_UPDATE_SECONDS 60.0
// Of ranks that leave an old generation. Longer would end the process (control/teardown_watch.h); who has not
// left by then is frozen.
#define OLD_LIVES_SECONDS 2.0

struct gs_trainer {
    gs_trainer_options options;
    gs_device *device;
    gs_trainer_state state;
    gs_model_replicas *model_replicas;  // NULL: one replica
    gs_digest data_digest;
    char arithmetic[256];

    gs_grad_memory memory;
    gs_session *session;
    gs_saves saves;
    gs_run_loop loop;
};

static gs_status fill_state(gs_trainer *trainer) {
    const gs_trainer_options *options = &trainer->options;
    gs_status status = gs_startup_fill_state(&trainer->state, options->spec, options->data_root,
                                             options->resume);
    if (status.code == GS_NOT_FOUND && options->is_apart && options->resume && *options->resume) {
        gs_log_warn("no checkpoint here: the state is to come from another rank", "job=%s checkpoint=%s", options->job, options->resume);
        return gs_ok();
    }
    bool unusable = status.code == GS_DATA_LOSS || status.code == GS_NOT_FOUND;
    if (unusable && options->resume && *options->resume && options->bad_checkpoint)
        *options->bad_checkpoint = true;
    return status;
}

static gs_status boot(gs_trainer *trainer) {
    const gs_trainer_options *options = &trainer->options;
    const gs_job_spec *spec = options->spec;
    gs_trainer_state *state = &trainer->state;
    if (!options->control->progress.timeline)
        GS_TRY(gs_timeline_create(&options->control->progress.timeline, spec->tracing.ring_steps));
    int num_replicas = (int)spec->world.replicas_per_process;
    int num_threads = options->num_threads / num_replicas;
    gs_startup_device device = {.name = options->device,
                                .place = options->place,
                                .num_threads = num_threads > 0 ? num_threads : 1};
    GS_TRY(gs_startup_open_device(&trainer->device, spec, &device));
    gs_device_arithmetic(trainer->device, trainer->arithmetic, sizeof trainer->arithmetic);
    GS_TRY(gs_trainer_state_init(state, spec, trainer->device));
    GS_TRY(fill_state(trainer));
    atomic_store(&options->control->progress.applied_step, state->position.step);
    if (num_replicas > 1)
        GS_TRY(gs_model_replicas_create(&trainer->model_replicas, spec, state, device.num_threads));
    return gs_startup_check_data(&trainer->data_digest, spec, options->data_root,
                                 state->position.consumed);
}

static bool wants_digests(void) {
    const char *wanted = getenv("GRADSYNC_STEP_DIGESTS");
    return wanted && strcmp(wanted, "1") == 0;
}

gs_status gs_trainer_create(gs_trainer **out, const gs_trainer_options *options) {
    gs_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer) return gs_error(GS_RESOURCE_EXHAUSTED, "trainer: out of memory");
    trainer->options = *options;
    trainer->saves = (gs_saves){.spec = options->spec,
                                .control = options->control,
                                .state = &trainer->state,
                                .job = options->job,
                                .directory = options->checkpoints_dir,
                                .cluster = options->cluster};
    trainer->loop = (gs_run_loop){.spec = options->spec,
                                  .control = options->control,
                                  .job = options->job,
                                  .state = &trainer->state,
                                  .saves = &trainer->saves,
                                  .logs_digests = wants_digests()};
    gs_status status = boot(trainer);
    if (status.code) {
        gs_trainer_destroy(trainer);
        return status;
    }
    *out = trainer;
    return gs_ok();
}

bool gs_trainer_await_saves(gs_trainer *trainer, gs_deadline deadline) {
    return gs_saves_await(&trainer->saves, deadline);
}

void gs_trainer_commit_saves(gs_trainer *trainer) {
    if (trainer->session && gs_session_writes_files(trainer->session))
        gs_saves_commit(&trainer->saves);
}

void gs_trainer_destroy(gs_trainer *trainer) {
    if (!trainer) return;
    gs_saves_release(&trainer->saves);
    gs_session_destroy(trainer->session);
    gs_grad_memory_release(&trainer->memory);
    gs_model_replicas_destroy(trainer->model_replicas);
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

// The next one gets other memory where ranks of the last may still write into this.
static void end_session(gs_trainer *trainer) {
    if (!trainer->session) return;
    gs_saves_part(&trainer->saves);
    gs_status status =
        gs_session_wait_ended(trainer->session, gs_deadline_in_seconds(OLD_LIVES_SECONDS));
    if (status.code)
        gs_log_warn("an old generation has not ended", "job=%s generation=%u reason=\"%s\"",
                    trainer->options.job, gs_session_generation(trainer->session), status.message);
    trainer->saves.team = NULL;
    gs_session_destroy(trainer->session);
    trainer->session = NULL;
    gs_run_loop_leave_session(&trainer->loop);
}

gs_status gs_trainer_prepare(gs_trainer *trainer, const gs_assignment *assignment) {
    end_session(trainer);
    gs_session_options options = {.spec = trainer->options.spec,
                                  .state = &trainer->state,
                                  .state_is_broken = trainer->loop.state_is_broken,
                                  .memory = &trainer->memory,
                                  .control = trainer->options.control,
                                  .data_root = trainer->options.data_root,
                                  .data_address = trainer->options.data_address,
                                  .sees_no_checkpoints = trainer->options.is_apart,
                                  .place = assignment->place,
                                  .num_shards = assignment->num_shards,
                                  .plan = assignment->plan,
                                  .model_replicas = trainer->model_replicas,
                                  .plan_is_observed = assignment->plan_is_observed};
    GS_TRY(gs_session_create(&trainer->session, &options));
    trainer->loop.session = trainer->session;
    return gs_ok();
}

gs_status gs_trainer_connect(gs_trainer *trainer, gs_deadline deadline) {
    gs_session *session = trainer->session;
    gs_status status = gs_session_connect(session, deadline);
    trainer->loop.state_is_broken = gs_session_state_is_broken(session);
    GS_TRY(status);
    const gs_place place = gs_session_place(session);
    trainer->saves.team = gs_session_save_team(session);
    gs_saves_take_over(&trainer->saves, &place);
    gs_telemetry_init(&trainer->loop.telemetry, gs_session_generation(session),
                      gs_session_rank(session), gs_session_world_size(session));
    return gs_ok();
}

const gs_session *gs_trainer_get_session(const gs_trainer *trainer) {
    return trainer->session;
}

bool gs_trainer_report_rest(gs_trainer *trainer) {
    return gs_run_loop_report_rest(&trainer->loop);
}

// The last update is done, too.
static gs_status await_device(gs_trainer *trainer) {
    gs_status status = gs_stream_wait(gs_device_stream(trainer->device),
                                      gs_deadline_in_seconds(LAST_UPDATE_SECONDS));
    if (status.code) trainer->loop.state_is_broken = true;
    return status;
}

// A failed save has been told of and does not turn a finished run into a failed one.
static void save_at_end(gs_trainer *trainer, const char *reason) {
    const gs_place place = gs_session_place(trainer->session);
    gs_status status = gs_saves_at_end(&trainer->saves, reason, &place);
    if (status.code) {
        gs_log_warn("no checkpoint at the end", "job=%s reason=\"%s\"", trainer->options.job,
                    status.message);
    }
}

static void make_sample(gs_trainer *trainer, gs_trainer_outcome *outcome) {
    gs_status status = gs_generate_sample(&outcome->sample, trainer->options.spec, &trainer->state);
    if (status.code)
        gs_log_warn("no sample", "job=%s reason=\"%s\"", trainer->options.job, status.message);
}

static void finish_run(gs_trainer *trainer, gs_trainer_outcome *outcome) {
    gs_run_loop *loop = &trainer->loop;
    bool writes = gs_session_writes_files(trainer->session);
    bool reached =
        loop->inputs_ended || trainer->state.position.step >= trainer->options.spec->steps.target;
    // A run that had nothing left to do has nothing to tell: zeros would stand for a loss.
    if (loop->telemetry.totals.steps > 0) gs_run_loop_report(loop);
    if (reached || loop->stop_saves || loop->orphaned)
        save_at_end(trainer, reached ? "final" : loop->orphaned ? "orphaned" : "stop");
    if (writes && reached) make_sample(trainer, outcome);
    outcome->end = loop->inputs_ended ? GS_DATA_ENDED
                   : reached          ? GS_TARGET_REACHED
                   : loop->orphaned   ? GS_ORPHANED
                                      : GS_DRAINED;
    outcome->status = gs_ok();
    outcome->reason = gs_exit_reason_of(outcome->status);
    if (outcome->end == GS_ORPHANED) {
        gs_log_warn("no coordinator for too long: saved and stopped", "job=%s step=%lld",
                    trainer->options.job, (long long)trainer->state.position.step);
        outcome->reason.exit_code = GS_EXIT_TEMPORARY;
    }
}

void gs_trainer_run(gs_trainer *trainer, gs_trainer_outcome *outcome) {
    *outcome = (gs_trainer_outcome){0};
    gs_status status = gs_run_loop_run(&trainer->loop);
    if (!status.code) status = await_device(trainer);
    if (status.code) {
        gs_trainer_give_up(trainer, status, outcome);
        return;
    }
    finish_run(trainer, outcome);
    outcome->state_digest = gs_trainer_state_digest(&trainer->state);
}

// What is broken, or is still written by others, is nobody's state.
static gs_digest digest_sound_state(const gs_trainer *trainer) {
    bool is_whole = !trainer->session || gs_session_has_params(trainer->session);
    if (trainer->loop.state_is_broken || !is_whole) return (gs_digest){0};
    return gs_trainer_state_digest(&trainer->state);
}

void gs_trainer_give_up(gs_trainer *trainer, gs_status why, gs_trainer_outcome *outcome) {
    *outcome = (gs_trainer_outcome){.status = why, .reason = gs_exit_reason_of(why)};
    // Its memory cannot be read, but a new process may well find it sound again.
    bool lost = gs_device_is_lost(trainer->device);
    if (lost) outcome->reason = gs_exit_reason_of_lost_device();
    bool user = strcmp(outcome->reason.error_class, "user") == 0;
    if (trainer->session) {
        gs_session_abort(trainer->session, why.message);
        gs_settling_report_fault(&trainer->loop, why);
        // A rank that is at fault itself leaves; the others settle without it.
        if (!user && !lost) gs_settling_run(&trainer->loop);
    }
    bool is_bug = why.code == GS_INTERNAL && !lost;
    outcome->end = user || is_bug ? GS_TRAINER_FAILED : GS_TRAINER_ABORTED;
    if (outcome->end == GS_TRAINER_ABORTED) outcome->reason.exit_code = GS_EXIT_TEMPORARY;
    if (!lost) outcome->state_digest = digest_sound_state(trainer);
}
