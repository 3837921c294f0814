#include "gradsync/comm/collective.h"

#include <stdio.h>
#include <string.h>

#include "core/digest.h"

size_t gs_collective_num_parts(const gs_collective *collective, int world_size) {
    size_t num_inputs = 1;
    for (int i = 0; collective->tree && i < collective->tree->num_inputs; i++) {
        size_t part = (size_t)collective->tree->part[i];
        if (part + 1 > num_inputs) num_inputs = part + 1;
    }
    return collective->kind == GS_REDUCE_SCATTER ? num_inputs * (size_t)world_size : num_inputs;
}

void gs_collective_cast_to_wire(const gs_collective *collective, const gs_kernels *kernels,
                                gs_stream *stream, void *out, const void *in, size_t count) {
    gs_dtype wire = collective->wire_dtype;
    float scale = gs_collective_wire_scale(collective);
    bool after = collective->wire_scale_after && scale != 1;
    kernels->cast(stream, out, wire, in, collective->dtype, after ? 1 : scale, count);
    if (after) kernels->cast(stream, out, wire, out, wire, scale, count);
}

const char *gs_collective_kind_name(gs_collective_kind kind) {
    static const char *const names[] = {"nothing",    "all-reduce", "reduce", "reduce-scatter",
                                        "all-gather", "broadcast",  "barrier"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

void gs_work_name(char *text, size_t text_bytes, gs_work work) {
    int used = snprintf(text, text_bytes, "collective %llu", (unsigned long long)work.sequence);
    if (work.lane && (size_t)used < text_bytes)
        snprintf(text + used, text_bytes - (size_t)used, " of lane %d", work.lane);
}

void gs_collective_name(char *text, size_t text_bytes, uint64_t sequence,
                        const gs_collective *collective) {
    long long step = (long long)collective->step;
    char name[48];
    gs_work_name(name, sizeof name, (gs_work){sequence, collective->lane});
    if (collective->bucket >= 0 && collective->lane)
        snprintf(name, sizeof name, "bucket %d in lane %d", collective->bucket, collective->lane);
    else if (collective->bucket >= 0)
        snprintf(name, sizeof name, "bucket %d", collective->bucket);
    snprintf(text, text_bytes, "%s, step %lld", name, step);
}

static uint64_t digest_tree(const gs_reduce_tree *tree) {
    size_t count = (size_t)tree->num_inputs;
    uint64_t digest = gs_hash64(tree->rank, count * sizeof *tree->rank, count);
    digest = gs_hash64(tree->part, count * sizeof *tree->part, digest);
    return gs_hash64(tree->merges, count, digest);
}

gs_collective_claim gs_collective_claim_of(const gs_collective *collective, uint32_t generation) {
    bool reduces = gs_collective_reduces(collective);
    bool has_root = collective->kind == GS_REDUCE || collective->kind == GS_BROADCAST;
    return (gs_collective_claim){
        .step = collective->step,
        .count = collective->count,
        .tree_digest = collective->tree ? digest_tree(collective->tree) : 0,
        .scale = reduces && collective->scale != 0 ? collective->scale : 1,
        .bucket = collective->bucket,
        .num_active = collective->num_active,
        .generation = generation,
        .kind = (uint8_t)collective->kind,
        .dtype = (uint8_t)collective->dtype,
        .op = reduces ? (uint8_t)collective->op : 0,
        .root = has_root ? (uint8_t)collective->root : 0,
        .wire_dtype = (uint8_t)collective->wire_dtype,
        .wire_scale = collective->wire_dtype ? gs_collective_wire_scale(collective) : 0,
        .wire_scale_after = collective->wire_dtype && collective->wire_scale_after};
}

void gs_collective_claim_describe(char *text, size_t text_bytes, const gs_collective_claim *claim) {
    static const char *const ops[] = {"sum", "max", "min"};
    const char *kind = gs_collective_kind_name((gs_collective_kind)claim->kind);
    int used = snprintf(text, text_bytes, "%s", kind);
    size_t at = (size_t)used;
    if (claim->kind != GS_BARRIER)
        at += (size_t)snprintf(text + at, text_bytes - at, " %s %llu x %s root %d",
                               claim->op < 3 ? ops[claim->op] : "unknown",
                               (unsigned long long)claim->count,
                               gs_dtype_name((gs_dtype)claim->dtype), claim->root);
    if (claim->scale != 1 && at < text_bytes)
        at += (size_t)snprintf(text + at, text_bytes - at, " scale %g", claim->scale);
    if (claim->wire_dtype && at < text_bytes)
        at +=
            (size_t)snprintf(text + at, text_bytes - at, " sent as %s x %g%s",
                             gs_dtype_name((gs_dtype)claim->wire_dtype), (double)claim->wire_scale,
                             claim->wire_scale_after ? " after it" : "");
    if (claim->tree_digest && at < text_bytes)
        at += (size_t)snprintf(text + at, text_bytes - at, " tree %04x",
                               (unsigned)(claim->tree_digest & 0xffff));
    if (claim->shares && at < text_bytes)
        at += (size_t)snprintf(text + at, text_bytes - at, " in shares %04x", claim->shares);
    if (claim->num_active && at < text_bytes)
        at += (size_t)snprintf(text + at, text_bytes - at, " with %d active", claim->num_active);
    if (at < text_bytes)
        snprintf(text + at, text_bytes - at, " of bucket %d, step %lld, generation %u",
                 claim->bucket, (long long)claim->step, claim->generation);
}

int gs_collective_claims_find_meant(const gs_collective_claim *const *claims, int num_claims) {
    int meant = 0, most = 0;
    for (int i = 0; i < num_claims; i++) {
        int num_equal = 0;
        for (int k = 0; k < num_claims; k++)
            num_equal += memcmp(claims[i], claims[k], sizeof *claims[i]) == 0;
        if (num_equal > most) {
            most = num_equal;
            meant = i;
        }
    }
    return meant;
}
