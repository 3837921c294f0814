#include "gradsync/comm/comm_backend.h"

#include <stdint.h>
#include <string.h>

#include "core/memory.h"

gs_status gs_comm_backend_check(const gs_comm_backend *backend) {
    size_t name_len = backend->name ? strlen(backend->name) : 0;
    if (name_len < 1 || name_len > GS_COMM_BACKEND_NAME_LEN)
        return gs_error(GS_INVALID_ARGUMENT, "a backend of one's own needs a name of 1 to %d characters",
                        GS_COMM_BACKEND_NAME_LEN);
    const struct {
        const char *name;
        bool filled;
    } slots[] = {{"create", backend->create},       {"post", backend->post},
                 {"wait", backend->wait},           {"abort", backend->abort},
                 {"destroy", backend->destroy},     {"finished", backend->finished},
                 {"times", backend->times},         {"algorithm", backend->algorithm},
                 {"explain", backend->explain},     {"wait_ended", backend->wait_ended}};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        if (!slots[i].filled)
            return gs_error(GS_INVALID_ARGUMENT, "backend %s lacks %s", backend->name,
                            slots[i].name);
    }
    return gs_ok();
}

static bool may_scale(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

static gs_status check_numbers(const gs_collective_site *site, const gs_collective *collective) {
    bool has_root = collective->kind == GS_REDUCE || collective->kind == GS_BROADCAST;
    size_t bytes;
    if (collective->lane < 0 || collective->lane >= site->num_lanes)
        return gs_error(GS_INVALID_ARGUMENT, "lane %d of a communicator with %d", collective->lane,
                        site->num_lanes);
    if (collective->kind <= GS_COLLECTIVE_UNSET || collective->kind > GS_BARRIER)
        return gs_error(GS_INVALID_ARGUMENT, "collective of unknown kind %d", collective->kind);
    if (collective->kind == GS_BARRIER) return gs_ok();
    if (gs_dtype_bytes(collective->dtype) == 0)
        return gs_error(GS_INVALID_ARGUMENT, "collective of unknown dtype %d", collective->dtype);
    if ((uintptr_t)collective->send % gs_dtype_bytes(collective->dtype) ||
        (uintptr_t)collective->recv % gs_dtype_bytes(collective->dtype))
        return gs_error(GS_INVALID_ARGUMENT, "buffer does not lie on a boundary of %s",
                        gs_dtype_name(collective->dtype));
    if (!gs_bytes_of(&bytes, collective->count, gs_dtype_bytes(collective->dtype)) ||
        !gs_bytes_of(&bytes, bytes, (size_t)site->world_size))
        return gs_error(GS_INVALID_ARGUMENT, "count %zu is too large", collective->count);
    if (has_root && (collective->root < 0 || collective->root >= site->world_size))
        return gs_error(GS_INVALID_ARGUMENT, "root %d is no rank of %d", collective->root,
                        site->world_size);
    if (!gs_collective_reduces(collective)) return gs_ok();
    if (collective->op < GS_OP_SUM || collective->op > GS_OP_MIN)
        return gs_error(GS_INVALID_ARGUMENT, "reduction by unknown op %d", collective->op);
    if (collective->dtype == GS_U8)
        return gs_error(GS_INVALID_ARGUMENT, "dtype u8 cannot be reduced");
    if (collective->scale != 0 && collective->scale != 1 && !may_scale(collective->dtype))
        return gs_error(GS_INVALID_ARGUMENT, "dtype %s cannot be scaled",
                        gs_dtype_name(collective->dtype));
    return gs_ok();
}

static gs_status check_wire(const gs_collective_site *site, const gs_collective *collective) {
    static const char *const ops[] = {"sum", "max", "min"};
    gs_dtype wire = collective->wire_dtype;
    if (!wire && collective->wire_scale != 0 && collective->wire_scale != 1)
        return gs_error(GS_INVALID_ARGUMENT, "a wire scale of %g, but no wire dtype",
                        (double)collective->wire_scale);
    if (!wire && collective->wire_scale_after)
        return gs_error(GS_INVALID_ARGUMENT, "a wire scale after the cast, but no wire dtype");
    if (!wire) return gs_ok();
    if (wire != GS_FP16 && wire != GS_BF16)
        return gs_error(GS_INVALID_ARGUMENT, "wire dtype %s has not 16 bits", gs_dtype_name(wire));
    if (collective->tree)
        return gs_error(GS_INVALID_ARGUMENT, "a wire dtype is for plain sums, not along a tree");
    if (!gs_collective_reduces(collective) || collective->op != GS_OP_SUM ||
        (collective->dtype != GS_FP32 && collective->dtype != GS_FP64))
        return gs_error(GS_INVALID_ARGUMENT,
                        "a wire dtype is for sums of fp32 or fp64, not for %s of %s",
                        gs_collective_reduces(collective)
                            ? ops[collective->op]
                            : gs_collective_kind_name(collective->kind),
                        gs_dtype_name(collective->dtype));
    if (site->backend->wire == GS_WIRE_REFUSED)
        return gs_error(GS_UNIMPLEMENTED, "backend %s has no wire dtypes", site->backend->name);
    if (site->backend->wire != GS_WIRE_COPY || !collective->count) return gs_ok();
    if (!collective->wire || (uintptr_t)collective->wire % gs_dtype_bytes(wire))
        return gs_error(GS_INVALID_ARGUMENT, "backend %s needs memory for what it sends as %s",
                        site->backend->name, gs_dtype_name(wire));
    return gs_ok();
}

static gs_status check_tree(const gs_collective_site *site, const gs_collective *collective) {
    const gs_reduce_tree *tree = collective->tree;
    if (!gs_collective_reduces(collective))
        return gs_error(GS_INVALID_ARGUMENT, "a tree is for what reduces, not for %s",
                        gs_collective_kind_name(collective->kind));
    if (tree->num_inputs < 1 || tree->num_inputs > GS_REDUCE_MAX_INPUTS)
        return gs_error(GS_INVALID_ARGUMENT, "tree of %d inputs, at most %d", tree->num_inputs,
                        GS_REDUCE_MAX_INPUTS);
    int depth = 0;
    for (int i = 0; i < tree->num_inputs; i++) {
        if (tree->rank[i] < 0 || tree->rank[i] >= site->world_size)
            return gs_error(GS_INVALID_ARGUMENT, "tree input %d is of rank %d of %d", i,
                            tree->rank[i], site->world_size);
        if (tree->part[i] < 0 || tree->part[i] >= GS_REDUCE_MAX_INPUTS)
            return gs_error(GS_INVALID_ARGUMENT, "tree input %d is part %d", i, tree->part[i]);
        depth += 1 - tree->merges[i];
        if (depth < 1) return gs_error(GS_INVALID_ARGUMENT, "tree merges too much at input %d", i);
    }
    if (depth != 1) return gs_error(GS_INVALID_ARGUMENT, "tree leaves %d sums", depth);
    return gs_ok();
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t a_first = (uintptr_t)a, b_first = (uintptr_t)b;
    return a && b && a_bytes && b_bytes && a_first < b_first + b_bytes &&
           b_first < a_first + a_bytes;
}

static gs_status check_tree_buffers(const gs_collective_site *site, const gs_collective *collective,
                                    size_t bytes, bool receives) {
    bool scatters = collective->kind == GS_REDUCE_SCATTER;
    size_t input_bytes = scatters ? bytes * (size_t)site->world_size : bytes;
    size_t own = scatters ? bytes * (size_t)site->rank : 0;
    for (int i = 0; i < collective->tree->num_inputs; i++) {
        if (collective->tree->rank[i] != site->rank) continue;
        if (!collective->send) return gs_error(GS_INVALID_ARGUMENT, "send buffer is missing");
        size_t part = (size_t)collective->tree->part[i], offset, end;
        if (!gs_bytes_of(&offset, part, collective->part_stride_bytes) ||
            __builtin_add_overflow(offset, input_bytes, &end) ||
            __builtin_add_overflow((uintptr_t)collective->send, end, &end) ||
            offset % gs_dtype_bytes(collective->dtype))
            return gs_error(GS_INVALID_ARGUMENT, "part %zu of stride %zu bytes lies nowhere", part,
                            collective->part_stride_bytes);
        const unsigned char *at = (const unsigned char *)collective->send + offset;
        if (receives && overlap(at, input_bytes, collective->recv, bytes) &&
            (part != 0 || at + own != collective->recv))
            return gs_error(GS_INVALID_ARGUMENT, "receive buffer overlaps part %zu", part);
    }
    return gs_ok();
}

// In place is where a rank's own result goes over its own input, byte by byte; any other overlap
// would be overwritten before others have read it.
static gs_status check_buffers(const gs_collective_site *site, const gs_collective *collective) {
    size_t bytes = collective->count * gs_dtype_bytes(collective->dtype);
    size_t all_bytes = bytes * (size_t)site->world_size, own = bytes * (size_t)site->rank;
    if (collective->kind == GS_BARRIER || bytes == 0) return gs_ok();
    bool is_root = collective->root == site->rank;
    bool sends = collective->kind != GS_BROADCAST || is_root;
    bool receives = collective->kind != GS_REDUCE || is_root;
    if (receives && !collective->recv)
        return gs_error(GS_INVALID_ARGUMENT, "receive buffer is missing");
    if (collective->tree) return check_tree_buffers(site, collective, bytes, receives);
    if (sends && !collective->send) return gs_error(GS_INVALID_ARGUMENT, "send buffer is missing");
    size_t num_parts = gs_collective_num_parts(collective, site->world_size);
    size_t send_bytes = num_parts * bytes;
    size_t wire_bytes = num_parts * gs_collective_sent_bytes(collective);
    if (site->backend->wire == GS_WIRE_COPY && collective->wire_dtype &&
        (overlap(collective->wire, wire_bytes, collective->send, send_bytes) ||
         overlap(collective->wire, wire_bytes, collective->recv, receives ? bytes : 0)))
        return gs_error(GS_INVALID_ARGUMENT, "memory for what is sent overlaps a buffer");
    if (!sends || !receives) return gs_ok();
    const unsigned char *send = collective->send, *recv = collective->recv;
    size_t recv_bytes = collective->kind == GS_ALLGATHER ? all_bytes : bytes;
    if (!overlap(send, send_bytes, recv, recv_bytes)) return gs_ok();
    if (collective->kind == GS_REDUCE_SCATTER && recv == send + own) return gs_ok();
    if (collective->kind == GS_ALLGATHER && send == recv + own) return gs_ok();
    if (send_bytes == recv_bytes && send == recv) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "send and receive buffers overlap, but not in place");
}

gs_status gs_collective_check(const gs_collective *collective, const gs_collective_site *site) {
    GS_TRY(check_numbers(site, collective));
    GS_TRY(check_wire(site, collective));
    if (collective->tree) GS_TRY(check_tree(site, collective));
    return check_buffers(site, collective);
}
