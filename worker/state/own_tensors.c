#include "worker/state/own_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/comm/coalesce.h"
#include "worker/state/kept_shares.h"

#define PREFIX "hook/"
#define ORIGIN_GENERATION (UINT64_C(1) << 62)  // apart from those of checkpoints

static void forget_list(gs_own_tensors *own) {
    free(own->tensors);
    own->tensors = NULL;
    own->num_tensors = own->bytes = 0;
    own->reducer = NULL;
    own->comm = NULL;
    own->is_dealt = false;
}

void gs_own_tensors_release(gs_own_tensors *own) {
    forget_list(own);
    gs_share_source_release(&own->source);
}

void gs_own_tensors_give(gs_own_tensors *own, const gs_share_source *source) {
    gs_share_source_release(&own->source);
    own->source = *source;
}

static gs_status add_tensor(gs_own_tensors *own, const gs_hook_state_tensor *hooks, size_t index) {
    const gs_hook_tensor *found = &hooks->tensor;
    gs_own_tensor *tensors = realloc(own->tensors, (own->num_tensors + 1) * sizeof *own->tensors);
    if (!tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "state of hooks: out of memory");
    own->tensors = tensors;
    gs_own_tensor *tensor = &tensors[own->num_tensors];
    *tensor = (gs_own_tensor){.dtype = found->dtype,
                              .count = found->count,
                              .bytes = found->count * gs_dtype_bytes(found->dtype),
                              .hook_index = index};
    int length = snprintf(tensor->name, sizeof tensor->name, PREFIX "%s", hooks->name);
    if (length >= (int)sizeof tensor->name)
        return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": its name is too long", hooks->name);
    if (found->dtype != GS_FP32 && found->dtype != GS_FP64)
        return gs_error(GS_UNIMPLEMENTED,
                        "tensor \"%s\" is each rank's own, and %s: of such no sum is kept",
                        tensor->name, gs_dtype_name(found->dtype));
    own->bytes += tensor->bytes;
    own->num_tensors++;
    return gs_ok();
}

gs_status gs_own_tensors_attach(gs_own_tensors *own, gs_reducer *reducer, gs_comm *comm) {
    gs_hook_state_tensor hooks;
    forget_list(own);
    for (size_t i = 0; gs_reducer_hook_state(&hooks, reducer, i); i++)
        if (hooks.tensor.is_own) GS_TRY(add_tensor(own, &hooks, i));
    own->reducer = reducer;
    own->comm = comm;
    return gs_ok();
}

static void take(void *ctx, const void *bytes, size_t num_bytes) {
    char **at = ctx;
    if (num_bytes) memcpy(*at, bytes, num_bytes);
    *at += num_bytes;
}

static void fill(void *ctx, void *bytes, size_t num_bytes) {
    const char **at = ctx;
    if (num_bytes) memcpy(bytes, *at, num_bytes);
    *at += num_bytes;
}

static gs_copy_run run_of(const gs_own_tensors *own, size_t index) {
    gs_hook_state_tensor hooks;
    const gs_own_tensor *tensor = &own->tensors[index];
    if (!gs_reducer_hook_state(&hooks, own->reducer, tensor->hook_index)) return (gs_copy_run){0};
    return (gs_copy_run){
        .data = hooks.tensor.data, .bytes = tensor->bytes, .is_on_host = hooks.tensor.is_on_host};
}

void *gs_own_tensors_data(const gs_own_tensors *own, size_t index) {
    gs_copy_run run = run_of(own, index);
    return run.is_on_host || gs_device_is_host(gs_comm_device(own->comm)) ? run.data : NULL;
}

// "residuals.reach": as if a host had died, and its memory with it.
static gs_status reach_peer(const void **from, const gs_own_tensors *own,
                            const gs_own_tensor *tensor, int rank, int64_t step) {
    *from = NULL;
    GS_FAILPOINT("residuals.reach");
    *from = gs_reducer_peer_hook_data(own->reducer, tensor->hook_index, rank, step);
    return gs_ok();
}

