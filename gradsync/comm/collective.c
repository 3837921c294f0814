#include "gradsync/comm/collective.h"

#include <stdio.h>

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
