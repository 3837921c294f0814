#include "coordinator/serve/coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "coordinator/observe/counters.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/hosts/examination.h"
#include "coordinator/observe/hosts/left_mark.h"
#include "coordinator/observe/metrics/metrics_page.h"
#include "coordinator/observe/sights.h"
#include "coordinator/serve/methods.h"
#include "coordinator/serve/steps.h"
#include "coordinator/store/database/set_aside.h"
#include "coordinator/store/files/files.h"
#include "coordinator/store/files/purges.h"
#include "coordinator/store/files/sweeper.h"
#include "coordinator/store/integrity.h"
#include "coordinator/store/leftovers.h"
#include "coordinator/store/stored.h"
#include "coordinator/store/trace.h"
#include "core/clock.h"
#include "core/log.h"
#include "rpc/server/rpc_server.h"

#define CLAIM_TRIES 2000  // milliseconds at least
#define SWEEP_AGE_NS (3600 * GS_NS_PER_SEC)  // of what a save has left

struct gs_coordinator {
    char data_dir[1024];
    gs_steps steps;
    gs_observer *observer;
    gs_writer *writer;
    gs_rpc_server *server;
    gs_service service;
    gs_trace *trace;  // borrowed; NULL: none
    gs_rpc_tap tap;
    gs_purges *purges;        // owned
    gs_sweeper *sweeper;      // owned; of the thread of long work on files until that has ended
    gs_integrity *integrity;  // owned
    gs_marked_root *root;     // owned; of the threads of files until these have ended
    gs_left_mark *mark;       // owned
    gs_write keep;            // asks the thread of rows to leave a damaged database as it is
    int wake_fd;  // eventfd: something of another thread or a signal
    int64_t turned_ns;
};

static void call_gone(void *ctx, gs_rpc_call_handle *call) {
    (void)ctx;
    gs_held *held = gs_rpc_call_data(call);
    if (held) held->gone(held->owner, call);
}

static bool mention(void *ctx, gs_call call, gs_json *item) { return gs_calls_mention(ctx, call, item); }

static gs_status adopt_jobs(gs_coordinator *coordinator, gs_engine *engine, gs_stored *stored) {
    gs_status status = gs_ok();
    for (size_t i = 0; i < stored->num_jobs && !status.code; i++) {
        gs_stored_job *item = &stored->jobs[i];
        gs_engine_adopt_job(engine, item->job);
        if (!gs_observer_meet(coordinator->observer, item->job, &item->documents, true))
            status = gs_error(GS_RESOURCE_EXHAUSTED, "coordinator: out of memory");
        *item = (gs_stored_job){0};
    }
    gs_stored_release(stored);
    return status;
}

static void adopt_key(void *ctx, const gs_store_row *row) {
    gs_engine_adopt_key(ctx, row->key, row->body, row->job, gs_now_ns() + row->time_ms * GS_NS_PER_MS);
}

static void adopt_life(void *ctx, const gs_store_row *row) { gs_engine_adopt_life(ctx, row->id, row->job); }

static void adopt_tombstone(void *ctx, const gs_store_row *row) {
    const gs_tombstone tombstone = gs_tombstone_of_row(row);
    gs_engine_adopt_tombstone(ctx, &tombstone);
}

static void adopt_purge(void *ctx, const gs_store_row *row) { gs_purges_owe(ctx, row->id, 0); }

static gs_status load(gs_coordinator *coordinator, gs_engine *engine, gs_job_store *store) {
    gs_stored stored = {0};
    GS_TRY(gs_job_store_load_keys(store, adopt_key, engine));
    GS_TRY(gs_job_store_load_lives(store, adopt_life, engine));
    GS_TRY(gs_job_store_load_tombstones(store, adopt_tombstone, engine));
    GS_TRY(gs_job_store_load_purges(store, adopt_purge, coordinator->purges));
    GS_TRY(gs_stored_load(&stored, store, gs_now_ns(), gs_wall_ms()));
    for (size_t i = 0; i < stored.num_unreadable; i++) gs_engine_adopt_unreadable(engine, stored.unreadable[i]);
    return adopt_jobs(coordinator, engine, &stored);
}

static void database_path(char path[1200], const char *data_dir) { snprintf(path, 1200, "%s/gradsync.db", data_dir); }

