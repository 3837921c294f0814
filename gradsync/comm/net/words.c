#include "gradsync/comm/net/words.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/clock.h"

#define LONG_NS (50 * GS_NS_PER_MS)     // who waits for so long tells the others,
#define AGAIN_NS (250 * GS_NS_PER_MS)   // and again after so long
#define VALID_NS (2500 * GS_NS_PER_MS)  // who was not heard for so long may not be able to speak

typedef struct lane_words {
    // Of the moving thread:
    uint64_t first;  // sequence that is the first not finished, and since when
    int64_t since_ns;
    gs_net_word own;    // that was said last, and when
    gs_net_word *said;  // by peers
    uint64_t num_told;
    // Of all:
    _Atomic uint64_t num_said;   // times that `here` was
    gs_net_presence here;        // under the lock
    gs_net_presence *were_here;  // by rank, likewise
} lane_words;

struct gs_net_words {
    int rank, world_size, num_lanes;
    gs_net_ranks *incoming;  // by rank
    int64_t *waited_ns;      // by rank
    int64_t published_ns;
    pthread_mutex_t lock;        // for a moment
    gs_net_standing *standings;  // under it
    lane_words lanes[];
};

gs_status gs_net_words_create(gs_net_words **out, int rank, int world_size, int num_lanes) {
    gs_net_words *self = calloc(1, sizeof *self + (size_t)num_lanes * sizeof *self->lanes);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    self->rank = rank;
    self->world_size = world_size;
    self->num_lanes = num_lanes;
    pthread_mutex_init(&self->lock, NULL);
    self->incoming = calloc((size_t)world_size, sizeof *self->incoming);
    self->waited_ns = calloc((size_t)world_size, sizeof *self->waited_ns);
    self->standings = calloc((size_t)num_lanes, sizeof *self->standings);
    bool has_all = self->incoming && self->waited_ns && self->standings;
    for (int i = 0; has_all && i < num_lanes; i++) {
        lane_words *lane = &self->lanes[i];
        lane->said = calloc((size_t)world_size, sizeof *lane->said);
        lane->were_here = calloc((size_t)world_size, sizeof *lane->were_here);
        has_all = lane->said && lane->were_here;
    }
    if (!has_all) {
        gs_net_words_destroy(self);
        return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    }
    *out = self;
    return gs_ok();
}

