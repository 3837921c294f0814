#include "gradsync/sharded/reshard.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/options.h"
#include "gradsync/comm/same_words.h"

#define PIECE_BYTES ((size_t)64 << 10)

// A partition, walked in order of parameter and element: of each rank the first segment that is not
// behind it.
typedef struct walk {
    const gs_shards *shards;
    size_t *next;  // owned; of each rank
} walk;

typedef struct mover {
    gs_reshard_options options;
    walk from, to;
    void *const *new_parts;
    const void *const *old_parts;
    size_t element_bytes, most;  // elements of a piece
    void *beside;                // owned; of the device
} mover;

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "reshard: out of memory");
}

// Who owns an element, how many from it on, and where that is in the owner's segment.
typedef struct owned {
    int rank;
    size_t segment, at, count;
} owned;

static gs_status find_owner(owned *out, walk *in, size_t param, size_t element) {
    for (int r = 0; r < gs_shards_world_size(in->shards); r++) {
        size_t num_segments, *next = &in->next[r];
        const gs_segment *segments = gs_shards_of_rank(in->shards, r, &num_segments);
        while (*next < num_segments && (segments[*next].tensor < param ||
                                        (segments[*next].tensor == param &&
                                         segments[*next].first + segments[*next].count <= element)))
            ++*next;
        if (*next == num_segments) continue;
        const gs_segment *found = &segments[*next];
        if (found->tensor != param || found->first > element) continue;
        *out = (owned){r, *next, element - found->first, found->first + found->count - element};
        return gs_ok();
    }
    return gs_error(GS_INTERNAL, "reshard: element %zu of parameter %zu is nobody's", element,
                    param);
}

static gs_status copy_here(const mover *self, void *to, const void *from, size_t bytes) {
    gs_stream *stream = gs_device_stream(self->options.device);
    gs_device_kernels(self->options.device)->copy(stream, to, from, bytes);
    return gs_ok();
}

static gs_status send(const mover *self, void *to, const void *from, int root, size_t bytes,
                      gs_deadline deadline) {
    // Who sends keeps what it has; who neither owned nor owns it receives beside.
    void *at = to ? to : from ? (void *)(uintptr_t)from : self->beside;
    GS_FAILPOINT("sharded.reshard");
    return gs_comm_run(self->options.comm,
                       &(gs_collective){.kind = GS_BROADCAST,
                                        .send = from ? from : at,
                                        .recv = at,
                                        .count = bytes,
                                        .dtype = GS_U8,
                                        .root = root,
                                        .step = -1,
                                        .bucket = -1},
                       deadline);
}

