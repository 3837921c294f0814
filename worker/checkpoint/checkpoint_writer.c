#include "worker/checkpoint/checkpoint_writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/thread.h"

struct gs_checkpoint_writer {
    gs_checkpoint_writer_options options;
    char *directory, *job;
    // Of the compute thread while idle, of the writer's while busy.
    gs_state_snapshot copy, view;       // memory for copies: made by the first
    const gs_state_snapshot *snapshot;  // one of them: what is to be written
    gs_part_intake *intake;             // and what other ranks have no place for; NULL: nothing
    gs_thread *thread;

    pthread_mutex_t lock;  // of what follows
    pthread_cond_t changed;
    bool busy;
    gs_checkpoint_request request;
    gs_status last;
};

static gs_checkpoint_options options_of(const gs_checkpoint_writer *writer, int part) {
    gs_checkpoint_options options = {.directory = writer->directory,
                                     .job = writer->job,
                                     .cluster = writer->options.cluster,
                                     .spec = writer->options.spec,
                                     .request = writer->request};
    options.request.part = part;
    return options;
}

static gs_status write_own(gs_checkpoint_writer *writer) {
    const gs_checkpoint_options options = options_of(writer, writer->request.part);
    gs_checkpoint_result result;
    gs_status status = gs_checkpoint_save(&result, writer->snapshot, &options);
    writer->options.done(writer->options.ctx, &result);
    return status;
}

// One that did not come is told of like one that could not be written.
static gs_status write_brought(gs_checkpoint_writer *writer, const gs_brought_part *part) {
    gs_checkpoint_options options = options_of(writer, part->rank);
    gs_checkpoint_result result = gs_checkpoint_announce(&writer->snapshot->position, &options);
    options.spill = part->spill;
    gs_status status = part->status;
    if (status.code) {
        status = gs_status_prefix(status, "checkpoint of step %lld: part of rank %d", (long long)result.step, part->rank);
        result.status = status;
        if (status.code == GS_RESOURCE_EXHAUSTED) result.cause = "space";
        if (status.code == GS_DEADLINE_EXCEEDED) result.cause = "deadline";
    } else {
        status = gs_checkpoint_save(&result, &part->snapshot, &options);
    }
    writer->options.done(writer->options.ctx, &result);
    return status;
}

// What comes goes to the disk first, for ranks keep it until it has come. Each part is reported, whatever became of those before.
static void write_snapshot(gs_checkpoint_writer *writer) {
    if (writer->intake) gs_part_intake_run(writer->intake);
    gs_status status = write_own(writer);
    for (int i = 0; writer->intake && i < gs_part_intake_count(writer->intake); i++) {
        gs_status other = write_brought(writer, gs_part_intake_part(writer->intake, i));
        gs_part_intake_drop(writer->intake, i);
        if (!status.code) status = other;
    }
    gs_part_intake_destroy(writer->intake);
    writer->intake = NULL;
    pthread_mutex_lock(&writer->lock);
    writer->last = status;
    writer->busy = false;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

static void run_writer(void *ctx, const atomic_bool *stopping) {
    gs_checkpoint_writer *writer = ctx;
    setpriority(PRIO_PROCESS, 0, 10);  // of this thread: training comes first
    pthread_mutex_lock(&writer->lock);
    while (!atomic_load(stopping) || writer->busy) {
        if (!writer->busy) {
            gs_cond_wait(&writer->changed, &writer->lock, gs_deadline_in_ms(1000));
            continue;
        }
        pthread_mutex_unlock(&writer->lock);
        write_snapshot(writer);
        pthread_mutex_lock(&writer->lock);
    }
    pthread_mutex_unlock(&writer->lock);
}

gs_status gs_checkpoint_writer_create(gs_checkpoint_writer **out,
                                      const gs_checkpoint_writer_options *options) {
    gs_checkpoint_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint writer: out of memory");
    writer->options = *options;
    writer->directory = strdup(options->directory);
    writer->job = strdup(options->job);
    pthread_mutex_init(&writer->lock, NULL);
    gs_cond_init(&writer->changed);
    gs_status status = gs_ok();
    if (!writer->directory || !writer->job) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint writer: out of memory");
    }
    if (!status.code) {
        status = gs_thread_start(&writer->thread, "gs-checkpoint", run_writer, writer);
    }
    if (status.code) {
        gs_checkpoint_writer_destroy(writer);
        return status;
    }
    *out = writer;
    return gs_ok();
}

void gs_checkpoint_writer_destroy(gs_checkpoint_writer *writer) {
    if (!writer) return;
    gs_thread_ask_to_stop(writer->thread);
    pthread_mutex_lock(&writer->lock);
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    gs_thread_stop(writer->thread);
    gs_state_snapshot_release(&writer->copy);
    gs_state_snapshot_release(&writer->view);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer->directory);
    free(writer->job);
    free(writer);
}

