#include "worker/telemetry/link_balance.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "worker/telemetry/link_shares.h"
#include "worker/telemetry/link_timing.h"

_Static_assert(GS_LINK_MAX_SHARES == GS_LINK_MOST_HOSTS, "a host has one rank at least");

// By the rates: a trial costs some sums.
#define WORTH_A_TRIAL 1.15
// Of what the sum took before.
#define WORTH_IT 0.9
#define ROUNDS 3
#define MOST_WAITS 64
// Of all sums of a trial, behind the first of each kind.
#define MOST_SECONDS 5.0
// Of a collective's time, which one sum may be expected to take: rates are a guess.
#define MOST_OF_TIMEOUT 0.25

// What the ranks tell each other: of each rank the lowest one of its host, and what it sends each other one.
typedef struct told_rates {
    double host[GS_LINK_MOST_HOSTS];
    double rates[GS_LINK_MOST_HOSTS][GS_LINK_MOST_HOSTS];
} told_rates;

// Ranks of one host have no connection that counts.
static void tell_own(told_rates *out, const gs_comm *comm) {
    int rank = gs_comm_rank(comm), lowest = rank;
    for (int peer = 0; peer < gs_comm_world_size(comm); peer++) {
        gs_comm_link link = {0};
        if (peer == rank) continue;
        if (gs_comm_peer_link(comm, peer, &link))
            out->rates[rank][peer] = link.usual_bytes_per_sec;
        else if (peer < lowest)
            lowest = peer;
    }
    out->host[rank] = lowest;
}

// Hosts in the order of their lowest ranks; of the connections of two the slowest counts, in whichever direction.
static void gather_rates(gs_link_rates *out, int *host_of, const told_rates *told, int world_size) {
    *out = (gs_link_rates){0};
    for (int i = 0; i < world_size; i++) {
        int lowest = (int)told->host[i];
        host_of[i] = lowest < i ? host_of[lowest] : out->num_hosts++;
    }
    for (int i = 0; i < world_size; i++) {
        for (int k = 0; k < world_size; k++) {
            double rate = told->rates[i][k];
            int a = host_of[i], b = host_of[k];
            if (a == b || !(rate > 0) || (out->of[a][b] > 0 && out->of[a][b] <= rate)) continue;
            out->of[a][b] = out->of[b][a] = rate;
        }
    }
}

static int compare_rates(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

// The slowest way of the host that owns least, beside what is usual.
static void explain(gs_link_deal *deal, const gs_link_rates *rates, const int *host_of, const uint16_t *shares) {
    double known[GS_LINK_MOST_HOSTS * GS_LINK_MOST_HOSTS];
    size_t count = 0;
    int least = 0, other = -1;
    for (int i = 1; i < rates->num_hosts; i++)
        if (shares[i] < shares[least]) least = i;
    for (int i = 0; i < rates->num_hosts; i++) {
        double rate = rates->of[least][i];
        if (rate > 0 && (other < 0 || rate < rates->of[least][other])) other = i;
        for (int k = 0; k < i; k++)
            if (rates->of[i][k] > 0) known[count++] = rates->of[i][k];
    }
    if (other < 0) return;
    qsort(known, count, sizeof *known, compare_rates);
    deal->usual_bytes_per_second = known[count / 2];
    deal->slow_bytes_per_second = rates->of[least][other];
    for (int i = deal->num_ranks - 1; i >= 0; i--) {
        if (host_of[i] == (least < other ? least : other)) deal->from = i;
        if (host_of[i] == (least < other ? other : least)) deal->to = i;
    }
}

typedef struct guess {
    double gain;     // of the choice over what is in force, by the rates
    double seconds;  // that a byte takes by the worse of the two; 0: not known
} guess;

// Rank 0 chooses for all, and says so: a number that another machine makes of the same might differ in its last bit.
static gs_status choose(const gs_link_balance *balance, gs_link_deal *out, guess *expected, gs_comm *comm, double timeout_seconds) {
    int world_size = gs_comm_world_size(comm), host_of[GS_LINK_MOST_HOSTS];
    uint16_t chosen[GS_LINK_MOST_HOSTS], current[GS_LINK_MOST_HOSTS];
    double said[GS_LINK_MOST_HOSTS + 5] = {0};
    told_rates *told = calloc(1, sizeof *told);
    gs_link_rates *rates = malloc(sizeof *rates);
    gs_status status = told && rates ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
    if (!status.code) {
        tell_own(told, comm);
        status = gs_link_agree_on_most(comm, told->host, sizeof *told / sizeof(double), timeout_seconds);
    }
    *out = (gs_link_deal){.num_ranks = world_size};
    if (!status.code && gs_comm_rank(comm) == 0) {
        gather_rates(rates, host_of, told, world_size);
        gs_link_shares_choose(chosen, rates);
        for (int i = 0; i < world_size; i++) current[host_of[i]] = balance->shares[i];
        double seconds = gs_link_shares_seconds(chosen, rates), before = gs_link_shares_seconds(current, rates);
        explain(out, rates, host_of, chosen);
        for (int i = 0; i < world_size; i++) said[i] = chosen[host_of[i]];
        said[world_size] = seconds > 0 ? before / seconds : 1;
        said[world_size + 1] = out->slow_bytes_per_second;
        said[world_size + 2] = out->usual_bytes_per_second;
        said[world_size + 3] = out->from * GS_LINK_MOST_HOSTS + out->to;
        said[world_size + 4] = before > seconds ? before : seconds;
    }
    if (!status.code) status = gs_link_agree_on_most(comm, said, (size_t)world_size + 5, timeout_seconds);
    free(told);
    free(rates);
    for (int i = 0; i < world_size; i++) out->shares[i] = (uint16_t)said[i];
    *expected = (guess){said[world_size], said[world_size + 4]};
    out->slow_bytes_per_second = said[world_size + 1];
    out->usual_bytes_per_second = said[world_size + 2];
    out->from = (int)said[world_size + 3] / GS_LINK_MOST_HOSTS;
    out->to = (int)said[world_size + 3] % GS_LINK_MOST_HOSTS;
    return status;
}

// Both in turns; of each the quickest, which is the way and not who else had the machine. All hear the same times, and end alike.
static gs_status compare(const gs_link_balance *balance, gs_link_deal *deal, gs_comm *comm, size_t bytes, double timeout_seconds) {
    float *memory = calloc(1, bytes);
    gs_status status = memory ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "sums that are timed: out of memory");
    double total = 0;
    for (int i = 0; i < 2 * ROUNDS && !status.code && (i < 2 || total <= MOST_SECONDS); i++) {
        double seconds = 0, *quickest = i % 2 ? &deal->seconds : &deal->seconds_before;
        status = gs_comm_share(comm, i % 2 ? deal->shares : balance->shares);
        if (!status.code) status = gs_link_time_sum(&seconds, comm, memory, bytes, timeout_seconds);
        if (i < 2 || seconds < *quickest) *quickest = seconds;
        total += seconds;
    }
    free(memory);
    return status;
}

