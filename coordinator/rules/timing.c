#include "coordinator/rules/timing.h"

#include "core/clock.h"

// Of all agents and members together.
#define HEARTBEATS_PER_SEC 5000
#define REPORTS_PER_SEC 5000
#define MOST_CONNECTIONS 65536  // of a server (rpc/server/rpc_peers.c)

const gs_timing gs_timing_default = {
    .tick_ns = 20 * GS_NS_PER_MS,
    .heartbeat_ns = 100 * GS_NS_PER_MS,
    .report_ns = 100 * GS_NS_PER_MS,
    .suspect_ns = 400 * GS_NS_PER_MS,
    .dead_ns = 1500 * GS_NS_PER_MS,
    .hang_least_ns = 5 * GS_NS_PER_SEC,
    .hang_first_ns = 60 * GS_NS_PER_SEC,
    .hello_ns = 120 * GS_NS_PER_SEC,
    .prepare_ns = 60 * GS_NS_PER_SEC,
    .connect_ns = 60 * GS_NS_PER_SEC,
    .settle_ns = 2 * GS_NS_PER_SEC,
    .leave_ns = 10 * GS_NS_PER_SEC,
    .save_ns = 300 * GS_NS_PER_SEC,
    .drain_ns = 30 * GS_NS_PER_SEC,
    .grace_ns = 3 * GS_NS_PER_SEC,
    .agent_grace_ns = 15 * GS_NS_PER_SEC,
    .agent_dead_ns = 3 * GS_NS_PER_SEC,
    .absent_ns = 30 * GS_NS_PER_SEC,
    .longest_pace_ns = MOST_CONNECTIONS * (GS_NS_PER_SEC / GS_PINGS_PER_SEC),
    .orphan_ns = 600 * GS_NS_PER_SEC,
    .tell_place_ns = 5 * GS_NS_PER_SEC,
    .disk_away_ns = 10 * GS_NS_PER_SEC,
    .flush_ns = 150 * GS_NS_PER_MS,
    .series_keep_ns = 300 * GS_NS_PER_SEC,
    .ranks_a_tick = 2048,
};

size_t gs_timing_turns(const gs_timing *timing, size_t num_members) {
    return timing->ranks_a_tick ? num_members / timing->ranks_a_tick + 1 : 1;
}

static int64_t at_least(int64_t least_ns, int64_t ns) { return ns > least_ns ? ns : least_ns; }

gs_cadence gs_timing_cadence(const gs_timing *timing, size_t num_agents, size_t num_members) {
    int64_t members = (int64_t)num_members, heard = (int64_t)num_agents + members;
    return (gs_cadence){.heartbeat_ns = at_least(timing->heartbeat_ns, heard * (GS_NS_PER_SEC / HEARTBEATS_PER_SEC)),
                        .report_ns = at_least(timing->report_ns, members * (GS_NS_PER_SEC / REPORTS_PER_SEC))};
}

int64_t gs_cadence_progress_ns(gs_cadence cadence) { return at_least(GS_NS_PER_SEC, 2 * cadence.report_ns); }

int64_t gs_timing_pace(size_t num_connections) {
    if (num_connections <= GS_PINGS_PER_SEC) return 0;
    return (int64_t)num_connections * (GS_NS_PER_SEC / GS_PINGS_PER_SEC);
}

static bool is_apart(int64_t told_ns, int64_t wanted_ns) {
    return 4 * told_ns > 5 * wanted_ns || 4 * wanted_ns > 5 * told_ns;
}

bool gs_cadence_differs(gs_cadence told, gs_cadence wanted) {
    return is_apart(told.heartbeat_ns, wanted.heartbeat_ns) || is_apart(told.report_ns, wanted.report_ns);
}

gs_status gs_timing_check(const gs_timing *timing) {
    const struct {
        const char *name;
        int64_t ns;
    } chain[] = {
        {"4 * heartbeat", 4 * timing->heartbeat_ns},
        {"suspect", timing->suspect_ns},
        {"dead", timing->dead_ns},
        {"settle", timing->settle_ns},
        {"grace", timing->grace_ns},
        {"hang_least", timing->hang_least_ns},
        {"leave", timing->leave_ns},
        {"agent_grace", timing->agent_grace_ns},
        {"connect", timing->connect_ns},
        {"hello", timing->hello_ns},
        {"save", timing->save_ns},
    };
    for (size_t i = 0; i + 1 < sizeof chain / sizeof chain[0]; i++) {
        if (chain[i].ns <= chain[i + 1].ns) continue;
        return gs_error(GS_INVALID_ARGUMENT, "timing: %s (%lld ms) must not be above %s (%lld ms)",
                        chain[i].name, (long long)(chain[i].ns / GS_NS_PER_MS), chain[i + 1].name,
                        (long long)(chain[i + 1].ns / GS_NS_PER_MS));
    }
    return gs_ok();
}
