#include "worker/telemetry/link_shares.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SLOW 0.5
// What is not a fiftieth better is not another.
#define LEAST_GAIN 1.02
#define FIRST_MOVE 0.25
#define LEAST_MOVE (0.1 / GS_LINK_WHOLE)

// What shares are chosen by. Of a sum of 1 byte, a pair carries what each of the two sends the other's slice and gets of it:
// share + share, each way. A host sends its inputs to all other owners, and its result to all other hosts: 1 + (N − 2) · share.
typedef struct problem {
    int num_hosts;
    const gs_link_rates *rates;
    bool is_slow[GS_LINK_MOST_HOSTS][GS_LINK_MOST_HOSTS];
    double host_rates[GS_LINK_MOST_HOSTS];  // of all connections of one together
} problem;

static int compare_rates(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

// Of those that are known, the upper one of two; 0: none is.
static double median_of(const gs_link_rates *rates, int host) {
    double known[GS_LINK_MOST_HOSTS];
    size_t count = 0;
    for (int i = 0; i < rates->num_hosts; i++)
        if (i != host && rates->of[host][i] > 0) known[count++] = rates->of[host][i];
    qsort(known, count, sizeof *known, compare_rates);
    return count ? known[count / 2] : 0;
}

static bool is_below(const gs_link_rates *rates, int a, int b, double median_a, double median_b) {
    double usual = median_a < median_b ? median_a : median_b;
    return rates->of[a][b] > 0 && rates->of[a][b] < SLOW * usual;
}

bool gs_link_pair_is_slow(const gs_link_rates *rates, int a, int b) {
    return a != b && is_below(rates, a, b, median_of(rates, a), median_of(rates, b));
}

// False: nothing is known of some host.
static bool pose(problem *out, const gs_link_rates *rates) {
    double medians[GS_LINK_MOST_HOSTS];
    *out = (problem){.num_hosts = rates->num_hosts, .rates = rates};
    for (int i = 0; i < rates->num_hosts; i++) {
        medians[i] = median_of(rates, i);
        if (!(medians[i] > 0)) return false;
        out->host_rates[i] = medians[i] * (rates->num_hosts - 1);
    }
    for (int a = 0; a < rates->num_hosts; a++)
        for (int b = 0; b < rates->num_hosts; b++)
            out->is_slow[a][b] = a != b && is_below(rates, a, b, medians[a], medians[b]);
    return true;
}

static double host_seconds(const problem *known, const double *shares, int host) {
    return (1 + (known->num_hosts - 2) * shares[host]) / known->host_rates[host];
}

static double pair_seconds(const problem *known, const double *shares, int a, int b) {
    return (shares[a] + shares[b]) / known->rates->of[a][b];
}

// How long a byte takes: as long as what takes longest of it.
static double longest(const problem *known, const double *shares) {
    double most = 0;
    for (int a = 0; a < known->num_hosts; a++) {
        double seconds = host_seconds(known, shares, a);
        for (int b = 0; b < a; b++) {
            double between = known->is_slow[a][b] ? pair_seconds(known, shares, a, b) : 0;
            if (between > seconds) seconds = between;
        }
        if (seconds > most) most = seconds;
    }
    return most;
}

// 32nd power: of it a sum is smooth, and as good as its largest member. No library function, whose last bit may differ.
static double raise(double value) {
    for (int i = 0; i < 5; i++) value *= value;
    return value;
}

// The sum of powers, and by how much each share raises it (up to a factor); `unit` is of the size of the largest.
static double weigh(const problem *known, const double *shares, double unit, double *slopes) {
    double total = 0;
    for (int a = 0; a < known->num_hosts; a++) {
        double seconds = host_seconds(known, shares, a), power = raise(seconds / unit);
        slopes[a] = power / seconds * (known->num_hosts - 2) / known->host_rates[a];
        total += power;
    }
    for (int a = 0; a < known->num_hosts; a++) {
        for (int b = 0; b < a; b++) {
            if (!known->is_slow[a][b]) continue;
            double seconds = pair_seconds(known, shares, a, b), power = raise(seconds / unit);
            double slope = seconds > 0 ? power / seconds / known->rates->of[a][b] : 0;
            slopes[a] += slope;
            slopes[b] += slope;
            total += power;
        }
    }
    return total;
}

// From the share that costs most to the one that costs least, in smaller and smaller steps: the sum is convex, so that ends at
// the best. False: nothing was gained by a step of this size.
static bool move_share(const problem *known, double *shares, double move) {
    double slopes[GS_LINK_MOST_HOSTS], ignored[GS_LINK_MOST_HOSTS], unit = longest(known, shares);
    double before = weigh(known, shares, unit, slopes);
    int from = -1, to = -1;
    for (int i = 0; i < known->num_hosts; i++) {
        if (shares[i] >= move && (from < 0 || slopes[i] > slopes[from])) from = i;
        if (to < 0 || slopes[i] < slopes[to]) to = i;
    }
    if (from < 0 || from == to) return false;
    shares[from] -= move;
    shares[to] += move;
    if (weigh(known, shares, unit, ignored) < before) return true;
    shares[from] += move;
    shares[to] -= move;
    return false;
}

// Whole thousandths, of which none is lost: what is left over goes to those that lost most by rounding.
static void round_shares(uint16_t *out, const double *shares, int num_hosts) {
    double lost[GS_LINK_MOST_HOSTS];
    int left = GS_LINK_WHOLE;
    for (int i = 0; i < num_hosts; i++) {
        double exact = shares[i] * GS_LINK_WHOLE;
        out[i] = (uint16_t)(exact > 0 ? exact : 0);
        lost[i] = exact - out[i];
        left -= out[i];
    }
    while (left-- > 0) {
        int most = 0;
        for (int i = 1; i < num_hosts; i++)
            if (lost[i] > lost[most]) most = i;
        out[most]++;
        lost[most] -= 1;
    }
}

static void share_evenly(uint16_t *out, int num_hosts) {
    for (int i = 0; i < num_hosts; i++) out[i] = 1;
}

double gs_link_shares_seconds(const uint16_t *shares, const gs_link_rates *rates) {
    problem known;
    double parts[GS_LINK_MOST_HOSTS], whole = 0;
    if (rates->num_hosts < 2 || rates->num_hosts > GS_LINK_MOST_HOSTS || !pose(&known, rates)) return 0;
    for (int i = 0; i < rates->num_hosts; i++) whole += shares[i];
    for (int i = 0; i < rates->num_hosts; i++) parts[i] = shares[i] / whole;
    return longest(&known, parts);
}

double gs_link_shares_choose(uint16_t *out, const gs_link_rates *rates) {
    problem known;
    double shares[GS_LINK_MOST_HOSTS];
    int num_hosts = rates->num_hosts;
    share_evenly(out, num_hosts);
    if (num_hosts < 3 || num_hosts > GS_LINK_MOST_HOSTS || !pose(&known, rates)) return 1;
    for (int i = 0; i < num_hosts; i++) shares[i] = 1.0 / num_hosts;
    double even = longest(&known, shares);
    for (double move = FIRST_MOVE; move > LEAST_MOVE; move /= 2)
        for (int i = 0; i < 4 * num_hosts && move_share(&known, shares, move); i++) continue;
    double gain = even / longest(&known, shares);
    if (gain < LEAST_GAIN) return 1;
    round_shares(out, shares, num_hosts);
    return gain;
}
