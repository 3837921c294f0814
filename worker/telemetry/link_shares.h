// Which host adds how much of what all send each other, from what the ways between them give: where two reach each other far
// more slowly than others, they own little, so that little travels between them, and the others more. It is to owners what an
// order that leaves out the slowest edge is to a ring. Numbers alone: of equal rates equal shares, on every machine.
#ifndef WORKER_TELEMETRY_LINK_SHARES_H
#define WORKER_TELEMETRY_LINK_SHARES_H

#include <stdbool.h>
#include <stdint.h>

#define GS_LINK_MOST_HOSTS 64
// All shares together.
#define GS_LINK_WHOLE 1000

typedef struct gs_link_rates {
    int num_hosts;
    // Bytes a second of a pair, as their connection had them while all were in use; both directions alike. 0: not known.
    double of[GS_LINK_MOST_HOSTS][GS_LINK_MOST_HOSTS];
} gs_link_rates;

// A pair is slow that has less than half of what is usual at both of its ends.
bool gs_link_pair_is_slow(const gs_link_rates *rates, int a, int b);

// Returns how much longer equal shares would take by these rates; 1: equal ones are as good, and are what is stored. Of two
// hosts, or where no rate is known, they are.
double gs_link_shares_choose(uint16_t *shares, const gs_link_rates *rates);
// What a byte takes by these rates; 0: it is not known.
double gs_link_shares_seconds(const uint16_t *shares, const gs_link_rates *rates);

#endif
