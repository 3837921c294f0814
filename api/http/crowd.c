#include "api/http/crowd.h"

#include <string.h>

#include "api/http/progress.h"
#include "core/clock.h"

enum {
    IDLE_ENOUGH_MS = 1000,
    STUCK_MS = 2000,  // without a byte that was taken
    DRIP_MS = 2000,   // from a request's first line on, and not whole: others have sent theirs in a fraction of that
    LONG_MS = 5000    // an answer: longer than one takes, where coordinator and reader are well
};

// What somebody known does with his place; the earlier, the less is lost with it.
typedef enum place_use { IDLES = 0, DRIPS, WAITS, READS_NOT, TAKES_LONG, NEEDS_IT } place_use;

// A place that may be given up.
typedef struct offer {
    gs_http_connection *connection;  // NULL: none
    place_use use;
    int64_t since_ns;
} offer;

bool gs_crowd_is_neighbour(const gs_http_connection *one, const gs_http_connection *other) {
    return one->has_neighbours && memcmp(&one->from, &other->from, sizeof one->from) == 0;
}

void gs_crowd_note_progress(gs_http_connection *it, int64_t now_ns) {
    uint64_t taken_bytes = gs_http_taken_bytes(it->fd);
    if (taken_bytes != it->taken_bytes) it->moved_ns = now_ns;
    it->taken_bytes = taken_bytes;
}

bool gs_crowd_is_stuck(gs_http_connection *it, int64_t now_ns) {
    gs_crowd_note_progress(it, now_ns);
    if (!gs_http_is_untaken(it->fd)) it->moved_ns = now_ns;  // his answer is not there yet, or he has it
    return now_ns - it->moved_ns > STUCK_MS * GS_NS_PER_MS;
}

// The next older one that takes part in the choice.
static gs_http_connection *next_of(const gs_http_connection *it, const gs_http_connection *fresh, bool of_neighbours) {
    gs_http_connection *next = it->next;
    while (next && (next->cut || (of_neighbours && !gs_crowd_is_neighbour(next, fresh)))) next = next->next;
    return next;
}

// Strangers: who does not read, who waits, who is being answered; of each kind the oldest, or who has been so for longest.
static gs_http_connection *choose_stranger(gs_http_connection *fresh, bool of_neighbours, bool *has_strangers) {
    gs_http_connection *stuck = NULL, *waiting = NULL, *answered = NULL;
    int64_t now_ns = gs_now_ns();
    *has_strangers = false;
    for (gs_http_connection *it = next_of(fresh, fresh, of_neighbours); it; it = next_of(it, fresh, of_neighbours)) {
        if (it->whose) continue;
        *has_strangers = true;
        if (it->phase == GS_HTTP_WAITING) waiting = it;
        if (it->phase != GS_HTTP_ANSWERING) continue;
        answered = it;
        if (gs_crowd_is_stuck(it, now_ns) && (!stuck || it->moved_ns <= stuck->moved_ns)) stuck = it;
    }
    if (stuck) return stuck;  // who waits may still come to show a token
    return waiting ? waiting : answered;
}

// Who holds more than half of the places; 0: nobody does. The only one that can is who is left when each is struck out against
// one of another (Boyer and Moore).
static uint64_t find_greedy(gs_http_connection *fresh, bool of_neighbours, unsigned num_places) {
    uint64_t left = 0;
    unsigned num_left = 0, num_held = 0;
    for (const gs_http_connection *it = next_of(fresh, fresh, of_neighbours); it; it = next_of(it, fresh, of_neighbours)) {
        if (!it->whose) continue;
        if (num_left == 0) left = it->whose;
        num_left = it->whose == left ? num_left + 1 : num_left - 1;
    }
    for (const gs_http_connection *it = next_of(fresh, fresh, of_neighbours); left && it; it = next_of(it, fresh, of_neighbours))
        num_held += it->whose == left;
    return num_held > num_places / 2 ? left : 0;
}

static place_use use_of(gs_http_connection *it, int64_t now_ns, int64_t *since_ns) {
    *since_ns = it->idle_ns ? it->idle_ns : it->phase_ns;
    if (it->phase == GS_HTTP_WAITING && it->idle_ns) return now_ns - *since_ns > IDLE_ENOUGH_MS * GS_NS_PER_MS ? IDLES : WAITS;
    if (it->phase == GS_HTTP_WAITING) return now_ns - *since_ns > DRIP_MS * GS_NS_PER_MS ? DRIPS : WAITS;
    if (it->phase != GS_HTTP_ANSWERING) return NEEDS_IT;
    if (now_ns - *since_ns > LONG_MS * GS_NS_PER_MS) return TAKES_LONG;
    if (!gs_crowd_is_stuck(it, now_ns)) return NEEDS_IT;
    *since_ns = it->moved_ns;
    return READS_NOT;
}

static void take_better(offer *best, gs_http_connection *it, place_use use, int64_t since_ns) {
    if (best->connection && (use > best->use || (use == best->use && since_ns > best->since_ns))) return;
    *best = (offer){it, use, since_ns};
}

// One who is known, or NULL. Who holds more than half gives way before others do, and with whatever keeps them out; others, with what
// they do not use or do not come to use. What he who holds so much opens himself takes no place but one of those of his own.
//   amid_strangers  then those who only idle stay: a stranger comes as likely as somebody who is known
static gs_http_connection *choose_known(gs_http_connection *fresh, bool of_neighbours, unsigned num_places, bool amid_strangers) {
    offer own = {0}, others = {0};
    int64_t now_ns = gs_now_ns(), since_ns;
    uint64_t greedy = find_greedy(fresh, of_neighbours, num_places);
    bool comes_himself = greedy && fresh->whose == greedy;
    for (gs_http_connection *it = next_of(fresh, fresh, of_neighbours); it; it = next_of(it, fresh, of_neighbours)) {
        bool is_greedys = greedy && it->whose == greedy;
        if (!it->whose || (comes_himself && !is_greedys)) continue;
        place_use use = use_of(it, now_ns, &since_ns);
        place_use last = is_greedys && !comes_himself ? TAKES_LONG : DRIPS;
        if (use > last || (use == IDLES && amid_strangers && !is_greedys)) continue;
        take_better(is_greedys ? &own : &others, it, use, since_ns);
    }
    return own.connection ? own.connection : others.connection;
}

gs_http_connection *gs_crowd_choose(gs_http_connection *fresh, bool of_neighbours, unsigned num_places) {
    bool has_strangers;
    gs_http_connection *victim = choose_stranger(fresh, of_neighbours, &has_strangers);
    if (!victim) victim = choose_known(fresh, of_neighbours, num_places, has_strangers);
    return victim ? victim : fresh;
}