static gs_status open_store(gs_job_store **store, gs_store_start *start, const char *data_dir) {
    char path[1200];
    snprintf(path, sizeof path, "%s/jobs", data_dir);
    GS_TRY(gs_file_make_directory(path));
    database_path(path, data_dir);
    return gs_job_store_open(store, start, path);
}

// What could not be read of it was not checked when it was opened.
static gs_status close_unread(gs_job_store *store, const char *data_dir, gs_status status) {
    char path[1200];
    database_path(path, data_dir);
    if (status.code == GS_DATA_LOSS && store) gs_job_store_keep_as_found(store);
    gs_job_store_close(store);
    return status.code == GS_DATA_LOSS ? gs_set_aside(path, status) : status;
}

static void destroy_observer(gs_coordinator *coordinator) {
    if (!coordinator->observer) return;
    const gs_job_table *jobs = &coordinator->observer->state->jobs;
    for (size_t i = 0; i < jobs->count; i++) gs_observer_forget(coordinator->observer, jobs->items[i]);
    gs_observer_destroy(coordinator->observer);
    coordinator->observer = NULL;
}

static gs_status open_engine(gs_engine **engine, const gs_coordinator_options *options,
                             const gs_store_start *start) {
    return gs_engine_create(
        engine, &(gs_engine_options){.timing = options->timing ? options->timing : &gs_timing_default,
                                     .retention = options->retention,
                                     .checkpoints_dir = options->checkpoints_dir,
                                     .cluster = start->cluster,
                                     .epoch = start->coordinator_epoch,
                                     .life = start->life,
                                     .first_generation = start->first_generation});
}

static gs_status open_state(gs_coordinator *coordinator, const gs_coordinator_options *options) {
    gs_job_store *store = NULL;
    gs_store_start start = {0};
    gs_engine *engine = NULL;
    GS_TRY(open_store(&store, &start, coordinator->data_dir));
    gs_status status = gs_trace_begin(options->trace, store, &start, coordinator->data_dir,
                                      options->checkpoints_dir);
    if (!status.code) status = open_engine(&engine, options, &start);
    if (!status.code) {
        status = gs_observer_create(&coordinator->observer,
                                    &(gs_observer_options){.state = gs_engine_state(engine),
                                                           .data_dir = coordinator->data_dir,
                                                           .store = store,
                                                           .next_sequence = start.next_sequence});
    }
    coordinator->purges = gs_purges_create();
    if (!status.code) status = load(coordinator, engine, store);
    if (!status.code) status = gs_writer_start(&coordinator->writer, store, coordinator->wake_fd, options->trace);
    if (status.code) {
        destroy_observer(coordinator);
        gs_engine_destroy(engine);
        return close_unread(store, coordinator->data_dir, status);
    }
    gs_steps_begin(&coordinator->steps, engine, coordinator->writer, coordinator->observer, options->trace);
    coordinator->steps.performer.purges = coordinator->purges;
    coordinator->sweeper = coordinator->steps.performer.sweeper = gs_sweeper_create(SWEEP_AGE_NS, GS_SWEEPER_MOST_WATCHED);
    coordinator->observer->writer = coordinator->writer;
    coordinator->observer->wake_fd = coordinator->wake_fd;
    coordinator->observer->send = mention;
    coordinator->observer->send_ctx = &coordinator->steps.calls;
    return gs_ok();
}

static gs_status open_server(gs_coordinator *coordinator, const gs_coordinator_options *options) {
    gs_rpc_server_options server = {
        .pings_a_second = GS_PINGS_PER_SEC,
        .endpoints = {options->control_endpoint, GS_INPROC_ENDPOINT, options->guarded_endpoint},
        .guarded = {options->control_asks, false, true},
        .gate = options->gate,
        .coordinator_epoch = coordinator->steps.state->cluster.epoch,
        .ctx = &coordinator->service,
        .call_gone = call_gone,
        .tap = options->trace ? &coordinator->tap : NULL,
        .audit = options->audit,
    };
    memcpy(server.handlers, gs_coordinator_methods, sizeof server.handlers);
    memcpy(server.record_handlers, gs_coordinator_record_methods, sizeof server.record_handlers);
    GS_TRY(gs_rpc_server_open(&coordinator->server, options->context, &server));
    gs_service_begin(&coordinator->service, &coordinator->steps, coordinator->observer);
    coordinator->service.gate = options->gate;
    coordinator->observer->gate = options->gate;
    coordinator->observer->server = coordinator->server;
    return gs_ok();
}