static bool are_equal(const uint16_t *shares, int count) {
    for (int i = 1; i < count; i++)
        if (shares[i] != shares[0]) return false;
    return true;
}

static void take(gs_link_balance *balance, const gs_link_deal *deal, const gs_comm *comm) {
    memcpy(balance->shares, deal->shares, sizeof balance->shares);
    balance->deal = *deal;
    if (are_equal(deal->shares, deal->num_ranks)) balance->deal.num_ranks = 0;
    balance->num_refused = 0;
    if (gs_comm_rank(comm) == 0)
        gs_log_info("shares of ranks", "rank=0 share_%d=%d share_%d=%d megabytes_per_second=%.1f usual=%.1f seconds=%.4f before=%.4f", deal->from,
                    deal->shares[deal->from], deal->to, deal->shares[deal->to], 1e-6 * deal->slow_bytes_per_second,
                    1e-6 * deal->usual_bytes_per_second, deal->seconds, deal->seconds_before);
}

// A trial that was no gain, or could not be.
static void wait_longer(gs_link_balance *balance) {
    balance->num_waits = 1 << balance->num_refused;
    if (balance->num_waits < MOST_WAITS) balance->num_refused++;
}

gs_status gs_link_balance_consider(gs_link_balance *balance, bool *changed, gs_comm *comm, size_t bytes, double timeout_seconds) {
    int world_size = gs_comm_world_size(comm);
    gs_link_deal deal;
    guess expected;
    *changed = false;
    if (world_size < 3 || world_size > GS_LINK_MAX_SHARES || !gs_comm_shares(comm)) return gs_ok();
    if (!balance->shares[0] && are_equal(balance->shares, world_size))
        for (int i = 0; i < world_size; i++) balance->shares[i] = 1;
    if (balance->num_waits > 0) {
        balance->num_waits--;
        return gs_ok();
    }
    GS_TRY(choose(balance, &deal, &expected, comm, timeout_seconds));
    if (!(expected.gain >= WORTH_A_TRIAL)) return gs_ok();
    double seconds = expected.seconds * (double)bytes;
    if (seconds > MOST_OF_TIMEOUT * timeout_seconds) {
        wait_longer(balance);
        if (gs_comm_rank(comm) == 0)
            gs_log_warn("shares of ranks are not tried", "rank=0 bytes=%zu expected_seconds=%.3f timeout_seconds=%.3f", bytes, seconds, timeout_seconds);
        return gs_ok();
    }
    GS_TRY(compare(balance, &deal, comm, bytes, timeout_seconds));
    *changed = deal.seconds <= WORTH_IT * deal.seconds_before;
    if (*changed) {
        take(balance, &deal, comm);
        return gs_ok();
    }
    wait_longer(balance);
    return gs_comm_share(comm, balance->shares);
}
