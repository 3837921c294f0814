// A collective has three phases: within each group, between the first ranks, within each group again. Each has its
// own lane inside, so that no timing decides in which order members of a group post; ranks that are no first
// ones post both of theirs at once.
#include "tests/embedded/composite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 1024
#define MOST_LANES (GS_COMM_MAX_LANES / 2)
#define MOST_PARTS 2  // collectives of one phase

typedef struct phase {
    gs_collective parts[MOST_PARTS];
    gs_work works[MOST_PARTS];
    int num_parts, num_posted;
} phase;

typedef struct composite_work {
    gs_collective whole;
    phase phases[3];
    unsigned char *scratch;
    gs_work_times times;
} composite_work;

typedef struct lane {
    uint64_t posted, next[3];  // the first whose phase has not been posted to the end
    _Atomic uint64_t finished;
    composite_work works[KEPT];
} lane;

typedef struct composite {
    int rank, world_size, first, num_members, num_lanes;  // first: of the own group
    int group, split;
    gs_comm *comms[2];  // inside; between, on first ranks
    int num_comms;
    gs_interrupt interrupt;
    gs_status failure;  // owner; the first that was seen
    gs_comm_failure why;
    pthread_mutex_t lock;
    char aborted[200];  // by lock; "" while it was not
    lane lanes[];
} composite;

static composite_work *work_of(lane *l, uint64_t sequence) {
    return &l->works[sequence % KEPT];
}

static bool is_first(const composite *self) {
    return self->num_comms == 2;
}

// Of the inner communicator that failed, in numbers of the whole.
static void translate(gs_comm_failure *out, const composite *self, int which) {
    gs_comm_failure inner;
    gs_comm_explain(self->comms[which], &inner);
    *out = inner;
    memset(out->accused, 0, sizeof out->accused);
    for (int i = 0; i < gs_comm_world_size(self->comms[which]); i++) {
        if (gs_comm_failure_names(&inner, i))
            gs_comm_failure_accuse(out, which == 0 ? self->first + i : i ? self->split : 0);
    }
    if (inner.reporter >= 0)
        out->reporter = which == 0 ? self->first + inner.reporter : inner.reporter ? self->split : 0;
}

// The first error ends all communicators of this rank, and so everybody's.
static gs_status fail(composite *self, int which, gs_status status) {
    if (self->failure.code) return self->failure;
    self->failure = status;
    translate(&self->why, self, which);
    for (int i = 0; i < self->num_comms; i++) gs_comm_abort(self->comms[i], status.message);
    return status;
}

static gs_status open_group(composite *self, const gs_comm_options *options, gs_comm **comm, const char *what,
                            const int *members, int num_members, int rank, gs_deadline deadline) {
    int ranks[GS_COMM_MAX_RANKS];
    char group[40];
    const composite_options *own = options->own_backend_ctx;
    for (int i = 0; i < num_members; i++) ranks[i] = options->ranks ? options->ranks[members[i]] : members[i];
    snprintf(group, sizeof group, "%.20s.%s", options->group ? options->group : "", what);
    gs_comm_options inner = {.rank = rank,
                             .world_size = num_members,
                             .generation = options->generation,
                             .exchange = options->exchange,
                             .exchange_ctx = options->exchange_ctx,
                             .check = options->check,
                             .check_ctx = options->check_ctx,
                             .arena = options->arena,
                             .device = options->device,
                             .helper = own->helper,
                             .ranks_on_host = options->world_size,
                             .num_lanes = 2 * self->num_lanes,
                             .ranks = ranks,
                             .group = group};
    if (own->inside && comm == &self->comms[0]) {
        inner.own_backend = &composite_backend;
        inner.own_backend_ctx = own->inside;
    }
    return gs_comm_create(comm, &inner, deadline);
}

