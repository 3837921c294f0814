// The communicator of one rank: every collective is done when it is posted. The template to copy.
//
// With a GPU a collective of device memory runs on a stream of its own behind the compute stream's
// point, and is done when its event says so; one of host memory is done by the host's own kernels.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/log.h"
#include "gradsync/comm/backends.h"

#define KEPT_TIMES 1024
#define SPIN_POLLS 200
#define SHORTEST_SLEEP_NS (20 * INT64_C(1000))
#define LONGEST_SLEEP_NS (160 * INT64_C(1000))
#define DRAIN_SECONDS 5.0

// Of a collective, for whoever asks why it did not end.
typedef struct self_about {
    int64_t step;
    int32_t bucket;
} self_about;

typedef struct self_lane {
    _Atomic uint64_t finished;
    // Of the owner's thread:
    uint64_t posted;
    gs_work_times times[KEPT_TIMES];
    self_about about[KEPT_TIMES];
    gs_event *done[KEPT_TIMES];  // with a GPU; made in create: a step allocates nothing
    bool waits[KEPT_TIMES];      // for its event; else it was done when it was posted
} self_lane;

typedef struct self_comm {
    gs_device *device;
    gs_device *host;  // with a GPU, the owner's: its kernels serve host memory
    gs_stream *
        stream;  // of all lanes: nothing on it waits for another rank; NULL: the device is the host
    uint64_t num_on_stream;  // collectives that are not finished; the owner's
    gs_comm_failure broken, late;  // the owner's: its device's first error, its last wait in vain
    gs_interrupt interrupt;
    pthread_mutex_t abort_lock;
    atomic_bool aborted;
    char abort_reason[252];
    int num_lanes;
    self_lane lanes[];
} self_comm;

static void destroy_self(void *backend) {
    self_comm *self = backend;
    if (!self) return;
    gs_stream_destroy(self->stream);
    for (int lane = 0; lane < self->num_lanes; lane++) {
        for (size_t i = 0; i < KEPT_TIMES; i++) gs_event_destroy(self->lanes[lane].done[i]);
    }
    if (self->host) gs_device_close(self->host);
    pthread_mutex_destroy(&self->abort_lock);
    free(self);
}

static gs_status make_events(self_comm *self) {
    for (int lane = 0; lane < self->num_lanes; lane++) {
        for (size_t i = 0; i < KEPT_TIMES; i++)
            GS_TRY(gs_event_create(&self->lanes[lane].done[i], self->device, false));
    }
    return gs_ok();
}

static gs_status create_self(void **out, const gs_comm_options *options, gs_stages *stages,
                             char *reason, size_t reason_bytes, gs_deadline deadline) {
    (void)stages;
    (void)deadline;
    if (options->world_size != 1) {
        snprintf(reason, reason_bytes, "there are %d ranks", options->world_size);
        return gs_error(GS_UNAVAILABLE, "backend self serves one rank, not %d",
                        options->world_size);
    }
    self_comm *self = calloc(1, sizeof *self + (size_t)options->num_lanes * sizeof *self->lanes);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    self->device = options->device;
    self->num_lanes = options->num_lanes;
    self->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    pthread_mutex_init(&self->abort_lock, NULL);
    snprintf(reason, reason_bytes, "there is one rank");
    gs_status status = gs_ok();
    if (!gs_device_is_host(self->device)) {
        status = gs_stream_create(&self->stream, self->device, GS_STREAM_HIGH);
        if (!status.code)
            status = gs_device_open(&self->host, "cpu", &(gs_device_options){.num_threads = 1});
        if (!status.code) status = make_events(self);
    }
    if (status.code) {
        destroy_self(self);
        return status;
    }
    *out = self;
    return gs_ok();
}

static void abort_self(void *backend, const char *reason) {
    self_comm *self = backend;
    pthread_mutex_lock(&self->abort_lock);
    if (!atomic_load(&self->aborted))
        snprintf(self->abort_reason, sizeof self->abort_reason, "%s", reason);
    atomic_store(&self->aborted, true);
    pthread_mutex_unlock(&self->abort_lock);
}

static gs_status check_abort(self_comm *self) {
    if (!atomic_load_explicit(&self->aborted, memory_order_acquire)) return gs_ok();
    pthread_mutex_lock(&self->abort_lock);
    gs_status status = gs_error(GS_ABORTED, "%s", self->abort_reason);
    pthread_mutex_unlock(&self->abort_lock);
    return status;
}

