#include "worker/checkpoint/save_team.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "gradsync/comm/coalesce.h"

#define MOST_TENSORS ((int64_t)1 << 20)
// At the end the ranks hear from the saver so often that its disk has no room yet, so that the loss of one is seen.
#define LOOK_SECONDS 1.0

// What each rank says before anything travels.
typedef struct offer {
    int64_t is_ready, step, num_tensors, num_own, is_part, bytes;
} offer;

// Of one tensor, which elements come: a segment as it travels.
typedef struct range {
    int64_t first, count;
} range;

// What the saver says of the part that comes, before each of its pieces; above 0: of so many.
enum { NO_ROOM = 0, REFUSED = -1, GIVEN_UP = -2 };

// As every rank of the team sees it.
struct gs_bringing {
    const gs_save_team *team;
    const gs_state_snapshot *mine;  // NULL: not ready; on the sender and on the saver never
    gs_part_intake *intake;         // of the saver, until it was told of the end
    offer *offers;  // by rank
    range *ranges;
    uint8_t *piece;  // of those that are not the saver
    bool *refused;  // by rank: the saver could not keep what it would bring
    // The part at hand.
    int from;
    bool is_open;  // the saver has heard of it
    size_t place;  // bytes that came
    gs_digest_stream *stream;
    bool is_done;
    gs_status failed;
};

static gs_status gather(void *all, const void *mine, size_t num_words, const gs_save_team *team, gs_deadline deadline) {
    return gs_comm_run(team->comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = mine,
                                        .recv = all,
                                        .count = num_words,
                                        .dtype = GS_I64,
                                        .step = -1,
                                        .bucket = -1},
                       deadline);
}

// Whoever alone cannot go on tells the ranks that wait for it.
static gs_status let_go(const gs_save_team *team, gs_status status) {
    gs_comm_let_go(team->comm, status.message);
    return status;
}