static void destroy_composite(void *backend) {
    composite *self = backend;
    for (int i = 0; i < self->num_comms; i++) gs_comm_destroy(self->comms[i]);
    for (int l = 0; l < self->num_lanes; l++) {
        for (size_t i = 0; i < KEPT; i++) free(self->lanes[l].works[i].scratch);
    }
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static gs_status open_groups(composite *self, const gs_comm_options *options, gs_stages *stages,
                             gs_deadline deadline) {
    int members[GS_COMM_MAX_RANKS];
    for (int i = 0; i < self->num_members; i++) members[i] = self->first + i;
    gs_status inside = open_group(self, options, &self->comms[0], self->group ? "right" : "left", members,
                                  self->num_members, self->rank - self->first, deadline);
    self->num_comms = !inside.code;
    // The first of a group that could not be made would not come between.
    GS_TRY(gs_stages_meet(stages, "groups", inside, NULL, NULL, 0));
    if (self->rank != self->first) return gs_ok();
    gs_status between = open_group(self, options, &self->comms[1], "between", (int[]){0, self->split}, 2, self->group,
                                   deadline);
    self->num_comms += !between.code;
    return between;
}

static gs_status make_composite(composite **out, const gs_comm_options *options) {
    const composite_options *own = options->own_backend_ctx;
    if (options->num_lanes > MOST_LANES) return gs_error(GS_INVALID_ARGUMENT, "at most %d lanes", MOST_LANES);
    if (own->split < 1 || own->split >= options->world_size)
        return gs_error(GS_INVALID_ARGUMENT, "split %d of %d", own->split, options->world_size);
    composite *self = calloc(1, sizeof *self + (size_t)options->num_lanes * sizeof(lane));
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "composite: out of memory");
    self->rank = options->rank;
    self->world_size = options->world_size;
    self->num_lanes = options->num_lanes;
    self->split = own->split;
    self->group = self->rank >= own->split;
    self->first = self->group ? own->split : 0;
    self->num_members = self->group ? options->world_size - own->split : own->split;
    self->interrupt = (gs_interrupt){.ask = options->interrupt, .ctx = options->interrupt_ctx};
    pthread_mutex_init(&self->lock, NULL);
    for (int l = 0; l < self->num_lanes; l++)
        for (int p = 0; p < 3; p++) self->lanes[l].next[p] = 1;
    *out = self;
    return gs_ok();
}

static gs_status create_composite(void **out, const gs_comm_options *options, gs_stages *stages, char *reason,
                                  size_t reason_bytes, gs_deadline deadline) {
    composite *self = NULL;
    // Whoever fails here would not come to its group.
    gs_status status = gs_stages_meet(stages, "composite", make_composite(&self, options), NULL, NULL, 0);
    if (!status.code) status = open_groups(self, options, stages, deadline);
    if (status.code && self) destroy_composite(self);
    if (status.code) return status;
    snprintf(reason, reason_bytes, "two groups of %d and %d", self->split, self->world_size - self->split);
    *out = self;
    return gs_ok();
}

static gs_collective *add_part(phase *p, const gs_collective *whole, gs_collective_kind kind, const void *send,
                               void *recv, size_t count, int root) {
    gs_collective *part = &p->parts[p->num_parts++];
    *part = *whole;
    part->kind = kind;
    part->send = send;
    part->recv = recv;
    part->count = count;
    part->root = root;
    part->scale = 0;
    return part;
}

// Sums: to the first of each group, among those, and back to all. Where a rank has no room for the
// result (it is no root, or gets a part of it) it lies in scratch.
static gs_status plan_sum(composite *self, composite_work *work) {
    const gs_collective *whole = &work->whole;
    size_t count = whole->count * (whole->kind == GS_REDUCE_SCATTER ? (size_t)self->world_size : 1);
    void *room = whole->recv;
    if (whole->kind != GS_ALLREDUCE) {
        room = work->scratch = malloc(count * gs_dtype_bytes(whole->dtype) + 1);
        if (!room) return gs_error(GS_RESOURCE_EXHAUSTED, "composite: out of memory");
    }
    add_part(&work->phases[0], whole, GS_REDUCE, whole->send, is_first(self) ? room : NULL, count, 0);
    if (is_first(self))
        add_part(&work->phases[1], whole, GS_ALLREDUCE, room, room, count, 0)->scale = whole->scale;
    add_part(&work->phases[2], whole, GS_BROADCAST, is_first(self) ? room : NULL, room, count, 0);
    return gs_ok();
}

static void plan_broadcast(composite *self, composite_work *work) {
    const gs_collective *whole = &work->whole;
    int group = whole->root >= self->split;
    bool is_root = whole->root == self->rank;
    if (group == self->group)
        add_part(&work->phases[0], whole, GS_BROADCAST, is_root ? whole->send : NULL, whole->recv, whole->count,
                 whole->root - self->first);
    if (is_first(self))
        add_part(&work->phases[1], whole, GS_BROADCAST, group == self->group ? whole->recv : NULL, whole->recv,
                 whole->count, group);
    if (group != self->group)
        add_part(&work->phases[2], whole, GS_BROADCAST, is_first(self) ? whole->recv : NULL, whole->recv,
                 whole->count, 0);
}

