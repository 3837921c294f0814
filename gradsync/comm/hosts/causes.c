#include "gradsync/comm/hosts/causes.h"

#include <stdio.h>

#include "gradsync/comm/backends.h"

static const char *name_first(const gs_hosts_causes *causes, const gs_comm_failure *cause, char *name,
                              size_t name_bytes) {
    int lane = cause->lane >= 0 && cause->lane < causes->num_lanes ? cause->lane : 0;
    const gs_hosts_work *work = gs_hosts_lane_first(&causes->lanes[lane]);
    if (work)
        gs_collective_name(name, name_bytes, gs_hosts_lane_finished(&causes->lanes[lane]) + 1,
                           &work->collective);
    else
        snprintf(name, name_bytes, "generation %u", causes->party->generation);
    return name;
}

static int list_accused(const gs_hosts_causes *causes, const gs_comm_failure *cause, int *ranks) {
    int count = 0;
    for (int i = 0; i < causes->party->topology.world_size; i++)
        if (gs_comm_failure_names(cause, i)) ranks[count++] = i;
    return count;
}

// In numbers of the whole: lanes and sequences of a level are its own.
static void relate_numbers(const gs_hosts_causes *causes, const gs_hosts_level *level,
                           gs_comm_failure *cause) {
    if (level == &causes->party->host) cause->lane /= 2;
    bool is_lane = cause->lane >= 0 && cause->lane < causes->num_lanes;
    cause->sequence = is_lane ? gs_hosts_lane_finished(&causes->lanes[cause->lane]) + 1 : 0;
}

static gs_status say_mismatch(const gs_hosts_causes *causes, const gs_hosts_level *level,
                              const gs_comm_failure *cause) {
    int culprit = -1, other = -1;
    for (int i = level->world_size - 1; i >= 0; i--) {
        if (gs_comm_failure_names(cause, level->ranks[i]))
            culprit = level->ranks[i];
        else
            other = level->ranks[i];
    }
    int lane = cause->lane >= 0 && cause->lane < causes->num_lanes ? cause->lane : 0;
    return gs_hosts_roll_say_mismatch(causes->party, &causes->lanes[lane], culprit, other);
}

gs_status gs_hosts_causes_relate(const gs_hosts_causes *causes, const gs_hosts_level *level, gs_status status,
                                 gs_comm_failure *cause) {
    int accused[GS_HOSTS_MOST_RANKS], count;
    char name[64], text[128], members[128];
    if (level == &causes->party->all) return status;
    relate_numbers(causes, level, cause);
    count = list_accused(causes, cause, accused);
    name_first(causes, cause, name, sizeof name);
    gs_backends_list_ranks(text, sizeof text, accused, count);
    if (cause->kind == GS_COMM_FAILURE_PEER_LOST && count)
        return gs_error(GS_ABORTED, "%s: %s %s %s gone", name, count == 1 ? "rank" : "ranks", text,
                        count == 1 ? "is" : "are");
    if (cause->kind == GS_COMM_FAILURE_MISMATCH) return say_mismatch(causes, level, cause);
    // The level's own words count its ranks from 0.
    gs_backends_list_ranks(members, sizeof members, level->ranks, level->world_size);
    return gs_status_prefix(status, "among ranks %.40s, counted from 0", members);
}

static gs_status say_missing(const gs_hosts_causes *causes, const char *name, bool arrived, double seconds,
                          const gs_comm_failure *late) {
    int missing[GS_HOSTS_MOST_RANKS], count = list_accused(causes, late, missing);
    char text[128];
    if (!count)
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not finished within %.1f s", name, seconds);
    gs_backends_list_ranks(text, sizeof text, missing, count);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: %s %s did not %s within %.1f s", name,
                    count == 1 ? "rank" : "ranks", text, arrived ? "finish" : "arrive", seconds);
}

gs_status gs_hosts_causes_say_late(const gs_hosts_causes *causes, gs_hosts_lane *lane, int64_t waited_ns,
                                   gs_comm_failure *late) {
    const gs_hosts_work *work = gs_hosts_lane_first(lane);
    uint64_t number = gs_hosts_lane_finished(lane) + 1, sequence = 0;
    int inner = 0;
    char name[64];
    *late = (gs_comm_failure){.kind = GS_COMM_FAILURE_TIMEOUT,
                              .reporter = causes->party->rank,
                              .lane = lane->number,
                              .sequence = number,
                              .bucket = -1};
    gs_work_name(name, sizeof name, (gs_work){number, lane->number});
    if (!work)
        return gs_error(GS_DEADLINE_EXCEEDED, "%s: not begun within %.1f s", name,
                        gs_seconds_of(waited_ns));
    gs_collective_name(name, sizeof name, number, &work->collective);
    late->step = work->collective.step;
    late->bucket = work->collective.bucket;
    gs_hosts_level *level = gs_hosts_lane_awaited(lane, &inner, &sequence);
    if (work->is_composed &&
        gs_hosts_roll_accuse_silent(causes->roll, causes->party, lane, waited_ns, late)) {
        bool arrived = gs_hosts_roll_knows(causes->party, lane, late);
        return say_missing(causes, name, arrived, gs_seconds_of(waited_ns), late);
    }
    if (level) {
        gs_comm_failure inside;
        (void)level->backend->wait(level->state, inner, sequence, (gs_deadline){0}).code;
        gs_hosts_level_explain(level, &inside);
        for (int i = 0; i < causes->party->topology.world_size; i++)
            if (gs_comm_failure_names(&inside, i)) gs_comm_failure_accuse(late, i);
    }
    return say_missing(causes, name, work->is_composed, gs_seconds_of(waited_ns), late);
}

gs_status gs_hosts_causes_say_held_up(const gs_hosts_causes *causes, const gs_hosts_lane *lane, int64_t waited_ns,
                                      gs_comm_failure *late) {
    char name[64];
    gs_work work = {gs_hosts_lane_finished(lane) + 1, lane->number};
    gs_work_name(name, sizeof name, work);
    *late = (gs_comm_failure){.kind = GS_COMM_FAILURE_TIMEOUT,
                              .reporter = causes->party->rank,
                              .lane = lane->number,
                              .sequence = work.sequence,
                              .bucket = -1};
    gs_comm_failure_accuse(late, causes->party->rank);
    return gs_error(GS_DEADLINE_EXCEEDED, "%s: rank %d, which waits for %.1f s, is held up in what its own thread moves", name,
                    causes->party->rank, gs_seconds_of(waited_ns));
}