// Before anybody is commanded; a disk that does not answer holds nobody up for longer, and its answer ends this one then.
static gs_status await_claim(const gs_coordinator *coordinator) {
    for (int i = 0; i < CLAIM_TRIES && gs_marked_root_claim(coordinator->root) == GS_ROOT_UNCLAIMED; i++) gs_sleep_ns(GS_NS_PER_MS);
    return gs_marked_root_refused(coordinator->root);
}

gs_status gs_coordinator_create(gs_coordinator **out, const gs_coordinator_options *options) {
    gs_coordinator *coordinator = calloc(1, sizeof *coordinator);
    if (!coordinator) return gs_error(GS_RESOURCE_EXHAUSTED, "coordinator: out of memory");
    // The database refuses paths with symbolic links in them.
    char *real = realpath(options->data_dir, NULL);
    snprintf(coordinator->data_dir, sizeof coordinator->data_dir, "%s", real ? real : options->data_dir);
    free(real);
    coordinator->trace = options->trace;
    if (options->trace) coordinator->tap = gs_trace_tap(options->trace);
    coordinator->turned_ns = gs_now_ns();
    coordinator->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gs_status status = coordinator->wake_fd >= 0 ? gs_ok() : gs_error_from_errno(errno, "eventfd");
    if (!status.code) status = open_state(coordinator, options);
    if (!status.code) status = open_server(coordinator, options);
    if (status.code) {
        gs_coordinator_destroy(coordinator);
        return status;
    }
    const gs_cluster *cluster = &coordinator->steps.state->cluster;
    coordinator->root = gs_marked_root_create(&(gs_marked_root_options){.data_dir = coordinator->data_dir,
                                                                        .path = options->checkpoints_dir,
                                                                        .given = options->checkpoints_given,
                                                                        .cluster = cluster->id,
                                                                        .life = cluster->life,
                                                                        .is_new = options->checkpoints_are_new});
    coordinator->steps.performer.marked_root = coordinator->root;
    coordinator->mark = gs_left_mark_create(coordinator->writer, coordinator->root, &coordinator->steps.state->agents);
    coordinator->service.mark = coordinator->mark;
    status = await_claim(coordinator);
    if (status.code) {
        gs_coordinator_destroy(coordinator);
        return status;
    }
    gs_write *leftovers = gs_leftovers_create(&coordinator->steps.state->jobs, coordinator->data_dir, coordinator->writer);
    if (leftovers) gs_writer_submit(coordinator->writer, leftovers);
    gs_steps_take_kind(&coordinator->steps, GS_ON_START);
    gs_observer_tell_unreadable(coordinator->observer);
    char path[1200];
    database_path(path, coordinator->data_dir);
    status = gs_integrity_start(&coordinator->integrity, path, coordinator->wake_fd);
    if (status.code) gs_log_warn("database not checked", "reason=\"%s\"", status.message);
    *out = coordinator;
    return gs_ok();
}

const char *gs_coordinator_control_endpoint(const gs_coordinator *coordinator) {
    return gs_rpc_server_endpoint(coordinator->server, 0);
}

const char *gs_coordinator_guarded_endpoint(const gs_coordinator *coordinator) {
    return gs_rpc_server_endpoint(coordinator->server, 2);
}

void gs_coordinator_wake(const gs_coordinator *coordinator) {
    uint64_t one = 1;
    ssize_t written = write(coordinator->wake_fd, &one, sizeof one);
    (void)written;
}

static void set_aside(const gs_coordinator *coordinator, gs_status damage) {
    char path[1200];
    database_path(path, coordinator->data_dir);
    gs_status status = gs_set_aside(path, damage);
    gs_log_error("set aside", "reason=\"%s\"", status.message);
}

static gs_status keep_as_found(gs_write *write, gs_job_store *store) {
    (void)write;
    gs_job_store_keep_as_found(store);
    return gs_ok();
}

static void is_kept(gs_write *write, gs_status status) {
    (void)write;
    (void)status;
}

