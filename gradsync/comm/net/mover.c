#include "gradsync/comm/net/mover.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/thread.h"
#include "gradsync/comm/net/transport.h"

#define SPIN_NS (50 * INT64_C(1000))  // after something moved
#define CROWDED_NS (25 * INT64_C(1000))  // a yield that takes as long let somebody else work
#define SLEEP_MS 1000
#define FLUSH_MS 1
#define PUBLISH_NS (5 * GS_NS_PER_MS)  // at most, while it moves
#define LINKS_NS (25 * GS_NS_PER_MS)

typedef struct peer_state {
    bool has_left;  // in peace
    bool is_gone;   // nothing comes any more
    int error;      // why: 0, it closed its connection; else an errno
    gs_net_failure said;
} peer_state;

struct gs_net_mover {
    gs_net_party party;
    gs_net_receiver receiver;
    gs_thread *thread;
    int num_lanes;
    gs_futex_event event;
    const gs_net_shares *shares;  // the owner's
    atomic_bool sleeps;  // the thread does, or is about to
    atomic_bool end_asked, ended;
    atomic_bool leaving, left;
    // Of the thread:
    int64_t moved_ns, published_ns, linked_ns;
    bool is_stale;  // what was published is
    bool has_said_bye;
    bool has_heard;
    gs_net_failure heard;  // the first of a peer
    peer_state *peers;     // by rank
    gs_net_words *words;
    gs_net_end end;  // written before `ended`
    // Of all, for a moment:
    pthread_mutex_t lock;
    gs_net_end asked;
    gs_comm_link *links;  // by rank
    gs_net_lane lanes[];
};

bool gs_net_mover_has_ended(const gs_net_mover *mover) {
    return atomic_load_explicit(&mover->ended, memory_order_acquire);
}

bool gs_net_mover_end_asked(const gs_net_mover *mover) {
    return atomic_load(&mover->end_asked);
}

bool gs_net_mover_has_left(const gs_net_mover *mover) {
    return atomic_load(&mover->left);
}

static gs_status tell(gs_net_mover *mover, gs_net_kind kind, const void *body, size_t bytes) {
    gs_net_header header = {
        .kind = (uint8_t)kind, .input = (uint16_t)mover->party.rank, .bytes = bytes};
    return gs_net_transport_tell(mover->party.transport, &header, body);
}

// All borrowed memory is the owner's again, as it gave it.
static void let_go(gs_net_mover *mover) {
    gs_net_transport_abort(mover->party.transport);
    for (int i = 0; i < mover->num_lanes; i++) gs_net_lane_restore(&mover->lanes[i]);
}

static void end_comm(gs_net_mover *mover, gs_status status, const gs_comm_failure *cause) {
    if (gs_net_mover_has_ended(mover)) return;
    mover->end = (gs_net_end){status, *cause};
    let_go(mover);
    gs_net_failure said = {.status = status, .failure = *cause};
    // A rank that has no memory left for the words hangs up, which ends the others too.
    (void)tell(mover, GS_NET_FAILURE, &said, sizeof said).code;
    atomic_store_explicit(&mover->ended, true, memory_order_release);
}

static void end_by_lane(gs_net_mover *mover, gs_net_lane *lane, gs_status status) {
    gs_comm_failure cause = lane->cause;
    if (!cause.kind) {
        cause = (gs_comm_failure){.kind = GS_COMM_FAILURE_DEVICE,
                                  .reporter = mover->party.rank,
                                  .lane = lane->number,
                                  .sequence = gs_net_lane_finished(lane) + 1,
                                  .bucket = -1};
        gs_comm_failure_accuse(&cause, mover->party.rank);
    }
    end_comm(mover, status, &cause);
}

static const char *fate_of(const peer_state *peer, char *text, size_t text_bytes) {
    if (peer->has_left) return "left the communicator";
    if (!peer->error || peer->error == ECONNRESET || peer->error == EPIPE) return "died";
    snprintf(text, text_bytes, "cannot be reached any more: %s", strerror(peer->error));
    return text;
}

