#include "gradsync/comm/shm/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"

static_assert(offsetof(gs_shm_post, send_offset) <= 64, "arrival and claim are one cache line");
static_assert(sizeof(gs_shm_post) == 128, "a post is one line pair");
static_assert(sizeof(gs_collective_claim) == 56, "claims have no padding");
static_assert(sizeof(gs_shm_control) % 4096 == 0, "lanes begin on a page");

enum { ABORT_NONE, ABORT_BEING_WRITTEN, ABORT_SET };

static gs_status make_file(int *fd, void **data, const char *name, size_t bytes) {
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return gs_error_from_errno(errno, "%s: memfd_create", name);
    int error;
    do error = posix_fallocate(*fd, 0, (off_t)bytes);
    while (error == EINTR);
    if (error) return gs_error_from_errno(error, "%s of %zu bytes", name, bytes);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (mapped == MAP_FAILED) return gs_error_from_errno(errno, "%s: map %zu bytes", name, bytes);
    *data = mapped;
    return gs_ok();
}

static gs_status seal_file(int fd, const char *name, int seals) {
    if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return gs_error_from_errno(errno, "%s: seal", name);
    return gs_ok();
}

static size_t control_bytes(const gs_shm_segment *segment) {
    return sizeof(gs_shm_control) + (size_t)segment->num_lanes * sizeof(gs_shm_lane_block);
}

gs_status gs_shm_make_control(int *fd, gs_shm_segment *segment) {
    void *data;
    size_t bytes = control_bytes(segment);
    GS_TRY(make_file(fd, &data, "gradsync-control", bytes));
    segment->own = data;
    segment->controls[segment->rank] = segment->own;
    memset(segment->own, 0, bytes);
    segment->own->magic = GS_SHM_MAGIC;
    segment->own->generation = segment->generation;
    segment->own->rank = segment->rank;
#ifdef F_SEAL_FUTURE_WRITE
    return seal_file(*fd, "gradsync-control", F_SEAL_FUTURE_WRITE);
#else
    return seal_file(*fd, "gradsync-control", 0);
#endif
}

static gs_status init_lives(gs_shm_common *common) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int error = 0;
    for (int i = 0; i < GS_SHM_MAX_RANKS && !error; i++)
        error = pthread_mutex_init(&common->lives[i].mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return error ? gs_error_from_errno(error, "robust mutex") : gs_ok();
}

gs_status gs_shm_make_common(int *fd, gs_shm_segment *segment, uint64_t nonce) {
    void *data;
    GS_TRY(make_file(fd, &data, "gradsync-common", sizeof *segment->common));
    segment->common = data;
    segment->common->magic = GS_SHM_MAGIC;
    segment->common->nonce = nonce;
    GS_TRY(init_lives(segment->common));
    return seal_file(*fd, "gradsync-common", 0);
}

static gs_status map_file(void **data, int fd, size_t bytes, int protection, const char *what,
                          int rank) {
    struct stat facts;
    if (fstat(fd, &facts)) return gs_error_from_errno(errno, "%s of rank %d", what, rank);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || (size_t)facts.st_size < bytes)
        return gs_error(GS_UNAVAILABLE, "%s of rank %d is not a sealed file of %zu bytes", what,
                        rank, bytes);
    void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return gs_error_from_errno(errno, "%s of rank %d: map %zu bytes", what, rank, bytes);
#ifdef MADV_POPULATE_READ
    // Page faults now rather than in the first step; only a hint.
    madvise(mapped, bytes, protection & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
#endif
    *data = mapped;
    return gs_ok();
}

gs_status gs_shm_map_common(gs_shm_segment *segment, int fd, uint64_t nonce) {
    void *data;
    GS_TRY(map_file(&data, fd, sizeof *segment->common, PROT_READ | PROT_WRITE, "common page", 0));
    segment->common = data;
    if (segment->common->magic != GS_SHM_MAGIC || segment->common->nonce != nonce)
        return gs_error(GS_UNAVAILABLE, "common page of rank 0 holds another communicator");
    return gs_ok();
}

gs_status gs_shm_map_control(gs_shm_segment *segment, int rank, int fd) {
    void *data;
    GS_TRY(map_file(&data, fd, control_bytes(segment), PROT_READ, "control block", rank));
    segment->controls[rank] = data;
    return gs_ok();
}

gs_status gs_shm_map_arena(gs_shm_segment *segment, int rank, int fd, size_t bytes) {
    void *data;
    GS_TRY(map_file(&data, fd, bytes, PROT_READ | PROT_WRITE, "arena", rank));
    segment->arenas[rank] = data;
    segment->arena_bytes[rank] = bytes;
    return gs_ok();
}

void gs_shm_unmap(gs_shm_segment *segment) {
    for (int i = 0; i < segment->world_size; i++) {
        if (i == segment->rank) continue;
        if (segment->controls[i])
            munmap((void *)(uintptr_t)segment->controls[i], control_bytes(segment));
        if (segment->arenas[i]) munmap(segment->arenas[i], segment->arena_bytes[i]);
    }
    if (segment->own) munmap(segment->own, control_bytes(segment));
    // A life that could not be given back is still on its thread's list of robust mutexes: the page
    // has to stay.
    if (segment->common && !segment->holds_life) munmap(segment->common, sizeof *segment->common);
    *segment = (gs_shm_segment){.rank = segment->rank, .world_size = segment->world_size};
}

gs_shm_lane_blocks gs_shm_blocks_of_lane(gs_shm_segment *segment, int lane) {
    gs_shm_lane_blocks blocks = {
        .segment = segment, .lane = lane, .own = &segment->own->lanes[lane]};
    for (int i = 0; i < segment->world_size; i++) blocks.of[i] = &segment->controls[i]->lanes[lane];
    return blocks;
}