static void plan_allgather(composite *self, composite_work *work) {
    const gs_collective *whole = &work->whole;
    size_t bytes = gs_collective_part_bytes(whole), split = (size_t)self->split;
    unsigned char *all = whole->recv, *sides[2] = {all, all + split * bytes};
    size_t counts[2] = {split * whole->count, ((size_t)self->world_size - split) * whole->count};
    int other = !self->group;
    add_part(&work->phases[0], whole, GS_ALLGATHER, whole->send, sides[self->group], whole->count, 0);
    for (int g = 0; g < 2 && is_first(self); g++)
        add_part(&work->phases[1], whole, GS_BROADCAST, g == self->group ? sides[g] : NULL, sides[g], counts[g], g);
    add_part(&work->phases[2], whole, GS_BROADCAST, is_first(self) ? sides[other] : NULL, sides[other],
             counts[other], 0);
}

static gs_status plan_work(composite *self, composite_work *work) {
    if (work->whole.tree) return gs_error(GS_UNIMPLEMENTED, "composite: no sums along a tree");
    if (gs_collective_reduces(&work->whole)) return plan_sum(self, work);
    if (work->whole.kind == GS_BROADCAST) {
        plan_broadcast(self, work);
    } else if (work->whole.kind == GS_ALLGATHER) {
        plan_allgather(self, work);
    } else {
        for (int p = 0; p < 3; p++)
            if (p != 1 || is_first(self)) add_part(&work->phases[p], &work->whole, GS_BARRIER, NULL, NULL, 0, 0);
    }
    return gs_ok();
}

static bool phase_is_done(const composite *self, const composite_work *work, int p) {
    const phase *one = &work->phases[p];
    for (int i = 0; i < one->num_parts; i++) {
        if (i >= one->num_posted || !gs_comm_done(self->comms[p == 1], one->works[i])) return false;
    }
    return true;
}

// Posts what may be posted of a phase, in order of the lane.
static gs_status post_phase(composite *self, int number, int p) {
    lane *l = &self->lanes[number];
    for (; l->next[p] <= l->posted; l->next[p]++) {
        composite_work *work = work_of(l, l->next[p]);
        phase *one = &work->phases[p];
        if (p > 0 && is_first(self) && (l->next[p - 1] <= l->next[p] || !phase_is_done(self, work, p - 1)))
            return gs_ok();
        for (; one->num_posted < one->num_parts; one->num_posted++) {
            gs_collective *part = &one->parts[one->num_posted];
            part->lane = p == 2 ? self->num_lanes + number : number;
            gs_status status = gs_comm_post(self->comms[p == 1], &one->works[one->num_posted], part);
            if (status.code) return fail(self, p == 1, status);
        }
    }
    return gs_ok();
}

static void finish_work(composite *self, composite_work *work) {
    size_t bytes = gs_collective_part_bytes(&work->whole);
    if (work->whole.kind == GS_REDUCE && work->whole.root == self->rank)
        memcpy(work->whole.recv, work->scratch, bytes);
    if (work->whole.kind == GS_REDUCE_SCATTER)
        memcpy(work->whole.recv, work->scratch + (size_t)self->rank * bytes, bytes);
    free(work->scratch);
    work->scratch = NULL;
    work->times.finished_ns = gs_now_ns();
}

static gs_status move_lane(composite *self, int number) {
    lane *l = &self->lanes[number];
    for (int p = 0; p < 3; p++) GS_TRY(post_phase(self, number, p));
    for (uint64_t done = atomic_load(&l->finished); done < l->posted; done++) {
        composite_work *work = work_of(l, done + 1);
        for (int p = 0; p < 3; p++)
            if (!phase_is_done(self, work, p)) return gs_ok();
        finish_work(self, work);
        atomic_store(&l->finished, done + 1);
    }
    return gs_ok();
}

static gs_status check_abort(composite *self) {
    pthread_mutex_lock(&self->lock);
    gs_status status = *self->aborted ? gs_error(GS_ABORTED, "%s", self->aborted) : gs_ok();
    pthread_mutex_unlock(&self->lock);
    if (status.code && !self->failure.code) {
        self->failure = status;
        self->why = (gs_comm_failure){.kind = GS_COMM_FAILURE_ABORTED, .reporter = self->rank, .bucket = -1};
    }
    return self->failure;
}

static gs_status advance(composite *self) {
    GS_TRY(check_abort(self));
    for (int i = 0; i < self->num_comms; i++) {
        gs_status status = gs_comm_progress(self->comms[i]);
        if (status.code) return fail(self, i, status);
    }
    for (int l = 0; l < self->num_lanes; l++) GS_TRY(move_lane(self, l));
    return gs_ok();
}

