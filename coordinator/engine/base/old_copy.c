#include "coordinator/engine/base/old_copy.h"

#include <string.h>

#include "coordinator/engine/base/generations.h"
#include "coordinator/engine/base/moves.h"
#include "core/clock.h"

#define MOST_AHEAD (64 * GS_GENERATION_LEAP)  // of a fence: more than any copy has come to by leaps
#define DOUBT_AGAIN_NS (60 * GS_NS_PER_SEC)

static gs_status say_old(const gs_engine *engine, const char *who, int64_t epoch) {
    const gs_cluster *cluster = &engine->state.cluster;
    return gs_error(GS_UNAVAILABLE,
                    "%s has seen coordinator epoch %lld of cluster %s, which this database (epoch %u) does not know: it is "
                    "an old copy",
                    who, (long long)epoch, cluster->id, cluster->epoch);
}

// The first number that was not given out here. A fence of later is found within milliseconds of a start, before a worker that was
// there all the while can say what it runs: its word counts as if numbers had not leapt, until one of them is given out.
static uint32_t first_unknown(const gs_engine *engine) {
    const gs_generation_numbers *numbers = &engine->state.generations;
    return numbers->leapt_from ? numbers->leapt_from : numbers->next;
}

static gs_status say_ahead(const gs_engine *engine, const gs_agent_hello *hello, const gs_running_trainer *running) {
    char job[GS_JOB_ID_LEN];
    gs_job_id_format(job, running->job);
    return gs_error(GS_UNAVAILABLE,
                    "%s runs generation %u of job %s of cluster %s, and this database has given out none above %u: it is an old "
                    "copy",
                    hello->worker, running->generation, job, engine->state.cluster.id, first_unknown(engine) - 1);
}

static gs_status say_going_down(void) { return gs_error(GS_UNAVAILABLE, "the coordinator is going down: its database is an old copy"); }

static gs_status end_with(gs_engine *engine, gs_status status) {
    gs_cluster *cluster = &engine->state.cluster;
    if (!cluster->is_old_copy)
        gs_note_add(engine, NULL, NULL, GS_SEVERITY_ERROR, "OldDatabase",
                    "%s; no trainer is started or ended from here, and this coordinator ends. Start it on the newer "
                    "data, or on an empty directory and adopt what runs",
                    status.message);
    cluster->is_old_copy = true;
    return status;
}

static gs_status end(gs_engine *engine, const char *who, int64_t epoch) {
    engine->state.cluster.later_epoch = (uint32_t)epoch;
    return end_with(engine, say_old(engine, who, epoch));
}

// It asks again and again, and others may say the same.
static gs_status doubt(gs_engine *engine, gs_status said) {
    gs_cluster *cluster = &engine->state.cluster;
    if (cluster->told_doubt_ns && engine->state.now_ns - cluster->told_doubt_ns < DOUBT_AGAIN_NS) return said;
    cluster->told_doubt_ns = engine->state.now_ns;
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_WARNING, "UnprovenLife",
                "%s; nothing that a coordinator with this one's key has given out shows it, so it is refused and this one goes on. If the "
                "data directory may be an old copy, stop it and start the newer one",
                said.message);
    return said;
}

gs_status gs_old_copy_ask_worker(gs_engine *engine, const gs_seen_life *seen, const char *worker) {
    const gs_cluster *cluster = &engine->state.cluster;
    bool is_older = gs_cluster_is_older(cluster, seen);
    if (is_older && seen->is_doubtful) return doubt(engine, say_old(engine, worker, seen->epoch));
    if (is_older) return end(engine, worker, seen->epoch);
    // Who has not seen a later life itself would be told what to end.
    if (cluster->is_old_copy) return say_going_down();
    return gs_ok();
}

static bool was_never_given_out(const gs_engine *engine, const char *cluster, uint32_t generation) {
    return cluster && strcmp(cluster, engine->state.cluster.id) == 0 && generation >= first_unknown(engine);
}

// What was deleted here may have been adopted with any number, and its row is gone.
static bool is_ahead(const gs_engine *engine, const gs_running_trainer *running) {
    return was_never_given_out(engine, running->cluster, running->generation) &&
           !gs_job_table_is_gone(&engine->state.jobs, running->job, true);
}

gs_status gs_old_copy_ask_stranger(const gs_engine *engine, const gs_trainer_hello *hello) {
    if (engine->state.cluster.is_old_copy) return say_going_down();
    if (!was_never_given_out(engine, hello->cluster, hello->backend_generation)) return gs_ok();
    return gs_error(GS_UNAVAILABLE, "this trainer is of generation %u of cluster %s, and this database has given out none above %u",
                    hello->backend_generation, engine->state.cluster.id, first_unknown(engine) - 1);
}

gs_status gs_old_copy_ask_running(gs_engine *engine, const gs_agent_hello *hello, bool shows_key) {
    for (size_t i = 0; i < hello->num_running; i++) {
        const gs_running_trainer *running = &hello->running[i];
        if (!is_ahead(engine, running)) continue;
        if (shows_key && hello->proven_end <= (int64_t)running->generation) return doubt(engine, say_ahead(engine, hello, running));
        engine->state.cluster.later_generation = running->generation;
        return end_with(engine, say_ahead(engine, hello, running));
    }
    return gs_ok();
}

// Whoever writes checkpoints can write that file, too.
static void tell_implausible(gs_engine *engine, gs_job *job, uint32_t left_by) {
    if (job->doubted_fence == left_by) return;
    job->doubted_fence = left_by;
    gs_note_add(engine, job, NULL, GS_SEVERITY_ERROR, "ImplausibleFence",
                "%s/%s/FENCE.json names generation %u of this cluster, and numbers are at %u here: so far ahead it is not believed, and "
                "keeps out the job's ranks. If this database is an old copy, start the newer one; else remove that file",
                engine->state.checkpoints_dir, job->id_text, left_by, engine->state.generations.next);
}

void gs_old_copy_note_fence(gs_engine *engine, gs_job *job, uint32_t left_by) {
    uint32_t next = engine->state.generations.next, least;
    if (left_by < next) return;
    if (left_by - next > MOST_AHEAD || !gs_generations_leap(engine, left_by, &least)) {
        tell_implausible(engine, job, left_by);
        return;
    }
    if (!engine->state.generations.leapt_from) engine->state.generations.leapt_from = next;
    gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "OtherDatabase",
                "generation %u of this cluster has trained in the job's checkpoint directory, and this database has given out "
                "none above %u: it is an old copy, or another coordinator runs on one; from here on they begin at %u",
                left_by, next - 1, least);
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
    if (seen->is_doubtful) return doubt(engine, say_old(engine, "a trainer", seen->epoch));
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