gs_status gs_shm_begin_life(gs_shm_segment *segment) {
    int error = pthread_mutex_trylock(&segment->common->lives[segment->rank].mutex);
    if (error) return gs_error_from_errno(error, "life of rank %d", segment->rank);
    segment->holds_life = true;
    segment->life_holder = pthread_self();
    return gs_ok();
}

void gs_shm_end_life(gs_shm_segment *segment) {
    atomic_store_explicit(&segment->own->has_left, 1, memory_order_release);
    // Only the thread that took a mutex can give it back.
    if (segment->holds_life && pthread_equal(segment->life_holder, pthread_self())) {
        pthread_mutex_unlock(&segment->common->lives[segment->rank].mutex);
        segment->holds_life = false;
    }
    gs_futex_event_notify(&segment->common->event);
}

bool gs_shm_is_damaged(const gs_shm_segment *segment, int rank) {
    const volatile gs_shm_control *control = segment->controls[rank];
    return control->magic != GS_SHM_MAGIC || control->generation != segment->generation ||
           control->rank != rank;
}

// Of a rank that is here no more. Read after its life was tried: it says that it leaves before it
// ends it.
static gs_shm_health fate_of(const gs_shm_control *control) {
    bool left = atomic_load_explicit(&control->has_left, memory_order_acquire);
    return left ? GS_SHM_LEFT : GS_SHM_DEAD;
}

bool gs_shm_life_goes_on(gs_shm_segment *segment, int rank) {
    int error = pthread_mutex_trylock(&segment->common->lives[rank].mutex);
    // A communicator that another thread ended leaves its life with the one that began it, which
    // runs on. What a damaged block says of itself counts for nothing.
    if (error == EBUSY)
        return gs_shm_is_damaged(segment, rank) || fate_of(segment->controls[rank]) != GS_SHM_LEFT;
    // Repaired, so that whoever asks next finds it free. An unrepaired one stays with the next rank
    // that asks, which is told that it cannot have it (glibc), and would look alive for ever.
    if (error == EOWNERDEAD) pthread_mutex_consistent(&segment->common->lives[rank].mutex);
    if (!error || error == EOWNERDEAD) pthread_mutex_unlock(&segment->common->lives[rank].mutex);
    return false;
}

gs_shm_health gs_shm_check_life(gs_shm_segment *segment, int rank) {
    if (gs_shm_is_damaged(segment, rank)) return GS_SHM_DAMAGED;
    return gs_shm_life_goes_on(segment, rank) ? GS_SHM_ALIVE : fate_of(segment->controls[rank]);
}

void gs_shm_abort(gs_shm_segment *segment, gs_status reason, const gs_comm_failure *failure) {
    gs_shm_common *common = segment->common;
    uint32_t none = ABORT_NONE;
    if (atomic_compare_exchange_strong(&common->abort_state, &none, ABORT_BEING_WRITTEN)) {
        common->abort_code = reason.code;
        common->abort_cause = (gs_shm_cause){.accused = failure->accused[0],
                                             .sequence = failure->sequence,
                                             .step = failure->step,
                                             .kind = (int32_t)failure->kind,
                                             .reporter = failure->reporter,
                                             .lane = failure->lane,
                                             .bucket = failure->bucket};
        snprintf(common->abort_reason, sizeof common->abort_reason, "%s", reason.message);
        atomic_store_explicit(&common->abort_state, ABORT_SET, memory_order_release);
    }
    gs_futex_event_notify(&common->event);
}

bool gs_shm_aborted(const gs_shm_segment *segment) {
    return atomic_load_explicit(&segment->common->abort_state, memory_order_acquire) != ABORT_NONE;
}

void gs_shm_abort_failure(const gs_shm_segment *segment, gs_comm_failure *out) {
    const gs_shm_common *common = segment->common;
    *out = (gs_comm_failure){.reporter = -1, .bucket = -1};
    uint32_t state = atomic_load_explicit(&common->abort_state, memory_order_acquire);
    if (state == ABORT_NONE) return;
    out->kind =
        GS_COMM_FAILURE_ABORTED;  // by a rank that died while it said why, or wrote what cannot be
    const gs_shm_cause cause = common->abort_cause;
    bool is_one = cause.kind > GS_COMM_FAILURE_NONE && cause.kind <= GS_COMM_FAILURE_ABORTED &&
                  cause.reporter >= 0 && cause.reporter < segment->world_size;
    if (state != ABORT_SET || !is_one) return;
    out->kind = (gs_comm_failure_kind)cause.kind;
    out->reporter = cause.reporter;
    out->lane = cause.lane;
    out->sequence = cause.sequence;
    out->step = cause.step;
    out->bucket = cause.bucket;
    for (int i = 0; i < segment->world_size; i++) {
        if (cause.accused >> i & 1) gs_comm_failure_accuse(out, i);
    }
}

gs_status gs_shm_abort_reason(const gs_shm_segment *segment) {
    const gs_shm_common *common = segment->common;
    // The writer may die between its two stores: do not wait for it for ever.
    gs_deadline deadline = gs_deadline_in_ms(5);
    while (atomic_load_explicit(&common->abort_state, memory_order_acquire) != ABORT_SET) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_ABORTED, "aborted by a rank that died while it said why");
        sched_yield();
    }
    int code = common->abort_code > GS_OK && common->abort_code < GS_NUM_CODES ? common->abort_code
                                                                               : GS_ABORTED;
    return gs_error((gs_code)code, "%.*s", (int)sizeof common->abort_reason - 1,
                    common->abort_reason);
}