gs_status gs_own_tensors_read(const gs_own_tensors *own, gs_device_copy *copy, size_t index,
                              int rank, int64_t step, void *to) {
    const gs_own_tensor *tensor = &own->tensors[index];
    if (rank == gs_comm_rank(own->comm)) {
        const gs_copy_run run = run_of(own, index);
        char *at = to;
        return gs_device_copy_read(copy, &run, 1, take, &at);
    }
    const void *from;
    gs_status status = reach_peer(&from, own, tensor, rank, step);
    if (status.code || !from)
        return gs_error(GS_UNAVAILABLE,
                        "what rank %d carries of its own, step %lld, is not reached from rank %d",
                        rank, (long long)step, gs_comm_rank(own->comm));
    if (tensor->bytes) memcpy(to, from, tensor->bytes);
    return gs_ok();
}

static void add(void *sum, const void *more, const gs_own_tensor *tensor) {
    for (size_t i = 0; i < tensor->count; i++) {
        if (tensor->dtype == GS_FP32)
            ((float *)sum)[i] += ((const float *)more)[i];
        else
            ((double *)sum)[i] += ((const double *)more)[i];
    }
}

// Of a deal under way.
typedef struct dealing {
    gs_own_tensors *own;
    gs_device_copy *copy;
    const gs_share_deal *deal;
    gs_deadline deadline;
    int rank, num_received;
    void *sum, *share;  // owned; of the largest tensor
} dealing;

static gs_status read_share(const dealing *it, const gs_own_tensor *tensor, int share) {
    const gs_share_source *source = &it->own->source;
    gs_status status =
        source->read(source->ctx, tensor->name, share, tensor->dtype, tensor->count, it->share);
    return gs_status_prefix(status, "share of rank %d of %d", share, it->deal->num_shares);
}

// A share goes to its owner over the communicator where that one cannot read it.
static gs_status bring_share(dealing *it, const gs_own_tensor *tensor, int share) {
    const gs_share *at = &it->deal->shares[share];
    gs_status status = gs_ok();
    if (at->holder == it->rank) status = read_share(it, tensor, share);
    if (status.code) {
        // Whoever alone cannot go on must tell the ranks that wait for it.
        gs_comm_let_go(it->own->comm, status.message);
        return status;
    }
    if (at->holder == at->owner) return gs_ok();
    const gs_tensor_view view = {it->share, tensor->bytes, GS_U8};
    return gs_coalesced_broadcast(it->own->comm, &view, 1, at->holder, 0, it->deadline);
}

static gs_status deal_tensor(dealing *it, size_t index) {
    const gs_own_tensor *tensor = &it->own->tensors[index];
    int num_mine = 0;
    for (int share = 0; share < it->deal->num_shares && tensor->bytes; share++) {
        bool is_mine = it->deal->shares[share].owner == it->rank;
        GS_TRY(bring_share(it, tensor, share));
        if (!is_mine) continue;
        if (num_mine++)
            add(it->sum, it->share, tensor);
        else
            memcpy(it->sum, it->share, tensor->bytes);
    }
    if (!num_mine) return gs_ok();
    const gs_copy_run run = run_of(it->own, index);
    const char *at = it->sum;
    return gs_device_copy_write(it->copy, &run, 1, fill, &at);
}

static gs_status deal_all(dealing *it) {
    size_t most = 1;
    for (size_t i = 0; i < it->own->num_tensors; i++)
        if (it->own->tensors[i].bytes > most) most = it->own->tensors[i].bytes;
    it->sum = malloc(most);
    it->share = malloc(most);
    gs_status status = gs_ok();
    if (!it->sum || !it->share) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
        gs_comm_let_go(it->own->comm, status.message);
    }
    for (size_t i = 0; i < it->own->num_tensors && !status.code; i++) status = deal_tensor(it, i);
    free(it->sum);
    free(it->share);
    return status;
}

// On every rank alike: what one has read, all have the names of.
static gs_status check_names(const gs_own_tensors *own) {
    size_t found = own->source.claim.origin ? own->source.num_tensors : own->num_tensors;
    if (found == own->num_tensors) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "hooks carry %zu tensors that are each rank's own, what was saved has %zu",
                    own->num_tensors, found);
}

static gs_status gather(gs_share_claim *claims, gs_own_tensors *own, gs_deadline deadline) {
    return gs_comm_run(own->comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = &own->source.claim,
                                        .recv = claims,
                                        .count = sizeof *claims / sizeof(int64_t),
                                        .dtype = GS_I64,
                                        .step = -1,
                                        .bucket = -1},
                       deadline);
}

