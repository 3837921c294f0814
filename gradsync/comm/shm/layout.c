#include "gradsync/comm/shm/layout.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "gradsync/comm/shm/segment.h"

#define SIZE(type)                                                                                 \
    { "sizeof(" #type ")", sizeof(type) }
#define OFFSET(type, member)                                                                       \
    { "offsetof(" #type ", " #member ")", offsetof(type, member) }
#define NUMBER(name)                                                                               \
    { #name, name }

// The first two say whether the others mean anything.
static const struct {
    const char *name;
    uint32_t value;
} facts[] = {
    {"byte order", 0x01020304},
    NUMBER(GS_SHM_PROTOCOL),
    SIZE(void *),
    SIZE(pthread_mutex_t),
    SIZE(cpu_set_t),
    SIZE(gs_status),
    NUMBER(GS_SHM_MAX_RANKS),
    NUMBER(GS_SHM_MAX_POSTED),
    NUMBER(GS_SHM_FLAT_SLOTS),
    NUMBER(GS_SHM_FLAT_BYTES),
    NUMBER(GS_SHM_CHUNK_SLOTS),
    NUMBER(GS_SHM_CHUNK_BYTES),
    SIZE(gs_shm_control),
    OFFSET(gs_shm_control, proof),
    OFFSET(gs_shm_control, has_left),
    OFFSET(gs_shm_control, lanes),
    SIZE(gs_shm_lane_block),
    OFFSET(gs_shm_lane_block, done),
    OFFSET(gs_shm_lane_block, chunks_in),
    OFFSET(gs_shm_lane_block, posts),
    OFFSET(gs_shm_lane_block, flat),
    OFFSET(gs_shm_lane_block, chunk_in),
    OFFSET(gs_shm_lane_block, chunk_out),
    SIZE(gs_shm_counter),
    SIZE(gs_shm_post),
    SIZE(gs_collective_claim),
    OFFSET(gs_shm_post, send_offset),
    SIZE(gs_shm_common),
    OFFSET(gs_shm_common, event),
    OFFSET(gs_shm_common, abort_state),
    OFFSET(gs_shm_common, abort_reason),
    OFFSET(gs_shm_common, lives),
    SIZE(gs_shm_life),
    OFFSET(gs_shm_common, abort_cause),
    OFFSET(gs_shm_cause, reporter),
};

#define NUM_FACTS (sizeof facts / sizeof *facts)

static_assert(NUM_FACTS <= GS_SHM_LAYOUT_FACTS, "a layout has room for all facts");
static_assert(sizeof(gs_shm_layout) == 192, "a layout has the same size in every build");

gs_shm_layout gs_shm_layout_here(void) {
    gs_shm_layout here = {.page_bytes = (uint32_t)sysconf(_SC_PAGESIZE)};
    for (size_t i = 0; i < NUM_FACTS; i++) here.facts[i] = facts[i].value;
    // 0: a library that does not say which it is.
    if (!confstr(_CS_GNU_LIBC_VERSION, here.libc, sizeof here.libc))
        snprintf(here.libc, sizeof here.libc, "unknown");
    return here;
}

bool gs_shm_layouts_differ(const gs_shm_layout *one, const gs_shm_layout *other, char *what,
                           size_t what_bytes) {
    for (size_t i = 0; i < GS_SHM_LAYOUT_FACTS; i++) {
        if (one->facts[i] == other->facts[i]) continue;
        snprintf(what, what_bytes, "%s is %u, not %u",
                 i < NUM_FACTS ? facts[i].name : "another fact", one->facts[i], other->facts[i]);
        return true;
    }
    if (one->page_bytes != other->page_bytes) {
        snprintf(what, what_bytes, "a page is %u bytes, not %u", one->page_bytes,
                 other->page_bytes);
        return true;
    }
    if (memcmp(one->libc, other->libc, sizeof one->libc) == 0) return false;
    snprintf(what, what_bytes, "the C library is %.*s, not %.*s", (int)sizeof one->libc, one->libc,
             (int)sizeof other->libc, other->libc);
    return true;
}
