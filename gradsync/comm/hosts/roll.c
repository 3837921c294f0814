#include "gradsync/comm/hosts/roll.h"

#include "core/clock.h"
#include "gradsync/comm/net/net.h"

#define PATIENCE_NS (50 * GS_NS_PER_MS)
// A busy machine may keep a rank from saying anything for a while.
#define LEAST_SILENCE_NS (500 * GS_NS_PER_MS)

static gs_net_presence presence_of(const gs_hosts_party *party, const gs_hosts_lane *lane,
                                   int rank) {
    return gs_net_was_here(party->all.state, rank, lane->number);
}

static uint32_t word_of(const gs_hosts_work *work) {
    return (uint32_t)(work->digest ^ work->digest >> 32);
}

// What most ranks mean; between equals, what the lowest does.
static uint32_t find_meant(const uint32_t *words, int count) {
    int most = 0;
    uint32_t meant = words[0];
    for (int i = 0; i < count; i++) {
        int equal = 0;
        for (int k = 0; k < count; k++) equal += words[k] == words[i];
        if (equal > most) most = equal, meant = words[i];
    }
    return meant;
}

gs_status gs_hosts_roll_say_mismatch(const gs_hosts_party *party, const gs_hosts_lane *lane,
                                     int culprit, int other) {
    const gs_hosts_work *work = gs_hosts_lane_first(lane);
    uint64_t sequence = gs_hosts_lane_finished(lane) + 1;
    char name[48], posted[104] = "nothing";
    gs_work_name(name, sizeof name, (gs_work){sequence, lane->number});
    if (work) {
        gs_collective_claim claim = gs_collective_claim_of(&work->collective, party->generation);
        gs_collective_claim_describe(posted, sizeof posted, &claim);
    }
    return gs_error(GS_FAILED_PRECONDITION, "%s: rank %d posted something else than rank %d; rank %d %s",
                    name, culprit, other, party->rank, posted);
}

static gs_status compare_words(const gs_hosts_party *party, const gs_hosts_lane *lane,
                               const gs_hosts_work *work, uint32_t own, gs_comm_failure *cause) {
    uint32_t words[GS_HOSTS_MOST_RANKS];
    uint64_t sequence = gs_hosts_lane_finished(lane) + 1;
    int world_size = party->topology.world_size, culprit = -1, other = -1;
    bool differ = false;
    for (int i = 0; i < world_size; i++) {
        gs_net_presence one = {.sequence = sequence, .word = own};
        if (i != party->rank) one = presence_of(party, lane, i);
        if (one.sequence != sequence) return gs_ok();
        words[i] = one.word;
        differ |= words[i] != own;
    }
    if (!differ) return gs_ok();
    uint32_t meant = find_meant(words, world_size);
    *cause = (gs_comm_failure){.kind = GS_COMM_FAILURE_MISMATCH,
                               .reporter = party->rank,
                               .lane = lane->number,
                               .sequence = sequence,
                               .step = work->collective.step,
                               .bucket = work->collective.bucket};
    for (int i = world_size - 1; i >= 0; i--) {
        if (words[i] == meant)
            other = i;
        else
            gs_comm_failure_accuse(cause, i), culprit = i;
    }
    return gs_hosts_roll_say_mismatch(party, lane, culprit, other);
}

gs_status gs_hosts_roll_call(gs_hosts_roll *roll, gs_hosts_party *party, gs_hosts_lane *lane,
                             int64_t now_ns, gs_comm_failure *cause) {
    const gs_hosts_work *work = gs_hosts_lane_first(lane);
    if (!work || now_ns - gs_hosts_lane_times(lane, gs_hosts_lane_finished(lane) + 1).posted_ns <
                     PATIENCE_NS)
        return gs_ok();
    int64_t *said_ns = &roll->said_ns[lane->number];
    if (now_ns - *said_ns < PATIENCE_NS) return gs_ok();
    *said_ns = now_ns;
    uint32_t own = word_of(work);
    gs_net_say_here(party->all.state, lane->number, gs_hosts_lane_finished(lane) + 1, own);
    return compare_words(party, lane, work, own, cause);
}

// For how long nothing was heard of a rank that would excuse it: it says that it is at this collective, or, since this rank
// has waited, that it is at one before, where it waits itself, for one that says nothing.
static int64_t silence_of(const gs_net_presence *one, uint64_t sequence, int64_t waited_ns, int64_t now_ns) {
    int64_t silent_ns = now_ns - one->heard_ns;
    return one->sequence >= sequence || silent_ns < waited_ns - PATIENCE_NS ? silent_ns : INT64_MAX;
}

// Where the wait was too short to be sure: one that is silent for far longer than all others; -1: there is none.
static int find_most_silent(const int64_t *silences, int world_size, int self) {
    int most = -1;
    int64_t next_ns = 0;
    for (int i = 0; i < world_size; i++) {
        if (i == self || (most >= 0 && silences[i] <= silences[most])) continue;
        most = i;
    }
    for (int i = 0; i < world_size; i++)
        if (i != self && i != most && silences[i] > next_ns) next_ns = silences[i];
    bool stands_out = most >= 0 && silences[most] >= 4 * PATIENCE_NS && silences[most] / 2 >= next_ns;
    return stands_out ? most : -1;
}

bool gs_hosts_roll_accuse_silent(const gs_hosts_roll *roll, const gs_hosts_party *party,
                                 const gs_hosts_lane *lane, int64_t waited_ns,
                                 gs_comm_failure *late) {
    int64_t silence_ns = waited_ns / 2 > LEAST_SILENCE_NS ? waited_ns / 2 : LEAST_SILENCE_NS;
    int64_t now_ns = gs_now_ns(), silences[GS_HOSTS_MOST_RANKS] = {0};
    uint64_t sequence = gs_hosts_lane_finished(lane) + 1;
    bool any = false;
    // Who has not asked does not know.
    if (!roll->said_ns[lane->number] || waited_ns < 2 * PATIENCE_NS) return false;
    for (int i = 0; i < party->topology.world_size; i++) {
        if (i == party->rank) continue;
        gs_net_presence one = presence_of(party, lane, i);
        silences[i] = silence_of(&one, sequence, waited_ns, now_ns);
        if (silences[i] < silence_ns) continue;
        gs_comm_failure_accuse(late, i);
        any = true;
    }
    int most = any ? -1 : find_most_silent(silences, party->topology.world_size, party->rank);
    if (most >= 0) gs_comm_failure_accuse(late, most);
    return any || most >= 0;
}

bool gs_hosts_roll_knows(const gs_hosts_party *party, const gs_hosts_lane *lane,
                         const gs_comm_failure *late) {
    uint64_t sequence = gs_hosts_lane_finished(lane) + 1;
    for (int i = 0; i < party->topology.world_size; i++) {
        if (gs_comm_failure_names(late, i) && presence_of(party, lane, i).sequence < sequence)
            return false;
    }
    return true;
}