static gs_status follow_deal(gs_own_deal *dealt, dealing *it) {
    const gs_share_deal *deal = it->deal;
    if (deal->has_lost)
        return gs_error(GS_ABORTED, "what rank %d carried of its own has ended with it",
                        deal->lost);
    dealt->from_world = deal->num_shares;
    for (int i = 0; i < deal->num_shares; i++)
        dealt->num_received += deal->shares[i].holder != deal->shares[i].owner;
    if (!deal->num_shares) return gs_ok();
    GS_TRY(deal_all(it));
    return gs_reducer_hook_state_loaded(it->own->reducer);
}

// Behind it each rank may read what another has.
static gs_status settle(gs_own_tensors *own, int64_t step, gs_deadline deadline) {
    gs_reducer_note_step(own->reducer, step);
    return gs_comm_run(own->comm, &(gs_collective){.kind = GS_BARRIER, .step = -1, .bucket = -1},
                       deadline);
}

gs_status gs_own_tensors_deal(gs_own_deal *dealt, gs_own_tensors *own, gs_device_copy *copy,
                              int64_t step, gs_deadline deadline) {
    int world_size = gs_comm_world_size(own->comm);
    *dealt = (gs_own_deal){.to_world = world_size};
    if (!own->num_tensors && !own->source.claim.origin) return gs_ok();
    gs_share_claim *claims = calloc((size_t)world_size, sizeof *claims);
    gs_status status = claims ? check_names(own)
                              : gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
    if (status.code) gs_comm_let_go(own->comm, status.message);
    if (!status.code) status = gather(claims, own, deadline);
    gs_share_deal deal = {0};
    if (!status.code) {
        status = gs_share_deal_make(&deal, claims, world_size, step);
        if (status.code) gs_comm_let_go(own->comm, status.message);
    }
    dealing it = {.own = own,
                  .copy = copy,
                  .deal = &deal,
                  .deadline = deadline,
                  .rank = gs_comm_rank(own->comm)};
    if (!status.code) status = follow_deal(dealt, &it);
    if (!status.code) status = settle(own, step, deadline);
    gs_share_deal_release(&deal);
    free(claims);
    own->is_dealt = !status.code;
    if (own->is_dealt) gs_share_source_release(&own->source);
    return status;
}

static gs_status keep_share(gs_kept_shares *kept, const gs_own_tensors *own, gs_device_copy *copy,
                            int rank, int64_t step) {
    for (size_t i = 0; i < own->num_tensors; i++) {
        const gs_own_tensor *tensor = &own->tensors[i];
        void *to = gs_kept_shares_add(kept, rank, tensor->name, tensor->dtype, tensor->count);
        if (!to) return gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
        GS_TRY(gs_own_tensors_read(own, copy, i, rank, step, to));
    }
    return gs_ok();
}

// Who lives keeps its share itself. Of whoever died there is nothing but this, where it is reached
// at all.
static gs_status keep_shares_of_dead(gs_kept_shares *kept, const gs_own_tensors *own,
                                     gs_device_copy *copy, int64_t step) {
    gs_comm_failure failure;
    gs_comm_explain(own->comm, &failure);
    for (int rank = 0; rank < gs_comm_world_size(own->comm); rank++) {
        if (rank == gs_comm_rank(own->comm) || !gs_comm_failure_names(&failure, rank)) continue;
        gs_status status = keep_share(kept, own, copy, rank, step);
        if (status.code) gs_kept_shares_drop(kept, rank);
        if (status.code == GS_RESOURCE_EXHAUSTED) return status;
    }
    return gs_ok();
}

gs_status gs_own_tensors_detach(gs_own_tensors *own, gs_device_copy *copy, int64_t step) {
    gs_kept_shares *kept = NULL;
    gs_status status = gs_ok();
    bool keeps = own->is_dealt && own->num_tensors;
    if (keeps) status = gs_kept_shares_create(&kept, own->num_tensors);
    if (kept) status = keep_share(kept, own, copy, gs_comm_rank(own->comm), step);
    if (kept && !status.code) status = keep_shares_of_dead(kept, own, copy, step);
    if (kept && !status.code) {
        gs_share_source source = gs_kept_shares_source(kept, own->num_tensors);
        source.claim.origin = ORIGIN_GENERATION | gs_comm_generation(own->comm);
        source.claim.step = step;
        source.claim.world_size = gs_comm_world_size(own->comm);
        source.claim.rank = gs_comm_rank(own->comm);
        gs_own_tensors_give(own, &source);
    } else {
        gs_kept_shares_destroy(kept);
    }
    forget_list(own);
    return status;
}
