#include "coordinator/coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "coordinator/agents.h"
#include "coordinator/checkpoints.h"
#include "coordinator/cluster.h"
#include "coordinator/events.h"
#include "coordinator/files.h"
#include "coordinator/held.h"
#include "coordinator/idempotency.h"
#include "coordinator/job_control.h"
#include "coordinator/job_log.h"
#include "coordinator/job_metrics.h"
#include "coordinator/job_record.h"
#include "coordinator/launch.h"
#include "coordinator/methods.h"
#include "coordinator/metrics_page.h"
#include "coordinator/run.h"
#include "coordinator/run_end.h"
#include "coordinator/timelines.h"
#include "coordinator/trace.h"
#include "coordinator/verdicts.h"
#include "coordinator/watch.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/random.h"

#define TURN_MS 20
#define MAX_SERIES 20000
#define HEARTBEATS_PER_SEC 10000  // of all agents and members together
#define SWEEP_NS (600 * GS_NS_PER_SEC)

void gs_coordinator_touch(gs_coordinator *coordinator, gs_job *job) {
    (void)coordinator;
    job->version++;
    if (job->dirty) {
        if (job->dirty_since_ns > gs_now_ns()) job->dirty_since_ns = gs_now_ns();
        return;
    }
    job->dirty = true;
    job->dirty_since_ns = gs_now_ns();
}

typedef struct gs_behind_write {
    gs_write base;
    gs_coordinator *coordinator;
    uint64_t job;
    uint32_t next_generation;  // 0: not this
    int64_t prune_keys_ms;     // 0: not this
    char *body;                // owned
} gs_behind_write;

static gs_status write_behind(gs_write *base, gs_job_store *store) {
    gs_behind_write *write = (gs_behind_write *)base;
    if (write->next_generation) return gs_job_store_reserve_generations(store, write->next_generation);
    if (write->prune_keys_ms) return gs_job_store_prune_keys(store, write->prune_keys_ms);
    return gs_job_store_put_job(store, write->job, write->body);
}

void gs_coordinator_note_store(gs_coordinator *coordinator, gs_status status) {
    if (status.code && !coordinator->store_failed) {
        gs_log_error("store cannot be written", "reason=\"%s\"", status.message);
    }
    coordinator->store_failed = status.code != GS_OK;
    snprintf(coordinator->store_error, sizeof coordinator->store_error, "%s", status.message);
}

static void written_behind(gs_write *base, gs_status status) {
    gs_behind_write *write = (gs_behind_write *)base;
    gs_coordinator *coordinator = write->coordinator;
    gs_coordinator_note_store(coordinator, status);
    gs_job *job = status.code && write->job ? gs_jobs_by_id(coordinator, write->job) : NULL;
    if (job && !job->dirty) {  // again, later
        job->dirty = true;
        job->dirty_since_ns = gs_now_ns() + GS_NS_PER_SEC;
    }
    free(write->body);
    free(write);
}

static gs_behind_write *make_behind(gs_coordinator *coordinator) {
    gs_behind_write *write = calloc(1, sizeof *write);
    if (!write) return NULL;
    write->base = (gs_write){.run = write_behind, .done = written_behind, .touches_store = true};
    write->coordinator = coordinator;
    return write;
}

static void flush_job(gs_coordinator *coordinator, gs_job *job) {
    gs_behind_write *write = make_behind(coordinator);
    if (!write) return;
    write->job = job->id;
    gs_status status = gs_job_to_record(&write->body, job);
    if (status.code) {
        free(write);
        return;
    }
    job->dirty = false;
    gs_writer_submit(coordinator->writer, &write->base);
}

static void flush_jobs(gs_coordinator *coordinator, bool all) {
    int64_t now_ns = gs_now_ns();
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_job *job = coordinator->jobs[i];
        bool due = all || now_ns - job->dirty_since_ns >= coordinator->timing.flush_ns;
        if (job->dirty && due && !job->held_back) flush_job(coordinator, job);
    }
}

