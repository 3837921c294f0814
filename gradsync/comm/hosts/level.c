#include "gradsync/comm/hosts/level.h"

#include <stdio.h>
#include <string.h>

#include "core/digest.h"
#include "gradsync/comm/net/net.h"

// Told apart from those of other communicators of a generation, whatever these are called.
static void name_level(char *group, size_t group_bytes, const char *whole, char kind, int first) {
    uint64_t digest = gs_hash64(whole, strlen(whole), 0);
    snprintf(group, group_bytes, "hosts-%08x/%c%d", (unsigned)digest, kind, first);
}

gs_status gs_hosts_level_open(gs_hosts_level *level, const gs_comm_backend *backend, char kind,
                              const int *members, int num_members, const gs_comm_options *options,
                              int num_lanes, gs_arena *arena, gs_deadline deadline) {
    int world_ranks[GS_HOSTS_MOST_RANKS];
    char group[40], reason[192];
    gs_comm_options inner = *options;
    gs_stages stages;
    *level = (gs_hosts_level){.world_size = num_members};
    for (int i = 0; i < num_members; i++) {
        level->ranks[i] = members[i];
        world_ranks[i] = options->ranks ? options->ranks[members[i]] : members[i];
        if (members[i] == options->rank) level->rank = i;
    }
    name_level(group, sizeof group, options->group ? options->group : "", kind, world_ranks[0]);
    inner.rank = level->rank;
    inner.world_size = num_members;
    inner.ranks = world_ranks;
    inner.ranks_on_host = 0;
    inner.group = group;
    inner.num_lanes = num_lanes;
    inner.arena = arena;
    inner.helper = GS_HELPER_OFF;
    inner.interrupt = NULL;  // whoever waits here asks by itself
    gs_stages_init(&stages, &inner, deadline);
    gs_status mine =
        backend->create(&level->state, &inner, &stages, reason, sizeof reason, deadline);
    gs_status status = gs_stages_settle(&stages, backend->name, mine);
    if (status.code && !mine.code) backend->destroy(level->state);
    if (!status.code) level->backend = backend;
    gs_stages_release(&stages);
    return status;
}

gs_status gs_hosts_level_open_whole(gs_hosts_level *level, const gs_comm_backend *backend,
                                    const gs_comm_options *options, gs_stages *stages,
                                    gs_deadline deadline) {
    char reason[192];
    gs_comm_options inner = *options;
    *level = (gs_hosts_level){.world_size = options->world_size, .rank = options->rank};
    for (int i = 0; i < options->world_size; i++) level->ranks[i] = i;
    inner.arena = NULL;
    inner.interrupt = NULL;
    GS_TRY(backend->create(&level->state, &inner, stages, reason, sizeof reason, deadline));
    level->backend = backend;
    return gs_ok();
}

void gs_hosts_level_close(gs_hosts_level *level) {
    if (level->backend) level->backend->destroy(level->state);
    level->backend = NULL;
}

gs_status gs_hosts_level_post(gs_hosts_level *level, int lane, const gs_collective *collective) {
    gs_collective inner = *collective;
    inner.lane = lane;
    uint64_t sequence = ++level->posted[lane];
    return level->backend ? level->backend->post(level->state, lane, sequence, &inner) : gs_ok();
}

gs_status gs_hosts_level_share(gs_hosts_level *level, const uint16_t *shares) {
    uint16_t own[GS_HOSTS_MOST_RANKS];
    uint32_t whole = 0;
    if (!level->backend || shares == level->shares) return gs_ok();
    for (int i = 0; i < level->world_size; i++)
        whole += own[i] = shares ? shares[level->ranks[i]] : 1;
    // Of a column whose ranks have nothing somebody has to.
    for (int i = 0; i < level->world_size && !whole; i++) own[i] = 1;
    GS_TRY(gs_net_share(level->state, own));
    level->shares = shares;
    return gs_ok();
}

gs_status gs_hosts_level_progress(gs_hosts_level *level) {
    return level->backend ? level->backend->post(level->state, 0, 0, NULL) : gs_ok();
}

void gs_hosts_level_explain(gs_hosts_level *level, gs_comm_failure *out) {
    gs_comm_failure inner = {.reporter = -1, .bucket = -1};
    if (level->backend) level->backend->explain(level->state, &inner);
    *out = inner;
    memset(out->accused, 0, sizeof out->accused);
    for (int i = 0; i < level->world_size; i++) {
        if (gs_comm_failure_names(&inner, i)) gs_comm_failure_accuse(out, level->ranks[i]);
    }
    bool is_known = inner.reporter >= 0 && inner.reporter < level->world_size;
    out->reporter = is_known ? level->ranks[inner.reporter] : -1;
}

void gs_hosts_level_abort(gs_hosts_level *level, const char *reason) {
    if (level->backend) level->backend->abort(level->state, reason);
}

gs_status gs_hosts_level_await_stillness(gs_hosts_level *level, gs_deadline deadline) {
    for (int i = 0; level->backend && i < GS_HOSTS_LEVEL_LANES; i++) {
        if (!level->posted[i]) continue;
        gs_status ended = level->backend->wait(level->state, i, level->posted[i], deadline);
        if (ended.code == GS_DEADLINE_EXCEEDED) return ended;
    }
    return gs_ok();
}