// A run of elements that has one old and one new owner, or the part of it that travels at a time.
static gs_status move_run(const mover *self, const owned *old, const owned *new_one, size_t count,
                          gs_deadline deadline) {
    int rank = gs_comm_rank(self->options.comm);
    size_t bytes = count * self->element_bytes;
    const char *from = NULL;
    char *to = NULL;
    if (rank == old->rank)
        from = (const char *)self->old_parts[old->segment] + old->at * self->element_bytes;
    if (rank == new_one->rank)
        to = (char *)self->new_parts[new_one->segment] + new_one->at * self->element_bytes;
    if (old->rank == new_one->rank) return from ? copy_here(self, to, from, bytes) : gs_ok();
    return send(self, to, from, old->rank, bytes, deadline);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static gs_status move_param(mover *self, size_t param, size_t count, gs_deadline deadline) {
    for (size_t element = 0; element < count;) {
        owned old, new_one;
        GS_TRY(find_owner(&old, &self->from, param, element));
        GS_TRY(find_owner(&new_one, &self->to, param, element));
        size_t run = least(least(old.count, new_one.count), self->most);
        GS_TRY(move_run(self, &old, &new_one, run, deadline));
        element += run;
    }
    return gs_ok();
}

// Elements of each parameter: the last that anybody owns of it.
static void count_elements(size_t *counts, const gs_shards *shards) {
    for (int r = 0; r < gs_shards_world_size(shards); r++) {
        size_t num_segments;
        const gs_segment *segments = gs_shards_of_rank(shards, r, &num_segments);
        for (size_t i = 0; i < num_segments; i++) {
            size_t end = segments[i].first + segments[i].count,
                   *count = &counts[segments[i].tensor];
            if (end > *count) *count = end;
        }
    }
}

static gs_status move_all(mover *self, gs_deadline deadline) {
    size_t num_params = gs_shards_num_params(self->from.shards);
    size_t *counts = calloc(num_params + 1, sizeof *counts);
    size_t *others = calloc(gs_shards_num_params(self->to.shards) + 1, sizeof *others);
    gs_status status = counts && others ? gs_ok() : out_of_memory();
    if (!status.code) {
        count_elements(counts, self->from.shards);
        count_elements(others, self->to.shards);
        if (memcmp(counts, others, num_params * sizeof *counts) != 0)
            status = gs_error(GS_INVALID_ARGUMENT, "reshard: partitions of other parameters");
    }
    for (size_t p = 0; p < num_params && !status.code; p++)
        status =
            gs_status_prefix(move_param(self, p, counts[p], deadline), "reshard: parameter %zu", p);
    free(counts);
    free(others);
    return status;
}

static gs_status check(const gs_reshard_options *options, size_t element_bytes) {
    if (!options->from || !options->to || !options->comm || !options->device || !element_bytes)
        return gs_error(GS_INVALID_ARGUMENT,
                        "reshard: from, to, communicator, device and elements are needed");
    int world_size = gs_comm_world_size(options->comm);
    if (gs_shards_world_size(options->from) != world_size ||
        gs_shards_world_size(options->to) != world_size)
        return gs_error(
            GS_INVALID_ARGUMENT, "reshard: shards of %d and of %d ranks, the communicator has %d",
            gs_shards_world_size(options->from), gs_shards_world_size(options->to), world_size);
    if (gs_shards_num_params(options->from) > gs_shards_num_params(options->to))
        return gs_error(GS_INVALID_ARGUMENT, "reshard: from shards of %zu parameters to %zu",
                        gs_shards_num_params(options->from), gs_shards_num_params(options->to));
    return gs_ok();
}

static gs_status agree(const mover *self, gs_deadline deadline) {
    const gs_reshard_options *options = &self->options;
    const gs_same_word words[] = {
        {"bytes of an element that is dealt anew", (int64_t)self->element_bytes, false},
        {"elements of a piece that is dealt anew", (int64_t)self->most, false},
        {"owner of some element before", (int64_t)gs_digest_fold(gs_shards_digest(options->from)),
         true},
        {"owner of some element to be", (int64_t)gs_digest_fold(gs_shards_digest(options->to)),
         true}};
    return gs_same_words_check(words, sizeof words / sizeof *words, options->comm, deadline);
}

static gs_status open_mover(mover *self) {
    size_t world_size = (size_t)gs_comm_world_size(self->options.comm);
    size_t bytes = self->options.piece_bytes ? self->options.piece_bytes : PIECE_BYTES;
    self->most = bytes > self->element_bytes ? bytes / self->element_bytes : 1;
    self->from = (walk){self->options.from, calloc(world_size, sizeof *self->from.next)};
    self->to = (walk){self->options.to, calloc(world_size, sizeof *self->to.next)};
    if (!self->from.next || !self->to.next) return out_of_memory();
    return gs_device_alloc(self->options.device, &self->beside, self->most * self->element_bytes);
}

static void close_mover(mover *self) {
    if (self->beside) gs_device_free(self->options.device, self->beside);
    free(self->from.next);
    free(self->to.next);
}

static gs_status run(mover *self, gs_deadline deadline) {
    GS_TRY(gs_status_prefix(open_mover(self), "rank %d", gs_comm_rank(self->options.comm)));
    GS_TRY(agree(self, deadline));
    // On a GPU behind what steps have left there.
    GS_TRY(gs_stream_wait(gs_device_stream(self->options.device), deadline));
    GS_TRY(move_all(self, deadline));
    return gs_stream_wait(gs_device_stream(self->options.device), deadline);
}

// Whoever alone cannot go on must tell the ranks that wait for it.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    if (status.code && comm) gs_comm_abort(comm, status.message);
    return status;
}

static gs_status take_options(gs_reshard_options *known, const gs_reshard_options *options,
                              size_t options_bytes, size_t element_bytes) {
    gs_status status =
        gs_options_take(known, sizeof *known, options, options_bytes, "gs_reshard_options");
    if (!status.code) status = check(known, element_bytes);
    return known->comm ? gs_status_prefix(status, "rank %d", gs_comm_rank(known->comm)) : status;
}

gs_status gs_reshard_run_sized(const gs_reshard_options *options, size_t options_bytes,
                               void *const *new_parts, const void *const *old_parts,
                               size_t element_bytes, gs_deadline deadline) {
    mover self = {.new_parts = new_parts, .old_parts = old_parts, .element_bytes = element_bytes};
    gs_status status = take_options(&self.options, options, options_bytes, element_bytes);
    if (!status.code) status = run(&self, deadline);
    close_mover(&self);
    return tell_others(self.options.comm, status);
}