static void reduce_parts(gs_device *device, gs_stream *stream, const gs_collective *collective) {
    const gs_reduce_tree *tree = collective->tree;
    const void *inputs[GS_REDUCE_MAX_INPUTS] = {collective->send};
    int num_inputs = tree ? tree->num_inputs : 1;
    for (int i = 0; tree && i < num_inputs; i++)
        inputs[i] = (const unsigned char *)collective->send +
                    (size_t)tree->part[i] * collective->part_stride_bytes;
    void *output = collective->recv;
    gs_reduction reduction = {.outputs = &output,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = num_inputs,
                              .merges = tree ? tree->merges : NULL,
                              .dtype = collective->dtype,
                              .op = collective->op,
                              .scale = collective->scale != 0 ? collective->scale : 1,
                              .count = collective->count,
                              .wire_dtype = collective->wire_dtype,
                              .wire_scale = gs_collective_wire_scale(collective),
                              .wire_scale_after = collective->wire_scale_after};
    gs_device_kernels(device)->reduce(stream, &reduction);
}

static void move_bytes(gs_device *device, gs_stream *stream, const gs_collective *collective) {
    bool scales = collective->scale != 0 && collective->scale != 1;
    if (collective->kind == GS_BARRIER || collective->count == 0) return;
    bool changes = scales || collective->tree || collective->wire_dtype;
    if (gs_collective_reduces(collective) && changes) {
        reduce_parts(device, stream, collective);
    } else if (collective->recv != collective->send) {
        gs_device_kernels(device)->copy(stream, collective->recv, collective->send,
                                        collective->count * gs_dtype_bytes(collective->dtype));
    }
}

// Behind the compute stream's point even when no byte moves: the result is there when it is
// finished.
static gs_status start_on_device(self_comm *self, self_lane *lane, uint64_t sequence,
                                 const gs_collective *collective) {
    gs_event *done = lane->done[sequence % KEPT_TIMES];
    gs_stream_follow(self->stream, gs_device_stream(self->device));
    move_bytes(self->device, self->stream, collective);
    gs_event_record(done, self->stream);
    lane->waits[sequence % KEPT_TIMES] = true;
    self->num_on_stream++;
    return gs_ok();
}

// A device that fails, or does not come to it, is this rank's own.
static gs_comm_failure accuse_device(const self_comm *self, gs_comm_failure_kind kind, int lane,
                                     uint64_t sequence) {
    const self_about *about = &self->lanes[lane].about[sequence % KEPT_TIMES];
    gs_comm_failure failure = {.kind = kind,
                               .lane = lane,
                               .sequence = sequence,
                               .step = about->step,
                               .bucket = about->bucket};
    gs_comm_failure_accuse(&failure, 0);
    return failure;
}

static gs_status start_work(self_comm *self, self_lane *lane, uint64_t sequence,
                            const gs_collective *collective) {
    lane->waits[sequence % KEPT_TIMES] = false;
    if (!self->stream) {
        move_bytes(self->device, gs_device_stream(self->device), collective);
        return gs_ok();
    }
    if (collective->kind == GS_BARRIER || collective->count == 0) return gs_ok();
    bool sends_device = gs_device_is_device_memory(self->device, collective->send);
    bool receives_device = gs_device_is_device_memory(self->device, collective->recv);
    if (sends_device && receives_device) return start_on_device(self, lane, sequence, collective);
    if (gs_device_is_lost(self->device)) {
        int number = (int)(lane - self->lanes);
        if (!self->broken.kind)
            self->broken = accuse_device(self, GS_COMM_FAILURE_DEVICE, number, sequence);
        return gs_error(GS_INTERNAL, "%s is lost to this process", gs_device_name(self->device));
    }
    if (sends_device || receives_device)
        return gs_error(GS_UNIMPLEMENTED, "a collective between host memory and memory of %s",
                        gs_device_name(self->device));
    move_bytes(self->host, gs_device_stream(self->host), collective);
    return gs_ok();
}

static gs_status check_done(self_comm *self, gs_event *event, bool *done) {
    GS_TRY(gs_event_query(event, done));
    if (!*done) return gs_ok();
    // An error of a kernel sticks to its stream: with nothing left on it this does not wait.
    if (self->num_on_stream == 1) GS_TRY(gs_stream_wait(self->stream, gs_deadline_in_ms(100)));
    self->num_on_stream--;
    return gs_ok();
}

// Finishes what is done, in order.
static gs_status advance_lane(self_comm *self, self_lane *lane) {
    uint64_t finished = atomic_load_explicit(&lane->finished, memory_order_relaxed);
    while (finished < lane->posted) {
        size_t place = (finished + 1) % KEPT_TIMES;
        bool done = true;
        if (lane->waits[place]) GS_TRY(check_done(self, lane->done[place], &done));
        if (!done) break;
        lane->times[place].finished_ns = gs_now_ns();
        atomic_store_explicit(&lane->finished, ++finished, memory_order_release);
    }
    return gs_ok();
}

static gs_status advance(self_comm *self) {
    for (int i = 0; i < self->num_lanes; i++) {
        gs_status status = advance_lane(self, &self->lanes[i]);
        if (!status.code) continue;
        uint64_t sequence = atomic_load_explicit(&self->lanes[i].finished, memory_order_relaxed) + 1;
        if (!self->broken.kind)
            self->broken = accuse_device(self, GS_COMM_FAILURE_DEVICE, i, sequence);
        return status;
    }
    return gs_ok();
}

