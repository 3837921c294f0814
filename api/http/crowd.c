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
typedef enum place_use { IDLES = 0, DRIPS, WAITS, READS_NOT, TAKES_LONG, IS_ANSWERED, NEEDS_IT } place_use;

// A place that may be given up.
typedef struct offer {
    gs_http_connection *connection;  // NULL: none
    place_use use;
    int64_t since_ns;
} offer;

// Somebody known, and how many places are his.
enum { MOST_HEAVY = 15 };
typedef struct holder {
    uint64_t whose;
    unsigned num_held;
} holder;

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

// Each of those that hold more than a sixteenth of the places is among these (Misra and Gries 1982): what one of them loses there, he
// loses beside as many others as there is room for.
static void find_heavy(holder heavy[MOST_HEAVY], gs_http_connection *fresh, bool of_neighbours) {
    for (const gs_http_connection *it = next_of(fresh, fresh, of_neighbours); it; it = next_of(it, fresh, of_neighbours)) {
        holder *own = NULL, *unused = NULL;
        if (!it->whose) continue;
        for (holder *one = heavy; one < heavy + MOST_HEAVY; one++) {
            if (one->num_held > 0 && one->whose == it->whose) own = one;
            if (one->num_held == 0) unused = one;
        }
        if (!own && unused) *unused = (holder){.whose = it->whose};
        if (!own) own = unused;
        for (holder *one = heavy; !own && one < heavy + MOST_HEAVY; one++) one->num_held--;
        if (own) own->num_held++;
    }
}

static holder *find_holder(holder heavy[MOST_HEAVY], uint64_t whose) {
    for (holder *one = heavy; one < heavy + MOST_HEAVY; one++)
        if (whose && one->whose == whose) return one;
    return NULL;
}

// Leaves those who hold most of the places, and who holds more than half as many as the first of them; whose 0: nobody.
static void find_greedy(holder greedy[MOST_HEAVY], gs_http_connection *fresh, bool of_neighbours, unsigned num_places) {
    unsigned most = 0;
    memset(greedy, 0, MOST_HEAVY * sizeof *greedy);
    find_heavy(greedy, fresh, of_neighbours);
    for (holder *one = greedy; one < greedy + MOST_HEAVY; one++) one->num_held = 0;
    for (const gs_http_connection *it = next_of(fresh, fresh, of_neighbours); it; it = next_of(it, fresh, of_neighbours)) {
        holder *own = find_holder(greedy, it->whose);
        if (own && ++own->num_held > most) most = own->num_held;
    }
    for (holder *one = greedy; one < greedy + MOST_HEAVY; one++)
        if (one->num_held < 2 || one->num_held <= num_places / (MOST_HEAVY + 1) || 2 * one->num_held <= most) one->whose = 0;
}

static place_use use_of(gs_http_connection *it, int64_t now_ns, int64_t *since_ns) {
    *since_ns = it->idle_ns ? it->idle_ns : it->phase_ns;
    if (it->phase == GS_HTTP_WAITING && it->idle_ns) return now_ns - *since_ns > IDLE_ENOUGH_MS * GS_NS_PER_MS ? IDLES : WAITS;
    if (it->phase == GS_HTTP_WAITING) return now_ns - *since_ns > DRIP_MS * GS_NS_PER_MS ? DRIPS : WAITS;
    if (it->phase != GS_HTTP_ANSWERING) return NEEDS_IT;
    if (now_ns - *since_ns > LONG_MS * GS_NS_PER_MS) return TAKES_LONG;
    if (!gs_crowd_is_stuck(it, now_ns)) return IS_ANSWERED;
    *since_ns = it->moved_ns;
    return READS_NOT;
}

static void take_better(offer *best, gs_http_connection *it, place_use use, int64_t since_ns) {
    if (best->connection && (use > best->use || (use == best->use && since_ns > best->since_ns))) return;
    *best = (offer){it, use, since_ns};
}

// One who is known, or NULL. Those who hold most give way before others do, and with whatever keeps them out; others, with what
// they do not use or do not come to use. What one who holds so much opens himself takes no place but one of those of his own. An answer
// is interrupted, where nothing else is left, for somebody of whom it is known that he is another: a stranger could do that all day.
//   amid_strangers  then those who only idle stay: a stranger comes as likely as somebody who is known
static gs_http_connection *choose_known(gs_http_connection *fresh, bool of_neighbours, unsigned num_places, bool amid_strangers) {
    offer own = {0}, others = {0};
    int64_t now_ns = gs_now_ns(), since_ns;
    holder greedy[MOST_HEAVY];
    find_greedy(greedy, fresh, of_neighbours, num_places);
    bool comes_himself = find_holder(greedy, fresh->whose) != NULL;
    for (gs_http_connection *it = next_of(fresh, fresh, of_neighbours); it; it = next_of(it, fresh, of_neighbours)) {
        bool is_greedys = comes_himself ? it->whose == fresh->whose : find_holder(greedy, it->whose) != NULL;
        if (!it->whose || (comes_himself && !is_greedys)) continue;
        place_use use = use_of(it, now_ns, &since_ns);
        place_use last = !is_greedys || comes_himself ? DRIPS : fresh->whose ? IS_ANSWERED : TAKES_LONG;
        if (use > last || (use == IDLES && amid_strangers && !is_greedys)) continue;
        take_better(is_greedys ? &own : &others, it, use, since_ns);
    }
    bool is_last_resort = own.connection && own.use == IS_ANSWERED && others.connection;
    return own.connection && !is_last_resort ? own.connection : others.connection;
}

gs_http_connection *gs_crowd_choose(gs_http_connection *fresh, bool of_neighbours, unsigned num_places) {
    bool has_strangers;
    gs_http_connection *victim = choose_stranger(fresh, of_neighbours, &has_strangers);
    if (!victim) victim = choose_known(fresh, of_neighbours, num_places, has_strangers);
    return victim ? victim : fresh;
}