static gs_status post_composite(void *backend, int number, uint64_t sequence, const gs_collective *collective) {
    composite *self = backend;
    GS_TRY(check_abort(self));
    if (collective) {
        composite_work *work = work_of(&self->lanes[number], sequence);
        *work = (composite_work){.whole = *collective, .times = {.posted_ns = gs_now_ns()}};
        GS_TRY(plan_work(self, work));
        self->lanes[number].posted = sequence;
    }
    return advance(self);
}

// Who is waited for is known inside: the oldest collective that is not done says it.
static gs_status explain_late(composite *self, lane *l, gs_status late) {
    composite_work *work = work_of(l, atomic_load(&l->finished) + 1);
    for (int p = 0; p < 3; p++) {
        for (int i = 0; i < work->phases[p].num_posted; i++) {
            if (gs_comm_done(self->comms[p == 1], work->phases[p].works[i])) continue;
            gs_status status = gs_comm_wait(self->comms[p == 1], work->phases[p].works[i], gs_deadline_in_ns(0));
            if (status.code) translate(&self->why, self, p == 1);
            return status;
        }
    }
    return late;
}

static gs_status let_go(composite *self) {
    for (int i = 0; i < self->num_comms; i++) gs_comm_let_go(self->comms[i], self->failure.message);
    return self->failure;
}

static gs_status wait_composite(void *backend, int number, uint64_t sequence, gs_deadline deadline) {
    composite *self = backend;
    lane *l = &self->lanes[number];
    for (;;) {
        gs_status status = atomic_load(&l->finished) >= sequence ? gs_ok() : advance(self);
        if (atomic_load(&l->finished) >= sequence) return gs_ok();
        if (status.code) return let_go(self);
        gs_deadline turn = gs_deadline_min(deadline, gs_deadline_in_ns(GS_INTERRUPT_NS));
        status = gs_comm_wait_moved(self->comms, self->num_comms, turn);
        if (gs_interrupt_check(&self->interrupt, gs_now_ns()))
            return gs_error(GS_CANCELLED, "the wait was interrupted");
        if (status.code == GS_DEADLINE_EXCEEDED && gs_deadline_passed(deadline)) return explain_late(self, l, status);
    }
}

static void abort_composite(void *backend, const char *reason) {
    composite *self = backend;
    pthread_mutex_lock(&self->lock);
    if (!*self->aborted) snprintf(self->aborted, sizeof self->aborted, "%s", reason);
    pthread_mutex_unlock(&self->lock);
    for (int i = 0; i < self->num_comms; i++) gs_comm_abort(self->comms[i], reason);
}

static gs_status wait_ended_composite(void *backend, gs_comm_failure *lingering, gs_deadline deadline) {
    composite *self = backend;
    for (int i = 0; i < self->num_comms; i++) {
        gs_status status = gs_comm_wait_ended(self->comms[i], deadline);
        if (status.code == GS_DEADLINE_EXCEEDED) translate(lingering, self, i);
        if (status.code) return status;
    }
    return gs_ok();
}

static uint64_t finished_of_composite(const void *backend, int number) {
    return atomic_load(&((const composite *)backend)->lanes[number].finished);
}

static bool times_of_composite(const void *backend, int number, uint64_t sequence, gs_work_times *times) {
    *times = ((const composite *)backend)->lanes[number].works[sequence % KEPT].times;
    return true;
}

static const char *algorithm_of_composite(const void *backend, const gs_collective *collective) {
    (void)backend;
    (void)collective;
    return "composite";
}

static void explain_composite(void *backend, gs_comm_failure *out) {
    const composite *self = backend;
    if (self->why.kind) *out = self->why;
}

static int events_of_composite(void *backend, gs_futex_event **events, int max) {
    composite *self = backend;
    int count = 0;
    for (int i = 0; i < self->num_comms; i++) {
        int room = count < max ? max - count : 0;
        count += gs_comm_events(self->comms[i], events + (max - room), room);
    }
    return count;
}

const gs_comm_backend composite_backend = {.name = "composite",
                                           .create = create_composite,
                                           .post = post_composite,
                                           .wait = wait_composite,
                                           .abort = abort_composite,
                                           .wait_ended = wait_ended_composite,
                                           .destroy = destroy_composite,
                                           .finished = finished_of_composite,
                                           .times = times_of_composite,
                                           .algorithm = algorithm_of_composite,
                                           .explain = explain_composite,
                                           .events = events_of_composite};