void gs_net_words_destroy(gs_net_words *self) {
    if (!self) return;
    for (int i = 0; i < self->num_lanes; i++) {
        free(self->lanes[i].said);
        free(self->lanes[i].were_here);
    }
    free(self->standings);
    free(self->waited_ns);
    free(self->incoming);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

bool gs_net_words_place(gs_net_words *self, int peer, const gs_net_header *header, void **body) {
    if (header->lane >= self->num_lanes) return false;
    if (header->kind == GS_NET_HERE) return !header->bytes;
    *body = &self->incoming[peer];
    return header->kind == GS_NET_WAITS && header->bytes == sizeof *self->incoming;
}

void gs_net_words_came(gs_net_words *self, int peer, const gs_net_header *header) {
    lane_words *lane = &self->lanes[header->lane];
    if (header->kind == GS_NET_WAITS) {
        lane->said[peer] = (gs_net_word){header->sequence, self->incoming[peer], gs_now_ns()};
        return;
    }
    pthread_mutex_lock(&self->lock);
    lane->were_here[peer] = (gs_net_presence){header->sequence, header->segment, gs_now_ns()};
    pthread_mutex_unlock(&self->lock);
}

static gs_status say_waits(gs_net_words *self, gs_net_transport *transport, int lane,
                           gs_net_word word) {
    gs_net_word *own = &self->lanes[lane].own;
    bool is_known = own->waits == word.waits && (!word.waits || own->sequence == word.sequence);
    bool is_fresh = !word.waits || word.heard_ns - own->heard_ns < AGAIN_NS;
    if (is_known && is_fresh) return gs_ok();
    *own = word;
    gs_net_header header = {.kind = GS_NET_WAITS,
                            .lane = (uint8_t)lane,
                            .input = (uint16_t)self->rank,
                            .sequence = word.sequence,
                            .bytes = sizeof word.waits};
    return gs_net_transport_tell(transport, &header, &word.waits);
}

static void note_wait(gs_net_words *self, gs_net_ranks ranks, int64_t ns) {
    for (; ranks; ranks &= ranks - 1) self->waited_ns[__builtin_ctzll(ranks)] += ns;
}

static gs_status publish_lane(gs_net_words *self, gs_net_transport *transport,
                              const gs_net_lane *moving, int64_t now_ns) {
    lane_words *lane = &self->lanes[moving->number];
    const gs_net_work *work = gs_net_lane_first(moving);
    gs_net_standing standing = {0};
    gs_net_ranks first = 0;
    if (work) {
        gs_net_debts debts = gs_net_work_debts(work);
        first = gs_net_debts_first(&debts);
        standing = (gs_net_standing){
            .sequence = work->sequence,
            .collective = work->collective,
            .blamed = gs_net_debts_blame(&debts, self->rank, work->sequence, lane->said,
                                         self->world_size, now_ns - VALID_NS)};
        standing.has_arrived = !(debts.absent & standing.blamed);
        if (lane->first == work->sequence)
            note_wait(self, debts.absent | debts.own, now_ns - self->published_ns);
    }
    if (lane->first != standing.sequence) lane->since_ns = now_ns;
    lane->first = standing.sequence;
    pthread_mutex_lock(&self->lock);
    self->standings[moving->number] = standing;
    pthread_mutex_unlock(&self->lock);
    bool is_long = work && now_ns - lane->since_ns >= LONG_NS;
    return say_waits(self, transport, moving->number,
                     (gs_net_word){standing.sequence, is_long ? first : 0, now_ns});
}

gs_status gs_net_words_publish(gs_net_words *self, gs_net_transport *transport, gs_net_lane *lanes,
                               int64_t now_ns) {
    for (int i = 0; i < self->num_lanes; i++)
        GS_TRY(publish_lane(self, transport, &lanes[i], now_ns));
    self->published_ns = now_ns;
    return gs_ok();
}

bool gs_net_words_has_here_to_tell(const gs_net_words *self) {
    for (int i = 0; i < self->num_lanes; i++) {
        if (atomic_load(&self->lanes[i].num_said) != self->lanes[i].num_told) return true;
    }
    return false;
}

gs_status gs_net_words_tell_here(gs_net_words *self, gs_net_transport *transport) {
    for (int i = 0; i < self->num_lanes; i++) {
        lane_words *lane = &self->lanes[i];
        uint64_t num_said = atomic_load(&lane->num_said);
        if (num_said == lane->num_told) continue;
        lane->num_told = num_said;
        pthread_mutex_lock(&self->lock);
        gs_net_presence here = lane->here;
        pthread_mutex_unlock(&self->lock);
        gs_net_header header = {.kind = GS_NET_HERE,
                                .lane = (uint8_t)i,
                                .input = (uint16_t)self->rank,
                                .segment = here.word,
                                .sequence = here.sequence};
        GS_TRY(gs_net_transport_tell(transport, &header, NULL));
    }
    return gs_ok();
}

int64_t gs_net_words_due_ns(const gs_net_words *self) {
    int64_t due_ns = 0;
    for (int i = 0; i < self->num_lanes; i++) {
        const lane_words *lane = &self->lanes[i];
        if (!lane->first) continue;
        if (!lane->own.waits || lane->own.sequence != lane->first) return LONG_NS;
        due_ns = AGAIN_NS;
    }
    return due_ns;
}

int64_t gs_net_words_waited_ns(const gs_net_words *self, int peer) {
    return self->waited_ns[peer];
}

gs_net_standing gs_net_words_standing(gs_net_words *self, int lane) {
    pthread_mutex_lock(&self->lock);
    gs_net_standing standing = self->standings[lane];
    pthread_mutex_unlock(&self->lock);
    return standing;
}

void gs_net_words_say_here(gs_net_words *self, int lane, gs_net_presence here) {
    pthread_mutex_lock(&self->lock);
    self->lanes[lane].here = here;
    pthread_mutex_unlock(&self->lock);
    atomic_fetch_add(&self->lanes[lane].num_said, 1);
}

gs_net_presence gs_net_words_was_here(gs_net_words *self, int rank, int lane) {
    pthread_mutex_lock(&self->lock);
    gs_net_presence was = self->lanes[lane].were_here[rank];
    pthread_mutex_unlock(&self->lock);
    return was;
}