// Numbers are handed out from a block that is durable already; the next block is reserved in time.
uint32_t gs_coordinator_take_generation(gs_coordinator *coordinator) {
    uint32_t generation = coordinator->next_generation++;
    if (coordinator->generation_end - coordinator->next_generation == GS_GENERATION_BLOCK / 2) {
        gs_behind_write *write = make_behind(coordinator);
        if (write) {
            coordinator->generation_end += GS_GENERATION_BLOCK;
            write->next_generation = coordinator->generation_end;
            gs_writer_submit(coordinator->writer, &write->base);
        }
    }
    return generation;
}

uint64_t gs_coordinator_draw(gs_coordinator *coordinator) {
    uint64_t number = gs_random_from_system();
    gs_trace_drawn(coordinator->trace, number);
    return number;
}

void gs_coordinator_touch_now(gs_coordinator *coordinator, gs_job *job) {
    gs_coordinator_touch(coordinator, job);
    if (!job->held_back) flush_job(coordinator, job);
}

int64_t gs_coordinator_heartbeat_ns(const gs_coordinator *coordinator) {
    int64_t heard = (int64_t)(coordinator->num_agents + coordinator->members.count);
    int64_t stretched_ns = heard * (GS_NS_PER_SEC / HEARTBEATS_PER_SEC);
    return stretched_ns > coordinator->timing.heartbeat_ns ? stretched_ns
                                                           : coordinator->timing.heartbeat_ns;
}

static void call_gone(void *ctx, gs_rpc_call_handle *call) {
    (void)ctx;
    gs_held *held = gs_rpc_call_data(call);
    if (held) held->gone(held->owner, call);
}

static bool equip_job(gs_coordinator *coordinator, gs_job *job) {
    job->metrics = gs_job_metrics_create();
    job->checkpoints = gs_checkpoints_create();
    job->log = gs_job_log_create(coordinator, job);
    return job->metrics && job->checkpoints && job->log && gs_jobs_add(coordinator, job);
}

static void release_job(gs_job *job) {
    gs_run_destroy(job->run);
    gs_job_metrics_destroy(job->metrics);
    gs_checkpoints_destroy(job->checkpoints);
    gs_timelines_forget(job);
    gs_job_log_destroy(job->log);
    gs_job_destroy(job);
}

// A job that was starting when the coordinator ended starts again; one that trained waits for its
// members, who went on.
static void resume_job(gs_coordinator *coordinator, gs_job *job) {
    char path[1200];
    snprintf(path, sizeof path, "%s/jobs/%s/metrics.jsonl", coordinator->data_dir, job->id_text);
    gs_job_metrics_reload(job->metrics, path);
    if (gs_job_state_terminal(job->state)) return;
    if (job->run) {
        gs_run_enter(job->run, GS_RUN_RELOADING, coordinator->timing.grace_ns);
        gs_run_index_members(job->run, &coordinator->members);
        return;
    }
    if (job->state == GS_JOB_STOPPING) {
        gs_job_end(coordinator, job, job->stop_outcome, job->stop_reason, "stopped at step %lld",
                   (long long)job->step);
    } else if (job->state != GS_JOB_QUEUED) {
        if (job->state == GS_JOB_RUNNING) {
            gs_job_move(coordinator, job, GS_JOB_RECOVERING, "CoordinatorRestarted", "starting again");
        }
        job->waiting_since_ms = gs_wall_ms();
        gs_job_move(coordinator, job, GS_JOB_QUEUED, "CoordinatorRestarted",
                    "the coordinator restarted while the job was starting");
    }
}

static void load_job(void *ctx, const gs_store_row *row) {
    gs_coordinator *coordinator = ctx;
    gs_job *job = NULL;
    gs_status status = gs_job_from_record(&job, row->id, row->body);
    if (status.code) {
        gs_log_error("job not readable", "id=%llu reason=\"%s\"", (unsigned long long)row->id,
                     status.message);
        return;
    }
    job->waiting_since_ms = gs_wall_ms();
    if (!equip_job(coordinator, job)) release_job(job);
}