gs_status gs_coordinator_check_data(const gs_coordinator *coordinator) {
    GS_TRY(gs_marked_root_refused(coordinator->root));
    GS_TRY(gs_integrity_found(coordinator->integrity));
    const gs_cluster *cluster = &coordinator->steps.state->cluster;
    if (!cluster->is_old_copy) return gs_ok();
    if (!cluster->later_epoch)
        return gs_error(GS_DATA_LOSS, "%.500s is an old copy of cluster %s: workers run generation %u, which it has not given out",
                        coordinator->data_dir, cluster->id, cluster->later_generation);
    return gs_error(GS_DATA_LOSS,
                    "%.500s is an old copy of cluster %s: it is at coordinator epoch %u, workers have seen epoch %u",
                    coordinator->data_dir, cluster->id, cluster->epoch, cluster->later_epoch);
}

void gs_coordinator_drain(gs_coordinator *coordinator) {
    gs_trace_event(coordinator->trace, "drain");
    gs_steps_take_kind(&coordinator->steps, GS_ON_DRAIN);
}

static void run_timers(gs_coordinator *coordinator) {
    gs_trace_event(coordinator->trace, "tick");
    int64_t now_ns = gs_now_ns(), late_ns = now_ns - coordinator->turned_ns - coordinator->steps.state->timing.tick_ns;
    coordinator->turned_ns = now_ns;
    coordinator->observer->loop_lag_seconds = late_ns > 0 ? gs_seconds_of(late_ns) : 0;
    gs_steps_take_kind(&coordinator->steps, GS_ON_TICK);
    gs_steps_try_store(&coordinator->steps);
    gs_perform_purges(&coordinator->steps.performer);
    gs_left_mark_tick(coordinator->mark, now_ns);
    gs_service_tick(&coordinator->service, now_ns);
    gs_counters_note_limit(coordinator->observer, GS_LIMIT_SWEPT, gs_sweeper_num_refused(coordinator->sweeper));
    gs_observer_tick(coordinator->observer);
    gs_examination_tick(coordinator->observer);
}

gs_status gs_coordinator_turn(gs_coordinator *coordinator) {
    gs_trace_turn(coordinator->trace);
    gs_deadline deadline = {coordinator->turned_ns + coordinator->steps.state->timing.tick_ns};
    gs_deadline wait = gs_metrics_page_hurries(coordinator->observer) ? gs_deadline_in_ns(0) : deadline;
    GS_TRY(gs_rpc_server_turn(coordinator->server, coordinator->wake_fd, wait));
    uint64_t wakes;
    ssize_t got = read(coordinator->wake_fd, &wakes, sizeof wakes);
    (void)got;
    gs_writer_collect(coordinator->writer);
    if (coordinator->steps.state->schedule_needed) gs_steps_take_kind(&coordinator->steps, GS_ON_TURN);
    gs_metrics_page_turn(coordinator->observer);
    if (gs_deadline_passed(deadline)) run_timers(coordinator);
    return gs_ok();
}

void gs_coordinator_destroy(gs_coordinator *coordinator) {
    if (!coordinator) return;
    gs_status damage = gs_integrity_found(coordinator->integrity);
    gs_integrity_stop(coordinator->integrity);
    if (damage.code) {
        coordinator->keep = (gs_write){.run = keep_as_found, .done = is_kept, .lane = GS_LANE_ROWS};
        gs_writer_submit(coordinator->writer, &coordinator->keep);
    }
    if (coordinator->server) {
        gs_trace_event(coordinator->trace, "close");
        gs_examination_end(coordinator->observer);
        gs_observer_part(coordinator->observer);
        gs_metrics_page_destroy(coordinator->observer);
        gs_steps_take_kind(&coordinator->steps, GS_ON_DRAIN);  // what is behind is written
    }
    coordinator->steps.performer.is_closing = true;
    if (coordinator->purges) gs_purges_stop(coordinator->purges);  // they are owed in the store
    gs_writer_stop(coordinator->writer);
    gs_left_mark_destroy(coordinator->mark);
    gs_marked_root_destroy(coordinator->root);
    gs_sweeper_destroy(coordinator->sweeper);
    gs_purges_destroy(coordinator->purges);
    if (damage.code) set_aside(coordinator, damage);
    gs_calls_part(&coordinator->steps.calls);
    destroy_observer(coordinator);
    gs_rpc_server_close(coordinator->server);
    gs_steps_end(&coordinator->steps);
    if (coordinator->wake_fd >= 0) close(coordinator->wake_fd);
    free(coordinator);
}