// ---- optimizers

static gs_status check_segments(const gs_optimizer *optimizer, const gs_shards *shards, int rank,
                                const char *which) {
    size_t num_segments, num_own;
    const gs_segment *segments = gs_optimizer_segments(optimizer, &num_segments);
    const gs_segment *own = gs_shards_of_rank(shards, rank, &num_own);
    bool same = num_segments == num_own &&
                gs_optimizer_num_params(optimizer) == gs_shards_num_params(shards);
    for (size_t i = 0; i < num_own && same; i++)
        same = segments[i].tensor == own[i].tensor && segments[i].first == own[i].first &&
               segments[i].count == own[i].count;
    if (same) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "reshard: the %s optimizer is not of the segments that its shards say", which);
}

static gs_status check_optimizers(const gs_reshard_options *options, const gs_optimizer *to,
                                  const gs_optimizer *from) {
    int rank = gs_comm_rank(options->comm), num_states = gs_optimizer_state_count(from);
    GS_TRY(check_segments(from, options->from, rank, "old"));
    GS_TRY(check_segments(to, options->to, rank, "new"));
    bool same = gs_optimizer_state_count(to) == num_states;
    for (int s = 0; s < num_states && same; s++)
        same = strcmp(gs_optimizer_state_name(to, s), gs_optimizer_state_name(from, s)) == 0;
    return same ? gs_ok() : gs_error(GS_INVALID_ARGUMENT, "reshard: optimizers of two kinds");
}

// Else states of another meaning would go into each other, where they are as large.
static gs_status agree_on_states(const gs_optimizer *optimizer, gs_comm *comm,
                                 gs_deadline deadline) {
    uint64_t names = 0;
    int num_states = gs_optimizer_state_count(optimizer);
    for (int s = 0; s < num_states; s++) {
        const char *name = gs_optimizer_state_name(optimizer, s);
        names = gs_hash64(name, strlen(name), names);
    }
    const gs_same_word words[] = {
        {"number of states of the optimizer that is dealt anew", num_states, false},
        {"kind of states of the optimizer that is dealt anew", (int64_t)names, true}};
    return gs_same_words_check(words, sizeof words / sizeof *words, comm, deadline);
}

static gs_status move_state(const gs_reshard_options *options, gs_optimizer *to, gs_optimizer *from,
                            int which, gs_deadline deadline) {
    size_t num_to, num_from;
    gs_optimizer_segments(to, &num_to);
    gs_optimizer_segments(from, &num_from);
    void **new_parts = calloc(num_to + 1, sizeof *new_parts);
    const void **old_parts = calloc(num_from + 1, sizeof *old_parts);
    gs_status status = new_parts && old_parts ? gs_ok() : out_of_memory();
    for (size_t i = 0; i < num_to && !status.code; i++)
        new_parts[i] = gs_optimizer_state(to, which, i);
    for (size_t i = 0; i < num_from && !status.code; i++)
        old_parts[i] = gs_optimizer_state(from, which, i);
    if (!status.code)
        status = gs_reshard_run(options, new_parts, old_parts, sizeof(float), deadline);
    free(new_parts);
    free(old_parts);
    return status;
}

static gs_status move_optimizer(const gs_reshard_options *options, gs_optimizer *to,
                                gs_optimizer *from, gs_deadline deadline) {
    GS_TRY(gs_status_prefix(check_optimizers(options, to, from), "rank %d",
                            gs_comm_rank(options->comm)));
    GS_TRY(agree_on_states(from, options->comm, deadline));
    for (int s = 0; s < gs_optimizer_state_count(from); s++)
        GS_TRY(move_state(options, to, from, s, deadline));
    // All ranks hold the same.
    memcpy(gs_optimizer_num_updates(to), gs_optimizer_num_updates(from),
           gs_optimizer_num_params(from) * sizeof(int64_t));
    return gs_ok();
}

gs_status gs_reshard_optimizer_sized(const gs_reshard_options *options, size_t options_bytes,
                                     gs_optimizer *to, gs_optimizer *from, gs_deadline deadline) {
    gs_reshard_options known;
    gs_status status = take_options(&known, options, options_bytes, sizeof(float));
    if (!status.code) status = move_optimizer(&known, to, from, deadline);
    return tell_others(known.comm, status);
}