static gs_status open_state(gs_coordinator *coordinator, gs_job_store **store) {
    char path[1200];
    gs_store_start start = {0};
    snprintf(path, sizeof path, "%s/jobs", coordinator->data_dir);
    GS_TRY(gs_file_make_directory(path));
    snprintf(path, sizeof path, "%s/gradsync.db", coordinator->data_dir);
    GS_TRY(gs_job_store_open(store, &start, path));
    GS_TRY(gs_trace_begin(coordinator->trace, *store, &start, coordinator->data_dir,
                          coordinator->checkpoints_dir));
    coordinator->epoch = start.coordinator_epoch;
    GS_TRY(gs_cluster_load(coordinator, *store, &start));
    coordinator->next_generation = start.first_generation;
    coordinator->generation_end = start.first_generation + GS_GENERATION_BLOCK;
    coordinator->watchers = gs_watchers_create();
    coordinator->metrics = gs_metrics_create(MAX_SERIES);
    if (!coordinator->watchers || !coordinator->metrics) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "coordinator: out of memory");
    }
    GS_TRY(gs_events_create(&coordinator->events, *store, start.next_sequence));
    GS_TRY(gs_keys_create(&coordinator->keys, *store));
    GS_TRY(gs_job_store_load_jobs(*store, load_job, coordinator));
    return gs_checkpoints_load(coordinator, *store);
}

static gs_status open_server(gs_coordinator *coordinator, const gs_coordinator_options *options) {
    gs_rpc_server_options server = {
        .endpoints = {options->control_endpoint, GS_INPROC_ENDPOINT},
        .coordinator_epoch = coordinator->epoch,
        .ctx = coordinator,
        .call_gone = call_gone,
        .tap = coordinator->trace ? &coordinator->tap : NULL,
    };
    memcpy(server.handlers, gs_coordinator_methods, sizeof server.handlers);
    return gs_rpc_server_open(&coordinator->server, options->context, &server);
}

gs_status gs_coordinator_create(gs_coordinator **out, const gs_coordinator_options *options) {
    gs_coordinator *coordinator = calloc(1, sizeof *coordinator);
    if (!coordinator) return gs_error(GS_RESOURCE_EXHAUSTED, "coordinator: out of memory");
    coordinator->timing = options->timing ? *options->timing : gs_timing_default;
    // The database refuses paths with symbolic links in them.
    char *real = realpath(options->data_dir, NULL);
    snprintf(coordinator->data_dir, sizeof coordinator->data_dir, "%s", real ? real : options->data_dir);
    free(real);
    snprintf(coordinator->checkpoints_dir, sizeof coordinator->checkpoints_dir, "%s",
             options->checkpoints_dir);
    coordinator->trace = options->trace;
    if (options->trace) coordinator->tap = gs_trace_tap(options->trace);
    coordinator->started_ns = coordinator->turned_ns = gs_now_ns();
    coordinator->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gs_job_store *store = NULL;
    gs_status status = coordinator->wake_fd >= 0 ? gs_timing_check(&coordinator->timing)
                                                 : gs_error_from_errno(errno, "eventfd");
    if (!status.code) status = open_state(coordinator, &store);
    if (!status.code) status = gs_writer_start(&coordinator->writer, store, coordinator->wake_fd,
                                                  options->trace);
    if (status.code) gs_job_store_close(store);
    else status = open_server(coordinator, options);
    if (status.code) {
        gs_coordinator_destroy(coordinator);
        return status;
    }
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        resume_job(coordinator, coordinator->jobs[i]);
        gs_checkpoints_sweep(coordinator, coordinator->jobs[i]);
    }
    gs_event_add(coordinator, NULL, NULL, GS_SEVERITY_INFO, "CoordinatorStarted",
                 "coordinator epoch %u, %zu jobs known", coordinator->epoch, coordinator->num_jobs);
    *out = coordinator;
    return gs_ok();
}

const char *gs_coordinator_control_endpoint(const gs_coordinator *coordinator) {
    return gs_rpc_server_endpoint(coordinator->server, 0);
}

void gs_coordinator_wake(const gs_coordinator *coordinator) {
    uint64_t one = 1;
    ssize_t written = write(coordinator->wake_fd, &one, sizeof one);
    (void)written;
}

void gs_coordinator_drain(gs_coordinator *coordinator) {
    gs_trace_event(coordinator->trace, "drain");
    coordinator->draining = true;
}

static void expire_series(gs_coordinator *coordinator) {
    int64_t now_ms = gs_wall_ms(), keep_ms = coordinator->timing.series_keep_ns / GS_NS_PER_MS;
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        const gs_job *job = coordinator->jobs[i];
        if (gs_job_state_terminal(job->state) && now_ms - job->ended_ms > keep_ms) {
            gs_metrics_forget(coordinator->metrics, "job_id", job->id_text);
            gs_timelines_forget(coordinator->jobs[i]);
        }
    }
}

