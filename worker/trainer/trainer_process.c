#include "worker/trainer/trainer_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/log.h"
#include "gradsync/step/logical_shards.h"
#include "rpc/plan/plan_message.h"
#include "worker/control/member.h"
#include "worker/data_address.h"
#include "worker/launch.h"
#include "worker/trainer/trainer.h"

// Nothing to do yet: how often the waiting trainer looks at its signal.
#define LOOK_MS 50
// What a run has come to is kept this long for a coordinator that is away.
#define LISTENER_SECONDS 600.0
// A save in flight is waited for this long at the end.
#define SAVE_SECONDS 600.0

typedef struct trainer_process {
    gs_launch launch;
    gs_control control;
    gs_member *member;
    gs_trainer *trainer;
    char plan_hash[GS_DIGEST_TEXT_LEN];
    char data_address[GS_DATA_ADDRESS_LEN];
    bool connected;
    gs_trainer_outcome outcome;
} trainer_process;

// The signal flag: SIGTERM asks to drain.
static volatile sig_atomic_t drain_signal;

static void note_signal(int number) {
    (void)number;
    drain_signal = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

// Data files stay open, and a job may have more of them than a shell's limit.
static void allow_many_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void set_log_level(const char *name) {
    gs_log_level level = GS_LOG_INFO;
    gs_log_level_from_name(&level, name);
    const char *digests = getenv("GRADSYNC_STEP_DIGESTS");
    if (digests && strcmp(digests, "1") == 0) level = GS_LOG_DEBUG;
    gs_log_set_level(level);
}

static void fail(trainer_process *process, gs_status status) {
    process->outcome.status = status;
    process->outcome.reason = gs_exit_reason_of(status);
    process->outcome.end = process->outcome.reason.exit_code == GS_EXIT_TEMPORARY
                               ? GS_TRAINER_ABORTED
                               : GS_TRAINER_FAILED;
}

// A damaged checkpoint is put aside, so that a restart takes an older one; another rank may have done so
// already, and then it is missing here. What cannot be put aside would be found again: that is for a person.
static void set_checkpoint_aside(trainer_process *process) {
    const char *path = process->launch.resume;
    const char *slash = strrchr(path, '/');
    char aside[4200];
    if (!slash) return;
    snprintf(aside, sizeof aside, "%.*s/bad-%s", (int)(slash - path), path, slash + 1);
    bool gone = rename(path, aside) == 0 || errno == ENOENT;
    gs_log_error("damaged checkpoint", "job=%s path=%s aside=%s error=\"%s\"", process->launch.job,
                 path, gone ? aside : "no", process->outcome.status.message);
    if (!gone) return;
    process->outcome.end = GS_TRAINER_ABORTED;
    process->outcome.reason = (gs_exit_reason){GS_EXIT_TEMPORARY, "infrastructure",
                                               "an older checkpoint is taken at the next start"};
}

static gs_status boot(trainer_process *process) {
    const gs_launch *launch = &process->launch;
    char place[128];
    gs_data_address_find(process->data_address, launch->data_address, launch->coordinator);
    snprintf(place, sizeof place, "rank %d on worker %.80s", launch->rank_hint, launch->worker);
    // The agent shows a trainer the GPUs that are its own, and no others.
    bool on_gpu = strcmp(launch->device, "cuda") == 0, bad_checkpoint = false;
    gs_trainer_options options = {.spec = &launch->spec,
                                  .device = on_gpu ? "cuda:0" : "cpu",
                                  .place = place,
                                  .control = &process->control,
                                  .job = launch->job,
                                  .data_root = launch->data_root,
                                  .data_address = process->data_address,
                                  .cluster = launch->cluster,
                                  .checkpoints_dir = launch->checkpoints_dir,
                                  .resume = launch->resume,
                                  .is_apart = launch->is_apart,
                                  .bad_checkpoint = &bad_checkpoint,
                                  .num_threads = launch->threads};
    gs_status status = gs_trainer_create(&process->trainer, &options);
    if (status.code) {
        fail(process, status);
        if (bad_checkpoint) set_checkpoint_aside(process);
    }
    return status;
}

static gs_status prepare(trainer_process *process, const gs_json *event) {
    gs_bucket_plan plan;
    const gs_json *message = gs_json_get(event, "plan");
    int64_t generation, rank, world_size, num_shards;
    GS_TRY(gs_json_read_int(&generation, event, "generation", 1, UINT32_MAX));
    GS_TRY(gs_json_read_int(&world_size, event, "world_size", 1, GS_MAX_LOGICAL_SHARDS));
    GS_TRY(gs_json_read_int(&rank, event, "rank", 0, world_size - 1));
    GS_TRY(gs_json_read_int(&num_shards, event, "num_shards", world_size, GS_MAX_LOGICAL_SHARDS));
    gs_place place = {
        .generation = (uint32_t)generation, .rank = (int)rank, .world_size = (int)world_size};
    gs_member_take_place(process->member, &place);
    atomic_store(&process->launch.page->rank, (int)rank);
    atomic_store(&process->launch.page->generation, (unsigned)generation);
    atomic_store(&process->launch.page->world_size, (int)world_size);
    const gs_trainer_state *state = gs_trainer_get_state(process->trainer);
    GS_TRY(gs_plan_message_decode(&plan, message, state->param_specs, state->num_params));
    snprintf(process->plan_hash, sizeof process->plan_hash, "%s",
             gs_json_string_or(message, "hash", ""));
    gs_assignment assignment = {.place = place,
                                .num_shards = (int)num_shards,
                                .plan = &plan,
                                .plan_is_observed = gs_json_bool_or(message, "observed", false)};
    gs_status status = gs_trainer_prepare(process->trainer, &assignment);
    gs_bucket_plan_release(&plan);
    process->connected = false;
    return status;
}

static gs_status send_ready(trainer_process *process) {
    return gs_member_send_ready(process->member, process->plan_hash,
                                gs_session_state_digest(gs_trainer_get_session(process->trainer)));
}

static gs_status send_comm_up(trainer_process *process) {
    const gs_session *session = gs_trainer_get_session(process->trainer);
    gs_comm_facts facts = {.generation = gs_session_generation(session),
                           .seconds = gs_session_connect_seconds(session),
                           .backend = gs_session_backend(session),
                           .reason = gs_session_backend_reason(session),
                           .algorithm = gs_session_algorithm(session)};
    return gs_member_send_comm_up(process->member, &facts);
}

static gs_status connect_ranks(trainer_process *process, uint32_t generation) {
    const gs_session *session = gs_trainer_get_session(process->trainer);
    gs_member_set_state(process->member, GS_MEMBER_CONNECTING, generation);
    GS_TRY(gs_trainer_connect(
        process->trainer,
        gs_deadline_in_seconds(process->launch.spec.reducer.timeout_seconds)));
    process->connected = true;
    gs_member_set_state(process->member, GS_MEMBER_CONNECTED, generation);
    gs_log_info("connected", "job=%s rank=%d world_size=%d generation=%u backend=%s seconds=%.3f",
                process->launch.job, gs_session_rank(session), gs_session_world_size(session),
                generation, gs_session_backend(session), gs_session_connect_seconds(session));
    return send_comm_up(process);
}

// Events may repeat after a reconnect: each is answered as often as it comes, and done once.
static gs_status take_event(trainer_process *process, const gs_json *event, bool *go) {
    const char *type = gs_json_string_or(event, "type", "");
    const gs_session *session = gs_trainer_get_session(process->trainer);
    uint32_t generation = (uint32_t)gs_json_int_or(event, "generation", 0);
    bool same = session && gs_session_generation(session) == generation;
    if (strcmp(type, "prepare") == 0) {
        if (!same) GS_TRY(prepare(process, event));
        return send_ready(process);
    }
    if (!same) return gs_ok();
    if (strcmp(type, "start") == 0) {
        if (process->connected) return send_comm_up(process);
        return connect_ranks(process, generation);
    }
    if (strcmp(type, "go") == 0 && process->connected) *go = true;
    return gs_ok();
}

// Ok with *go false: asked to leave before there was anything to train.
static gs_status wait_for_go(trainer_process *process, bool *go) {
    bool save;
    while (!*go && !gs_mailbox_drains(&process->control.mailbox, &save)) {
        gs_json *event = NULL;
        gs_status status = gs_member_next_event(process->member, &event, gs_deadline_in_ms(LOOK_MS));
        if (status.code == GS_DEADLINE_EXCEEDED) continue;
        if (status.code) return status;
        status = take_event(process, event, go);
        gs_json_release(event);
        if (status.code) return status;
    }
    return gs_ok();
}

static gs_status join(trainer_process *process) {
    const gs_trainer_state *state = gs_trainer_get_state(process->trainer);
    gs_trainer_facts facts = {.params = state->param_specs,
                              .num_params = state->num_params,
                              .total_elements = gs_trainer_state_total_elements(state),
                              .arithmetic = gs_trainer_arithmetic(process->trainer),
                              .data_digest = gs_trainer_data_digest(process->trainer)};
    return gs_member_join(process->member, &facts);
}

static void train(trainer_process *process) {
    bool go = false;
    gs_status status = join(process);
    if (!status.code) status = wait_for_go(process, &go);
    if (status.code) {
        gs_trainer_give_up(process->trainer, status, &process->outcome);
        return;
    }
    if (!go) {
        process->outcome = (gs_trainer_outcome){.end = GS_DRAINED};
        return;
    }
    const gs_session *session = gs_trainer_get_session(process->trainer);
    gs_member_set_state(process->member, GS_MEMBER_RUNNING, gs_session_generation(session));
    gs_trainer_run(process->trainer, &process->outcome);
}

static void log_end(const trainer_process *process, int rank) {
    const gs_trainer_outcome *outcome = &process->outcome;
    char text[300];
    gs_log_level level = outcome->end == GS_TRAINER_FAILED ? GS_LOG_ERROR : GS_LOG_INFO;
    gs_log(level, "trainer ends", "job=%s rank=%d step=%lld reason=%s exit_code=%d error=%s",
           process->launch.job, rank, (long long)atomic_load(&process->control.progress.applied_step),
           gs_trainer_end_name(outcome->end), outcome->reason.exit_code,
           gs_log_quote(text, sizeof text, outcome->status.message));
}

static void run(trainer_process *process) {
    gs_status status = gs_member_create(&process->member, &process->launch, &process->control);
    if (status.code) {
        fail(process, status);
        return;
    }
    process->control.ctx = process->member;
    status = boot(process);
    if (!status.code) train(process);
    int rank = atomic_load(&process->launch.page->rank);
    log_end(process, rank);
    bool heard =
        gs_member_wait_for_welcome(process->member, gs_deadline_in_seconds(LISTENER_SECONDS));
    if (!heard && process->trainer) gs_trainer_commit_saves(process->trainer);
    if (heard && process->trainer && !gs_trainer_report_rest(process->trainer))
        gs_log_warn("reports are lost", "job=%s rank=%d", process->launch.job, rank);
    gs_member_say_bye(process->member, &process->outcome, rank);
}

// A disk that does not answer holds its thread for as long as it likes, and a process that waits
// for it keeps its slot. All has been said by now.
static void end_saves(trainer_process *process, int exit_code) {
    if (!process->trainer) return;
    if (gs_trainer_await_saves(process->trainer, gs_deadline_in_seconds(SAVE_SECONDS))) return;
    gs_log_error("a checkpoint does not come to an end and is left behind", "job=%s",
                 process->launch.job);
    _exit(exit_code);
}

int gs_trainer_process_run(int launch_fd) {
    trainer_process process = {0};
    catch_signals();
    allow_many_files();
    gs_status status = gs_launch_read(&process.launch, launch_fd);
    if (status.code) {
        gs_log_error("no launch document", "error=\"%s\"", status.message);
        return GS_EXIT_CONFIGURATION;
    }
    if (atomic_load(&process.launch.page->is_guarded)) prctl(PR_SET_DUMPABLE, 0);
    set_log_level(process.launch.log_level);
    gs_control_init(&process.control, &gs_member_control_ops, NULL);
    process.control.mailbox.drain_signal = &drain_signal;
    run(&process);
    int exit_code = (int)process.outcome.reason.exit_code;
    end_saves(&process, exit_code);
    gs_trainer_destroy(process.trainer);
    gs_member_destroy(process.member);
    gs_trainer_outcome_release(&process.outcome);
    gs_control_release(&process.control);
    gs_launch_release(&process.launch);
    return exit_code;
}