// All that are gone and that a collective waits for are accused.
static void check_gone(gs_net_mover *mover, gs_net_lane *lane) {
    const gs_net_work *work = gs_net_lane_first(lane);
    int first = -1;
    if (!work) return;
    gs_net_debts debts = gs_net_work_debts(work);
    gs_net_ranks missing = gs_net_debts_all(&debts);
    gs_comm_failure lost = gs_net_work_failure(work, GS_COMM_FAILURE_PEER_LOST);
    for (int i = 0; i < mover->party.world_size; i++) {
        if (!mover->peers[i].is_gone || !(missing & gs_net_rank_bit(i))) continue;
        gs_comm_failure_accuse(&lost, i);
        if (first < 0) first = i;
    }
    if (first < 0) return;
    char name[64], fate[96];
    gs_collective_name(name, sizeof name, work->sequence, &work->collective);
    end_comm(mover,
             gs_error(GS_ABORTED, "%s: rank %d %s", name, first,
                      fate_of(&mover->peers[first], fate, sizeof fate)),
             &lost);
}

static bool is_of_a_collective(const gs_net_mover *mover, const gs_net_header *header) {
    return header->kind >= GS_NET_CLAIM && header->kind <= GS_NET_RESULT &&
           header->lane < mover->num_lanes;
}

// False: no words that there are.
static bool place_words(gs_net_mover *mover, int peer, const gs_net_header *header, void **body) {
    peer_state *from = &mover->peers[peer];
    if (header->kind == GS_NET_BYE) return !header->bytes;
    if (header->kind != GS_NET_FAILURE) return gs_net_words_place(mover->words, peer, header, body);
    *body = &from->said;
    return header->bytes == sizeof from->said;
}

static gs_status place_message(void *ctx, int peer, const gs_net_header *header, void **body) {
    gs_net_mover *mover = ctx;
    bool is_over = gs_net_mover_has_ended(mover);
    if (is_of_a_collective(mover, header) && !is_over) {
        gs_net_lane *lane = &mover->lanes[header->lane];
        gs_status status = gs_net_lane_place(lane, peer, header, body);
        if (status.code) end_by_lane(mover, lane, status);
        return status;
    }
    if (place_words(mover, peer, header, body)) return gs_ok();
    gs_comm_failure cause = {
        .kind = GS_COMM_FAILURE_DAMAGED, .reporter = mover->party.rank, .bucket = -1};
    gs_comm_failure_accuse(&cause, peer);
    gs_status status = gs_error(GS_DATA_LOSS, "rank %d sent what is no message", peer);
    end_comm(mover, status, &cause);
    return status;
}

// It counts behind all that came before it.
static void hear_failure(gs_net_mover *mover, int peer) {
    if (mover->has_heard) return;
    mover->has_heard = true;
    mover->heard = mover->peers[peer].said;
    gs_net_failure_sanitize(&mover->heard, mover->party.world_size, mover->num_lanes);
}

static gs_status take_message(void *ctx, int peer, const gs_net_header *header) {
    gs_net_mover *mover = ctx;
    switch (header->kind) {
    case GS_NET_FAILURE:
        hear_failure(mover, peer);
        return gs_ok();
    case GS_NET_BYE:
        mover->peers[peer].has_left = true;
        return gs_ok();
    case GS_NET_WAITS:
    case GS_NET_HERE:
        gs_net_words_came(mover->words, peer, header);
        mover->is_stale = true;
        return gs_ok();
    default:
        break;
    }
    if (gs_net_mover_has_ended(mover)) return gs_ok();
    gs_net_lane *lane = &mover->lanes[header->lane];
    gs_status status = gs_net_lane_came(lane, peer, header);
    if (status.code) end_by_lane(mover, lane, status);
    return status;
}

static gs_status note_gone(void *ctx, int peer, int error) {
    gs_net_mover *mover = ctx;
    mover->peers[peer].is_gone = true;
    mover->peers[peer].error = error;
    return gs_ok();
}