static void sweep(gs_coordinator *coordinator, int64_t now_ns) {
    if (now_ns - coordinator->swept_ns < SWEEP_NS && coordinator->swept_ns) return;
    coordinator->swept_ns = now_ns;
    gs_keys_expire(coordinator->keys, gs_wall_ms());
    gs_behind_write *write = make_behind(coordinator);
    if (write) {
        write->prune_keys_ms = gs_wall_ms();
        gs_writer_submit(coordinator->writer, &write->base);
    }
    expire_series(coordinator);
}

static void run_timers(gs_coordinator *coordinator) {
    gs_trace_event(coordinator->trace, "tick");
    int64_t now_ns = gs_now_ns();
    int64_t late_ns = now_ns - coordinator->turned_ns - TURN_MS * GS_NS_PER_MS;
    coordinator->turned_ns = now_ns;
    coordinator->loop_lag_seconds = late_ns > 0 ? (double)late_ns / GS_NS_PER_SEC : 0;
    if (late_ns > coordinator->timing.suspect_ns) {
        gs_log_warn("loop stood still", "milliseconds=%lld", (long long)(late_ns / GS_NS_PER_MS));
    }
    if (late_ns > TURN_MS * GS_NS_PER_MS) gs_verdicts_skip_time(coordinator, late_ns);
    gs_agents_tick(coordinator);
    gs_verdicts_tick(coordinator);
    gs_runs_end_finished(coordinator);
    gs_launch_waiting(coordinator);
    gs_watch_tick(coordinator);
    gs_timelines_tick(coordinator);
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_job_log_tick(coordinator, coordinator->jobs[i]);
    }
    flush_jobs(coordinator, false);
    sweep(coordinator, now_ns);
}

gs_status gs_coordinator_turn(gs_coordinator *coordinator) {
    gs_trace_turn(coordinator->trace);
    gs_deadline deadline = {coordinator->turned_ns + TURN_MS * GS_NS_PER_MS};
    gs_deadline wait = coordinator->page ? gs_deadline_in_ns(0) : deadline;
    GS_TRY(gs_rpc_server_turn(coordinator->server, coordinator->wake_fd, wait));
    uint64_t wakes;
    ssize_t got = read(coordinator->wake_fd, &wakes, sizeof wakes);
    (void)got;
    gs_writer_collect(coordinator->writer);
    if (coordinator->schedule_needed) {
        gs_runs_end_finished(coordinator);
        gs_launch_waiting(coordinator);
    }
    gs_metrics_page_turn(coordinator);
    if (gs_deadline_passed(deadline)) run_timers(coordinator);
    return gs_ok();
}

void gs_coordinator_destroy(gs_coordinator *coordinator) {
    if (!coordinator) return;
    if (coordinator->server) {
        gs_trace_event(coordinator->trace, "close");
        gs_watch_end_all(coordinator, "server_shutdown");
        gs_metrics_page_destroy(coordinator);
        gs_timelines_end_all(coordinator);
        for (size_t i = 0; i < coordinator->num_jobs; i++) {
            gs_job_log_tick(coordinator, coordinator->jobs[i]);
        }
        flush_jobs(coordinator, true);
    }
    gs_writer_stop(coordinator->writer);
    gs_agents_release_all(coordinator);
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_run_part(coordinator->jobs[i]->run);
        release_job(coordinator->jobs[i]);
    }
    free(coordinator->jobs);
    gs_watchers_destroy(coordinator->watchers);
    gs_rpc_server_close(coordinator->server);
    gs_events_destroy(coordinator->events);
    gs_keys_destroy(coordinator->keys);
    gs_metrics_destroy(coordinator->metrics);
    gs_u64_map_release(&coordinator->agents_by_name);
    gs_u64_map_release(&coordinator->agents_by_incarnation);
    gs_u64_map_release(&coordinator->members);
    gs_cluster_release(coordinator);
    if (coordinator->wake_fd >= 0) close(coordinator->wake_fd);
    free(coordinator);
}
