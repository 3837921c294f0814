#include "coordinator/engine/base/old_copy.h"

#include "coordinator/engine/base/moves.h"

static gs_status say_old(const gs_engine *engine, const char *who, int64_t epoch) {
    const gs_cluster *cluster = &engine->state.cluster;
    return gs_error(GS_UNAVAILABLE,
                    "%s has seen coordinator epoch %lld of cluster %s, which this database (epoch %u) does not know: it is "
                    "an old copy",
                    who, (long long)epoch, cluster->id, cluster->epoch);
}

static gs_status end(gs_engine *engine, const char *who, int64_t epoch) {
    gs_cluster *cluster = &engine->state.cluster;
    const gs_status status = say_old(engine, who, epoch);
    if (!cluster->is_old_copy)
        gs_note_add(engine, NULL, NULL, GS_SEVERITY_ERROR, "OldDatabase",
                    "%s; no trainer is started or ended from here, and this coordinator ends. Start it on the newer "
                    "data, or on an empty directory and adopt what runs",
                    status.message);
    cluster->is_old_copy = true;
    cluster->later_epoch = (uint32_t)epoch;
    return status;
}

gs_status gs_old_copy_ask_worker(gs_engine *engine, const gs_seen_life *seen, const char *worker) {
    if (!gs_cluster_is_older(&engine->state.cluster, seen)) return gs_ok();
    return end(engine, worker, seen->epoch);
}

// The newest life of this database that a worker which is there is known to have seen: before this start, or this one,
// where it has stayed so long that others would have denied it.
static int64_t witnessed_epoch(const gs_engine *engine) {
    const gs_state *state = &engine->state;
    int64_t newest = 0;
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        if (!gs_agent_is_connected(agent)) continue;
        bool has_stayed = state->now_ns - agent->connected_ns >= state->timing.agent_grace_ns;
        int64_t epoch = has_stayed ? (int64_t)state->cluster.epoch : agent->seen_epoch;
        if (epoch > newest) newest = epoch;
    }
    return newest;
}

// Of this very life nobody has heard before: who came while the doubt was young is given the time to stay.
static bool has_witness_to_come(const gs_engine *engine) {
    const gs_state *state = &engine->state;
    if (state->cluster.doubted_epoch != (int64_t)state->cluster.epoch) return false;
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        bool has_stayed = state->now_ns - agent->connected_ns >= state->timing.agent_grace_ns;
        bool came_in_time = agent->connected_ns < state->cluster.doubted_ns + state->timing.grace_ns;
        if (gs_agent_is_connected(agent) && came_in_time && !has_stayed) return true;
    }
    return false;
}

gs_status gs_old_copy_ask_trainer(gs_engine *engine, const gs_seen_life *seen) {
    gs_cluster *cluster = &engine->state.cluster;
    if (!gs_cluster_is_older(cluster, seen)) return gs_ok();
    if (!cluster->is_old_copy && witnessed_epoch(engine) >= seen->epoch) {
        gs_note_add(engine, NULL, NULL, GS_SEVERITY_WARNING, "OtherDatabase",
                    "a trainer was welcomed by another coordinator on a copy of this database (epoch %lld); workers know "
                    "this one: the trainer is taken back",
                    (long long)seen->epoch);
        return gs_ok();
    }
    if (!cluster->doubted_ns) cluster->doubted_ns = engine->state.now_ns;
    if (seen->epoch > cluster->doubted_epoch) cluster->doubted_epoch = seen->epoch;
    return say_old(engine, "a trainer", seen->epoch);
}

void gs_old_copy_tick(gs_engine *engine) {
    gs_cluster *cluster = &engine->state.cluster;
    if (!cluster->doubted_ns || cluster->is_old_copy) return;
    bool is_denied = witnessed_epoch(engine) >= cluster->doubted_epoch;
    bool is_young = engine->state.now_ns - cluster->doubted_ns < engine->state.timing.grace_ns;
    if (!is_denied && (is_young || has_witness_to_come(engine))) return;
    if (!is_denied) (void)end(engine, "a trainer", cluster->doubted_epoch);
    cluster->doubted_ns = cluster->doubted_epoch = 0;
}

bool gs_old_copy_is_possible(const gs_engine *engine) {
    return engine->state.cluster.is_old_copy || engine->state.cluster.doubted_ns;
}