static bool is_idle(const gs_net_mover *mover) {
    for (int i = 0; i < mover->num_lanes; i++) {
        if (gs_net_lane_has_work(&mover->lanes[i])) return false;
    }
    return true;
}

// What was said last still goes out, so that nobody takes a rank that leaves for one that died.
static void take_leave(gs_net_mover *mover) {
    gs_comm_failure nobody = {.kind = GS_COMM_FAILURE_NONE, .reporter = -1, .bucket = -1};
    if (!mover->has_said_bye) {
        mover->has_said_bye = true;
        if (!gs_net_mover_has_ended(mover)) {
            if (!is_idle(mover)) let_go(mover);
            mover->end = (gs_net_end){
                gs_error(GS_ABORTED, "rank %d has left the communicator", mover->party.rank),
                nobody};
            atomic_store_explicit(&mover->ended, true, memory_order_release);
        }
        (void)tell(mover, GS_NET_BYE, NULL, 0).code;
    }
    if (!gs_net_transport_is_flushed(mover->party.transport)) return;
    for (int i = 0; i < mover->party.world_size; i++)
        gs_net_transport_hang_up(mover->party.transport, i);
    atomic_store(&mover->left, true);
}

static void do_as_asked(gs_net_mover *mover) {
    if (!atomic_load(&mover->end_asked) || gs_net_mover_has_ended(mover)) return;
    pthread_mutex_lock(&mover->lock);
    gs_net_end asked = mover->asked;
    pthread_mutex_unlock(&mover->lock);
    end_comm(mover, asked.status, &asked.failure);
}

// Everything that can be done without a word from others. True: something was.
//   received  when others were last listened to, something came: there may be more, such as
//   another's end
static bool advance(gs_net_mover *mover, bool received) {
    bool moved = false;
    do_as_asked(mover);
    for (int i = 0; i < mover->num_lanes && !gs_net_mover_has_ended(mover); i++) {
        gs_status status = gs_net_lane_move(&mover->lanes[i], &moved);
        if (status.code) end_by_lane(mover, &mover->lanes[i], status);
    }
    if (mover->has_heard) end_comm(mover, mover->heard.status, &mover->heard.failure);
    for (int i = 0; i < mover->num_lanes && !moved && !received; i++) {
        if (!gs_net_mover_has_ended(mover)) check_gone(mover, &mover->lanes[i]);
    }
    if (atomic_load(&mover->leaving) && !gs_net_mover_has_left(mover)) take_leave(mover);
    return moved;
}

static void publish_links(gs_net_mover *mover, int64_t now_ns) {
    if (now_ns - mover->linked_ns < LINKS_NS) return;
    mover->linked_ns = now_ns;
    for (int i = 0; i < mover->party.world_size; i++) {
        if (i == mover->party.rank || mover->peers[i].is_gone) continue;
        gs_comm_link link;
        gs_net_transport_look(mover->party.transport, i, &link);
        link.waited_ns = gs_net_words_waited_ns(mover->words, i);
        pthread_mutex_lock(&mover->lock);
        mover->links[i] = link;
        pthread_mutex_unlock(&mover->lock);
    }
}

static void publish(gs_net_mover *mover, int64_t now_ns) {
    mover->is_stale = false;
    mover->published_ns = now_ns;
    if (!gs_net_mover_has_ended(mover)) {
        gs_status status =
            gs_net_words_publish(mover->words, mover->party.transport, mover->lanes, now_ns);
        if (status.code) end_by_lane(mover, &mover->lanes[0], status);
    }
    publish_links(mover, now_ns);
}

static void tell_here(gs_net_mover *mover) {
    if (gs_net_mover_has_ended(mover) || !gs_net_words_has_here_to_tell(mover->words)) return;
    gs_status status = gs_net_words_tell_here(mover->words, mover->party.transport);
    if (status.code) end_by_lane(mover, &mover->lanes[0], status);
}