static bool wait_until_idle(gs_checkpoint_writer *writer, gs_deadline deadline) {
    bool in_time = true;
    pthread_mutex_lock(&writer->lock);
    while (writer->busy && in_time && !gs_deadline_passed(deadline)) {
        in_time = gs_cond_wait(&writer->changed, &writer->lock, deadline);
    }
    bool idle = !writer->busy;
    pthread_mutex_unlock(&writer->lock);
    return idle;
}

bool gs_checkpoint_writer_is_busy(gs_checkpoint_writer *writer) {
    return !wait_until_idle(writer, (gs_deadline){0});
}

static void start(gs_checkpoint_writer *writer, const gs_state_snapshot *snapshot,
                  const gs_checkpoint_request *request) {
    pthread_mutex_lock(&writer->lock);
    writer->snapshot = snapshot;
    writer->request = *request;
    writer->busy = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

// All in one file, or each rank its own.
static gs_share_range shares_of(const gs_checkpoint_request *request) {
    bool is_whole = request->num_parts == 1;
    return (gs_share_range){.first = is_whole ? 0 : request->part,
                            .count = is_whole ? request->world_size : 1,
                            .world_size = request->world_size};
}

static gs_status await_idle(gs_checkpoint_writer *writer, gs_deadline deadline) {
    if (wait_until_idle(writer, deadline)) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "the last checkpoint is still being written");
}

static gs_status take_copy(gs_checkpoint_writer *writer, const gs_checkpoint_request *request) {
    // What hooks carry may have come, or gone, with a session.
    const gs_trainer_state *state = writer->options.state;
    gs_share_range shares = shares_of(request);
    if (!gs_state_snapshot_fits(&writer->copy, state, shares))
        gs_state_snapshot_release(&writer->copy);
    if (!writer->copy.memory) GS_TRY(gs_state_snapshot_init(&writer->copy, state, shares));
    return gs_state_snapshot_take(&writer->copy, writer->options.state);
}

static gs_status take_view(gs_checkpoint_writer *writer, const gs_checkpoint_request *request) {
    gs_state_snapshot_release(&writer->view);
    return gs_state_snapshot_view(&writer->view, writer->options.state, shares_of(request));
}

// The ranks of a team wait for each other, so whoever has no snapshot, or cannot take what comes, says that.
static gs_status begin_to_bring(gs_checkpoint_writer *writer, gs_status taken, const gs_state_snapshot *snapshot, const gs_save_team *team,
                                gs_bringing **bringing, gs_deadline deadline) {
    gs_part_intake *intake = NULL;
    if (!taken.code && gs_comm_rank(team->comm) == team->saver) taken = gs_part_intake_create(&intake, writer->directory, team->num_apart);
    gs_status status = gs_save_team_begin(bringing, team, taken.code ? NULL : snapshot, intake, deadline);
    if (!status.code) status = gs_save_team_refusal(*bringing);
    if (!taken.code) taken = status;
    if (taken.code) gs_part_intake_destroy(intake);
    else writer->intake = intake;
    return taken;
}

// Who is apart has nothing to write itself.
static gs_status begin(gs_checkpoint_writer *writer, gs_status taken, const gs_state_snapshot *snapshot,
                       const gs_checkpoint_request *request, const gs_save_team *team, gs_bringing **bringing, gs_deadline deadline) {
    bool by_team = team && team->num_apart > 0 && request->num_parts > 1;
    if (by_team) taken = begin_to_bring(writer, taken, snapshot, team, bringing, deadline);
    if (taken.code) return taken;
    if (by_team && team->is_apart) {  // its end is the saver's to tell; whoever waits here waits for no save of before
        pthread_mutex_lock(&writer->lock);
        writer->last = gs_ok();
        pthread_mutex_unlock(&writer->lock);
        return taken;
    }
    start(writer, snapshot, request);
    return gs_ok();
}

gs_status gs_checkpoint_writer_start_save(gs_checkpoint_writer *writer,
                                          const gs_checkpoint_request *request,
                                          const gs_save_team *team, gs_bringing **bringing, gs_deadline deadline) {
    gs_status status = await_idle(writer, deadline);
    if (!status.code) status = take_copy(writer, request);
    return begin(writer, status, &writer->copy, request, team, bringing, deadline);
}

gs_status gs_checkpoint_writer_start_last_save(gs_checkpoint_writer *writer,
                                               const gs_checkpoint_request *request,
                                               const gs_save_team *team, gs_bringing **bringing, gs_deadline deadline) {
    const gs_state_snapshot *snapshot = &writer->view;
    gs_status status = await_idle(writer, deadline);
    if (!status.code) {
        status = take_view(writer, request);
        if (status.code == GS_UNIMPLEMENTED) {
            snapshot = &writer->copy;
            status = take_copy(writer, request);
        }
    }
    return begin(writer, status, snapshot, request, team, bringing, deadline);
}

gs_status gs_checkpoint_writer_wait(gs_checkpoint_writer *writer, gs_deadline deadline) {
    if (!wait_until_idle(writer, deadline)) {
        return gs_error(GS_DEADLINE_EXCEEDED, "the checkpoint was not written in time");
    }
    pthread_mutex_lock(&writer->lock);
    gs_status status = writer->last;
    pthread_mutex_unlock(&writer->lock);
    return status;
}