gs_status gs_save_team_meet(gs_save_team *team, gs_comm *comm, bool sees_none, double timeout_seconds, gs_deadline deadline) {
    int world_size = gs_comm_world_size(comm), num_blind = 0;
    *team = (gs_save_team){.comm = comm, .timeout_seconds = timeout_seconds, .saver = -1};
    int64_t mine = sees_none, *all = calloc((size_t)world_size, sizeof *all);
    team->apart = calloc((size_t)world_size, sizeof *team->apart);
    if (!all || !team->apart) {
        free(all);
        return let_go(team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    }
    gs_status status = gather(all, &mine, 1, team, deadline);
    for (int rank = 0; rank < world_size && !status.code; rank++) {
        num_blind += team->apart[rank] = all[rank] != 0;
        if (!team->apart[rank] && team->saver < 0) team->saver = rank;
    }
    free(all);
    if (status.code) return status;
    bool nobody_sees = num_blind == world_size;
    if (nobody_sees) memset(team->apart, 0, (size_t)world_size * sizeof *team->apart);
    team->num_apart = nobody_sees ? 0 : num_blind;
    team->is_apart = team->apart[gs_comm_rank(comm)];
    if (nobody_sees) team->saver = 0;
    return status;
}

void gs_save_team_release(gs_save_team *team) {
    free(team->apart);
    *team = (gs_save_team){0};
}

static size_t num_all(const gs_state_snapshot *snapshot) { return snapshot->num_tensors + snapshot->num_own; }

// What all ranks have alike the saver has, too.
static bool travels(const gs_state_snapshot *snapshot, size_t index) {
    return snapshot->is_part || index >= snapshot->num_tensors;
}

static size_t bytes_of(const gs_state_snapshot *snapshot, size_t index, int64_t count) {
    return travels(snapshot, index) ? (size_t)count * gs_dtype_bytes(snapshot->tensors[index].dtype) : 0;
}

static offer make_offer(const gs_state_snapshot *mine) {
    if (!mine) return (offer){0};
    offer it = {.is_ready = 1,
                .step = mine->position.step,
                .num_tensors = (int64_t)mine->num_tensors,
                .num_own = (int64_t)mine->num_own,
                .is_part = mine->is_part};
    for (size_t i = 0; i < num_all(mine); i++) it.bytes += (int64_t)bytes_of(mine, i, (int64_t)mine->here[i].count);
    return it;
}

// Words that come may be anything, and room is made by them. All ranks hear the same.
static gs_status check_offers(const gs_save_team *team, const offer *offers) {
    for (int rank = 0; rank < gs_comm_world_size(team->comm); rank++) {
        const offer *it = &offers[rank];
        bool can_be = it->num_tensors >= 0 && it->num_tensors <= MOST_TENSORS && it->num_own >= 0 && it->num_own <= MOST_TENSORS && it->bytes >= 0;
        if (!can_be) return let_go(team, gs_error(GS_DATA_LOSS, "rank %d offers a part of a state that cannot be", rank));
    }
    return gs_ok();
}

static bool is_alike(const offer *a, const offer *b) {
    return a->is_ready && b->is_ready && a->step == b->step && a->num_tensors == b->num_tensors && a->num_own == b->num_own &&
           a->is_part == b->is_part;
}

static gs_status broadcast_from(int rank, const gs_bringing *it, void *data, size_t bytes) {
    const gs_tensor_view view = {data, bytes, GS_U8};
    return gs_coalesced_broadcast(it->team->comm, &view, 1, rank, 0, gs_deadline_in_seconds(it->team->timeout_seconds));
}

static gs_status broadcast(const gs_bringing *it, void *data, size_t bytes) { return broadcast_from(it->from, it, data, bytes); }

// Bytes that come may be anything: nothing is made room for, or written, that is not of a tensor here.
static gs_status check_ranges(const gs_bringing *it, const gs_state_snapshot *own) {
    int64_t bytes = 0;
    for (size_t i = 0; i < num_all(own); i++) {
        int64_t most = (int64_t)(own->tensors[i].bytes / gs_dtype_bytes(own->tensors[i].dtype));
        const range *part = &it->ranges[i];
        if (part->first < 0 || part->count < 0 || part->first > most || part->count > most - part->first)
            return gs_error(GS_DATA_LOSS, "rank %d brings elements of tensor \"%.100s\" that there are not", it->from, own->tensors[i].name);
        bytes += (int64_t)bytes_of(own, i, part->count);
    }
    if (bytes == it->offers[it->from].bytes) return gs_ok();
    return gs_error(GS_DATA_LOSS, "rank %d brings %lld bytes, its tensors have %lld", it->from, (long long)it->offers[it->from].bytes,
                    (long long)bytes);
}

// A snapshot of rank `from`; digests, position and what does not travel are the saver's own.
static gs_status describe_part(gs_state_snapshot *out, const gs_bringing *it) {
    const gs_state_snapshot *own = it->mine;
    size_t count = num_all(own);
    *out = *own;
    out->bytes = 0;
    out->shares = (gs_share_range){.first = it->from, .count = own->shares.count ? 1 : 0, .world_size = own->shares.world_size};
    out->tensors = calloc(count + 1, sizeof *out->tensors);
    out->data = calloc(count + 1, sizeof *out->data);
    out->here = calloc(count + 1, sizeof *out->here);
    out->memory = NULL;
    GS_FAILPOINT("save_team.room");
    if (!out->tensors || !out->data || !out->here) return gs_error(GS_RESOURCE_EXHAUSTED, "a part that rank %d brings: out of memory", it->from);
    memcpy(out->tensors, own->tensors, count * sizeof *out->tensors);
    for (size_t i = 0; i < count; i++) {
        out->here[i] = own->here[i];
        out->data[i] = own->data[i];
        if (!travels(own, i)) continue;
        out->here[i] = (gs_segment){.tensor = i, .first = (size_t)it->ranges[i].first, .count = (size_t)it->ranges[i].count};
        out->data[i] = NULL;
        out->bytes += bytes_of(own, i, it->ranges[i].count);
    }
    return gs_ok();
}

// Bytes [first, first + bytes) of all that travels, one tensor behind the other.
static void pack(uint8_t *to, const gs_state_snapshot *from, size_t first, size_t bytes) {
    size_t begin = 0;
    for (size_t i = 0; i < num_all(from) && bytes; i++) {
        size_t end = begin + bytes_of(from, i, (int64_t)from->here[i].count);
        if (first < end) {
            size_t here = end - first < bytes ? end - first : bytes;
            memcpy(to, from->data[i] + (first - begin), here);
            to += here;
            first += here;
            bytes -= here;
        }
        begin = end;
    }
}

static size_t bytes_of_part(const gs_bringing *it) { return (size_t)it->offers[it->from].bytes; }

static bool is_saver(const gs_bringing *it) { return gs_comm_rank(it->team->comm) == it->team->saver; }

static bool is_sender(const gs_bringing *it) { return gs_comm_rank(it->team->comm) == it->from; }

static bool brings(const gs_bringing *it, int rank) {
    return it->team->apart[rank] && is_alike(&it->offers[rank], &it->offers[it->team->saver]);
}

// The next rank that brings something.
static void turn_to(gs_bringing *it, int rank) {
    int world_size = gs_comm_world_size(it->team->comm);
    while (rank < world_size && !brings(it, rank)) rank++;
    gs_digest_stream_destroy(it->stream);
    it->stream = NULL;
    it->from = rank;
    it->is_open = false;
    it->place = 0;
    it->is_done = rank == world_size;
}

// The saver's thread that writes waits for this.
static void end_intake(gs_bringing *it, gs_status why) {
    gs_state_snapshot none = {0};
    if (!it->intake) return;
    if (why.code && !it->is_done && !it->is_open) gs_part_intake_begin(it->intake, it->from, &none, 0, why);
    gs_part_intake_end(it->intake, why);
    it->intake = NULL;
}

static gs_status bring_ranges(const gs_bringing *it) {
    int64_t count = it->offers[it->from].num_tensors + it->offers[it->from].num_own;
    if (is_sender(it))
        for (int64_t i = 0; i < count; i++)
            it->ranges[i] = (range){(int64_t)it->mine->here[i].first, (int64_t)it->mine->here[i].count};
    return broadcast(it, it->ranges, (size_t)count * sizeof *it->ranges);
}

// A save that fails stops no training: what the saver has no room for is left out.
static gs_status open_part(gs_bringing *it) {
    GS_TRY(bring_ranges(it));
    it->stream = gs_digest_stream_create();
    if (!it->stream) return let_go(it->team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    if (it->intake) {
        gs_status status = check_ranges(it, it->mine);
        if (status.code) return let_go(it->team, status);
        gs_state_snapshot part;
        status = describe_part(&part, it);
        gs_part_intake_begin(it->intake, it->from, &part, bytes_of_part(it), status);
    }
    it->is_open = true;
    return gs_ok();
}

// Of a part that is about to be given up for a lack of time the saver knows alone.
static gs_status hear_room(gs_bringing *it, int64_t *room, gs_deadline wait, gs_deadline last) {
    *room = NO_ROOM;
    if (it->intake) {
        *room = gs_part_intake_room(it->intake, wait);
        if (*room == NO_ROOM && last.at_ns && gs_deadline_passed(last)) *room = GIVEN_UP;
    }
    GS_TRY(broadcast_from(it->team->saver, it, room, sizeof *room));
    if (*room >= GIVEN_UP && *room <= GS_INTAKE_PIECES) return gs_ok();
    return let_go(it->team, gs_error(GS_DATA_LOSS, "rank %d, which saves, has room for %lld pieces", it->team->saver, (long long)*room));
}

static gs_status bring_piece(gs_bringing *it) {
    size_t left = bytes_of_part(it) - it->place, bytes = left < GS_INTAKE_PIECE_BYTES ? left : GS_INTAKE_PIECE_BYTES;
    uint8_t *piece = it->intake ? gs_part_intake_piece(it->intake) : it->piece;
    if (is_sender(it)) pack(piece, it->mine, it->place, bytes);
    GS_TRY(broadcast(it, piece, bytes));
    gs_digest_stream_add(it->stream, piece, bytes);
    if (it->intake) gs_part_intake_put(it->intake, bytes);
    it->place += bytes;
    return gs_ok();
}

// Every rank of the team has seen all pieces, and compares.
static gs_status close_part(gs_bringing *it) {
    const gs_digest found = gs_digest_stream_value(it->stream);
    gs_digest sent = found;
    GS_TRY(broadcast(it, &sent, sizeof sent));
    if (sent.high != found.high || sent.low != found.low)
        return let_go(it->team, gs_error(GS_DATA_LOSS, "rank %d received something else than rank %d sent to be saved",
                                         gs_comm_rank(it->team->comm), it->from));
    if (it->intake) gs_part_intake_complete(it->intake);
    turn_to(it, it->from + 1);
    return gs_ok();
}

static void give_up(gs_bringing *it) {
    for (int rank = it->from; rank < gs_comm_world_size(it->team->comm); rank++) it->refused[rank] = brings(it, rank);
    end_intake(it, gs_error(GS_DEADLINE_EXCEEDED, "the disk has not taken in time what ranks bring to be saved"));
    it->is_done = true;
}

// One word of the saver's, and what may come by it. *pauses: nothing may.
static gs_status bring_some(gs_bringing *it, bool *pauses, gs_deadline wait, gs_deadline last) {
    int64_t room;
    *pauses = false;
    if (!it->is_open) GS_TRY(open_part(it));
    if (it->place == bytes_of_part(it)) return close_part(it);
    GS_TRY(hear_room(it, &room, wait, last));
    *pauses = room == NO_ROOM;
    if (room == GIVEN_UP) {
        give_up(it);
    } else if (room == REFUSED) {
        it->refused[it->from] = true;
        turn_to(it, it->from + 1);
    }
    for (int64_t i = 0; i < room && it->place < bytes_of_part(it); i++) GS_TRY(bring_piece(it));
    return gs_ok();
}

static gs_status note_end(gs_bringing *it, gs_status status) {
    it->failed = status;
    if (status.code || it->is_done) end_intake(it, status);
    return status;
}

gs_status gs_save_team_go_on(gs_bringing *it) {
    gs_status status = it->failed;
    bool pauses = false;
    while (!status.code && !it->is_done && !pauses) status = bring_some(it, &pauses, (gs_deadline){0}, (gs_deadline){0});
    return note_end(it, status);
}

gs_status gs_save_team_finish(gs_bringing *it, gs_deadline deadline) {
    gs_status status = it->failed;
    bool pauses;
    while (!status.code && !it->is_done)
        status = bring_some(it, &pauses, gs_deadline_min(deadline, gs_deadline_in_seconds(LOOK_SECONDS)), deadline);
    return note_end(it, status);
}

bool gs_save_team_is_done(const gs_bringing *it) { return it->is_done || it->failed.code; }

gs_status gs_save_team_refusal(const gs_bringing *it) {
    const gs_save_team *team = it->team;
    const offer *offers = it->offers;
    int rank = gs_comm_rank(team->comm);
    if (it->refused[rank])
        return gs_error(GS_RESOURCE_EXHAUSTED, "rank %d, which would write this part, could not keep its %lld bytes", team->saver,
                        (long long)offers[rank].bytes);
    if (!team->is_apart || is_alike(&offers[rank], &offers[team->saver])) return gs_ok();
    if (!offers[team->saver].is_ready) return gs_error(GS_UNAVAILABLE, "rank %d, which would write this part, has nothing to save", team->saver);
    return gs_error(GS_UNAVAILABLE, "this rank's part of step %lld is none of what rank %d saves", (long long)offers[rank].step, team->saver);
}

static gs_status exchange_offers(gs_bringing *it, gs_deadline ready) {
    const gs_save_team *team = it->team;
    const offer mine = make_offer(it->mine);
    const gs_deadline usual = gs_deadline_in_seconds(team->timeout_seconds);
    GS_TRY(gather(it->offers, &mine, sizeof mine / sizeof(int64_t), team, ready.at_ns > usual.at_ns ? ready : usual));
    GS_TRY(check_offers(team, it->offers));
    int64_t count = 1;
    for (int rank = 0; rank < gs_comm_world_size(team->comm); rank++)
        if (it->offers[rank].num_tensors + it->offers[rank].num_own > count) count = it->offers[rank].num_tensors + it->offers[rank].num_own;
    it->ranges = calloc((size_t)count, sizeof *it->ranges);
    if (!is_saver(it)) it->piece = malloc(GS_INTAKE_PIECE_BYTES);
    if (!it->ranges || (!it->piece && !is_saver(it))) return let_go(team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    turn_to(it, 0);
    return gs_ok();
}

gs_status gs_save_team_begin(gs_bringing **out, const gs_save_team *team, const gs_state_snapshot *mine, gs_part_intake *intake,
                             gs_deadline ready) {
    int world_size = gs_comm_world_size(team->comm);
    gs_bringing *it = calloc(1, sizeof *it);
    gs_status status = it ? gs_ok() : let_go(team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    if (status.code) return status;
    *it = (gs_bringing){.team = team, .mine = mine, .intake = intake, .from = world_size};
    it->offers = calloc((size_t)world_size, sizeof *it->offers);
    it->refused = calloc((size_t)world_size, sizeof *it->refused);
    if (!it->offers || !it->refused) status = let_go(team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    if (!status.code) status = exchange_offers(it, ready);
    if (status.code) {
        it->intake = NULL;
        gs_save_team_part(it);
        return status;
    }
    *out = it;
    return note_end(it, status);
}

void gs_save_team_part(gs_bringing *it) {
    if (!it) return;
    end_intake(it, gs_error(GS_ABORTED, "the ranks have parted before all came that was to be saved"));
    gs_digest_stream_destroy(it->stream);
    free(it->offers);
    free(it->ranges);
    free(it->piece);
    free(it->refused);
    free(it);
}