static bool has_orders(const gs_net_mover *mover) {
    bool is_over = gs_net_mover_has_ended(mover);
    for (int i = 0; i < mover->num_lanes && !is_over; i++) {
        if (gs_net_lane_has_posts(&mover->lanes[i])) return true;
    }
    return (!is_over &&
            (atomic_load(&mover->end_asked) || gs_net_words_has_here_to_tell(mover->words))) ||
           (atomic_load(&mover->leaving) && !mover->has_said_bye);
}

// How long to sleep at most. Ranks answer each other within microseconds where they are up to it.
static int choose_timeout(gs_net_mover *mover, bool moved, int64_t now_ns) {
    if (moved) return 0;
    if (mover->has_said_bye) return gs_net_mover_has_left(mover) ? SLEEP_MS : FLUSH_MS;
    if (gs_net_mover_has_ended(mover)) return SLEEP_MS;
    if (!is_idle(mover) && now_ns - mover->moved_ns < SPIN_NS) {
        sched_yield();
        // Others needed the core meanwhile: it is not there to poll with, until something moves again.
        if (gs_now_ns() - now_ns > CROWDED_NS) mover->moved_ns = 0;
        return 0;
    }
    int64_t due_ns = gs_net_words_due_ns(mover->words);
    return due_ns ? (int)(due_ns / GS_NS_PER_MS) : SLEEP_MS;
}

static uint64_t count_finished(const gs_net_mover *mover) {
    uint64_t count = 0;
    for (int i = 0; i < mover->num_lanes; i++) count += gs_net_lane_finished(&mover->lanes[i]);
    return count;
}

// One round without the network. True: something moved.
static bool take_turn(gs_net_mover *mover, bool received, int64_t now_ns) {
    uint64_t before = count_finished(mover);
    bool had_ended = gs_net_mover_has_ended(mover), had_left = gs_net_mover_has_left(mover);
    bool moved = advance(mover, received) || received;
    bool has_finished = count_finished(mover) != before;
    mover->is_stale |= moved;
    tell_here(mover);
    if (has_finished || (mover->is_stale && !moved) || now_ns - mover->published_ns >= PUBLISH_NS)
        publish(mover, now_ns);
    if (has_finished || gs_net_mover_has_ended(mover) != had_ended ||
        gs_net_mover_has_left(mover) != had_left)
        gs_futex_event_notify(&mover->event);
    return moved;
}

static void run_thread(void *ctx, const atomic_bool *stopping) {
    gs_net_mover *mover = ctx;
    bool received = false;
    while (!atomic_load(stopping)) {
        int64_t now_ns = gs_now_ns();
        bool moved = take_turn(mover, received, now_ns);
        if (moved) mover->moved_ns = now_ns;
        int timeout_ms = choose_timeout(mover, moved, now_ns);
        if (timeout_ms > 0) {
            atomic_store(&mover->sleeps, true);
            if (has_orders(mover) || atomic_load(stopping)) timeout_ms = 0;
        }
        bool had_ended = gs_net_mover_has_ended(mover);
        gs_status status = gs_net_transport_wait(mover->party.transport, timeout_ms, &received);
        atomic_store(&mover->sleeps, false);
        if (status.code) end_by_lane(mover, &mover->lanes[0], status);  // what was not said yet
        if (gs_net_mover_has_ended(mover) != had_ended) gs_futex_event_notify(&mover->event);
    }
}

static void wake(gs_net_mover *mover) {
    if (atomic_exchange(&mover->sleeps, false)) gs_net_transport_wake(mover->party.transport);
}

void gs_net_mover_post(gs_net_mover *mover, int lane, uint64_t sequence,
                       const gs_collective *collective) {
    gs_net_lane_post(&mover->lanes[lane], sequence, collective, mover->shares);
    wake(mover);
}

void gs_net_mover_share(gs_net_mover *mover, const gs_net_shares *shares) {
    mover->shares = shares;
}

void gs_net_mover_say_here(gs_net_mover *mover, int lane, gs_net_presence here) {
    gs_net_words_say_here(mover->words, lane, here);
    wake(mover);
}

gs_net_presence gs_net_mover_was_here(const gs_net_mover *mover, int rank, int lane) {
    return gs_net_words_was_here(mover->words, rank, lane);
}