static gs_status post_self(void *backend, int lane_number, uint64_t sequence,
                           const gs_collective *collective) {
    self_comm *self = backend;
    self_lane *lane = &self->lanes[lane_number];
    GS_TRY(check_abort(self));
    if (!collective) return advance(self);
    GS_FAILPOINT("comm.publish");
    int64_t now_ns = gs_now_ns();
    lane->about[sequence % KEPT_TIMES] = (self_about){collective->step, collective->bucket};
    GS_TRY(start_work(self, lane, sequence, collective));
    GS_FAILPOINT("comm.done");
    lane->times[sequence % KEPT_TIMES] = (gs_work_times){now_ns, now_ns, now_ns, 0};
    lane->posted = sequence;
    return advance(self);
}

static uint64_t finished_of_self(const void *backend, int lane) {
    const self_comm *self = backend;
    return atomic_load_explicit(&self->lanes[lane].finished, memory_order_acquire);
}

// Work that a device has been given cannot be taken back: after an abort it is waited for, but not
// for ever.
static gs_status leave_after_abort(self_comm *self, gs_deadline deadline) {
    gs_status aborted = check_abort(self);
    if (!aborted.code || !self->stream) return aborted;
    gs_deadline limit = gs_deadline_min(deadline, gs_deadline_in_seconds(DRAIN_SECONDS));
    gs_status drained = gs_stream_wait(self->stream, limit);
    if (drained.code == GS_DEADLINE_EXCEEDED && limit.at_ns < deadline.at_ns)
        gs_log_error("a device still moves after an abort", "device=%s seconds=%.0f reason=\"%s\"",
                     gs_device_name(self->device), DRAIN_SECONDS, aborted.message);
    return aborted;
}

static gs_status say_late(self_comm *self, gs_work work) {
    char name[48];
    gs_work_name(name, sizeof name, work);
    if (work.sequence > self->lanes[work.lane].posted)
        return gs_error(GS_FAILED_PRECONDITION, "%s was not posted", name);
    self->late = accuse_device(self, GS_COMM_FAILURE_TIMEOUT, work.lane, work.sequence);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: %s has not come to it in time", name,
                    gs_device_name(self->device));
}

static gs_status wait_self(void *backend, int lane, uint64_t sequence, gs_deadline deadline) {
    self_comm *self = backend;
    int64_t sleep_ns = SHORTEST_SLEEP_NS;
    for (int polls = 0; finished_of_self(backend, lane) < sequence; polls++) {
        GS_TRY(leave_after_abort(self, deadline));
        GS_TRY(advance(self));
        if (finished_of_self(backend, lane) >= sequence) break;
        if (gs_deadline_passed(deadline) || sequence > self->lanes[lane].posted)
            return say_late(self, (gs_work){sequence, lane});
        if (polls < SPIN_POLLS) continue;
        if (gs_interrupt_check(&self->interrupt, gs_now_ns()))
            return gs_error(GS_CANCELLED, "collective %llu: the wait was interrupted",
                            (unsigned long long)sequence);
        gs_sleep_ns(sleep_ns);
        if (sleep_ns < LONGEST_SLEEP_NS) sleep_ns *= 2;
    }
    return gs_ok();
}

// Nobody else is there.
static gs_status wait_self_ended(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    (void)backend;
    (void)lingering;
    (void)deadline;
    return gs_ok();
}

static bool times_of_self(const void *backend, int lane, uint64_t sequence, gs_work_times *times) {
    const self_comm *self = backend;
    *times = self->lanes[lane].times[sequence % KEPT_TIMES];
    return true;
}

static const char *algorithm_of_self(const void *backend, const gs_collective *collective) {
    (void)backend;
    (void)collective;
    return "none";
}

static gs_stream *stream_of_self(const void *backend) {
    return ((const self_comm *)backend)->stream;
}

static void explain_self(void *backend, gs_comm_failure *out) {
    const self_comm *self = backend;
    if (self->broken.kind) {
        *out = self->broken;
    } else if (self->late.sequence > finished_of_self(self, self->late.lane)) {
        *out = self->late;
    } else if (atomic_load_explicit(&self->aborted, memory_order_acquire)) {
        out->kind = GS_COMM_FAILURE_ABORTED;
        out->reporter = 0;
    }
}

const gs_comm_backend gs_comm_self = {.name = "self",
                                      .wire = GS_WIRE_NONE,
                                      .create = create_self,
                                      .post = post_self,
                                      .wait = wait_self,
                                      .abort = abort_self,
                                      .wait_ended = wait_self_ended,
                                      .destroy = destroy_self,
                                      .finished = finished_of_self,
                                      .times = times_of_self,
                                      .algorithm = algorithm_of_self,
                                      .stream = stream_of_self,
                                      .explain = explain_self};