const gs_net_lane *gs_net_mover_lane(const gs_net_mover *mover, int lane) {
    return &mover->lanes[lane];
}

gs_futex_event *gs_net_mover_event(gs_net_mover *mover) {
    return &mover->event;
}

gs_net_standing gs_net_mover_standing(gs_net_mover *mover, int lane) {
    return gs_net_words_standing(mover->words, lane);
}

void gs_net_mover_link(gs_net_mover *mover, int peer, gs_comm_link *out) {
    pthread_mutex_lock(&mover->lock);
    *out = mover->links[peer];
    pthread_mutex_unlock(&mover->lock);
}

void gs_net_mover_ask_end(gs_net_mover *mover, const gs_net_end *end) {
    pthread_mutex_lock(&mover->lock);
    if (!atomic_load(&mover->end_asked)) {
        mover->asked = *end;
        atomic_store(&mover->end_asked, true);
    }
    pthread_mutex_unlock(&mover->lock);
    wake(mover);
}

bool gs_net_mover_end(gs_net_mover *mover, gs_net_end *out) {
    if (gs_net_mover_has_ended(mover)) {
        *out = mover->end;
        return true;
    }
    pthread_mutex_lock(&mover->lock);
    bool asked = atomic_load(&mover->end_asked);
    if (asked) *out = mover->asked;
    pthread_mutex_unlock(&mover->lock);
    return asked;
}

void gs_net_mover_leave(gs_net_mover *mover) {
    atomic_store(&mover->leaving, true);
    wake(mover);
}

gs_status gs_net_mover_start(gs_net_mover **out, gs_net_mesh *mesh, int rank, int num_lanes,
                             uint32_t generation) {
    size_t bytes = sizeof(gs_net_mover) + (size_t)num_lanes * sizeof(gs_net_lane);
    gs_net_mover *mover = gs_alloc_aligned(bytes, _Alignof(gs_net_mover));
    if (!mover) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    mover->party =
        (gs_net_party){.rank = rank, .world_size = mesh->world_size, .generation = generation};
    mover->num_lanes = num_lanes;
    pthread_mutex_init(&mover->lock, NULL);
    mover->receiver = (gs_net_receiver){mover, place_message, take_message, note_gone};
    gs_status status = gs_net_words_create(&mover->words, rank, mesh->world_size, num_lanes);
    mover->peers = calloc((size_t)mesh->world_size, sizeof *mover->peers);
    mover->links = calloc((size_t)mesh->world_size, sizeof *mover->links);
    if (!status.code && (!mover->peers || !mover->links))
        status = gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    if (!status.code) status = gs_net_transport_create(&mover->party.transport, mesh);
    if (status.code) goto fail;
    gs_net_transport_receive(mover->party.transport, &mover->receiver);
    // A device belongs to one thread, so this one has its own.
    status = gs_device_open(&mover->party.device, "cpu", &(gs_device_options){.num_threads = 1});
    if (status.code) goto fail;
    for (int i = 0; i < num_lanes; i++) gs_net_lane_open(&mover->lanes[i], &mover->party, i);
    status = gs_thread_start(&mover->thread, "net", run_thread, mover);
    if (status.code) goto fail;
    *out = mover;
    return gs_ok();
fail:
    gs_net_mover_stop(mover);
    return status;
}

void gs_net_mover_stop(gs_net_mover *mover) {
    if (!mover) return;
    if (mover->thread) {
        gs_thread_ask_to_stop(mover->thread);
        gs_net_transport_wake(mover->party.transport);
        gs_thread_stop(mover->thread);
    }
    // What was on its way counts in its collective.
    gs_net_transport_destroy(mover->party.transport);
    for (int i = 0; i < mover->num_lanes; i++) gs_net_lane_close(&mover->lanes[i]);
    gs_net_store_release(&mover->party.store);
    gs_device_close(mover->party.device);
    gs_net_words_destroy(mover->words);
    free(mover->links);
    free(mover->peers);
    pthread_mutex_destroy(&mover->lock);
    free(mover);
}
