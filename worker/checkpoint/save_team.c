#include "worker/checkpoint/save_team.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "gradsync/comm/coalesce.h"
#include "worker/checkpoint/checkpoint.h"

#define PIECE_BYTES ((size_t)4 << 20)
#define MOST_TENSORS ((int64_t)1 << 20)

// What each rank says before anything travels.
typedef struct offer {
    int64_t is_ready, step, num_tensors, num_own, is_part, bytes;
} offer;

// Of one tensor, which elements come: a segment as it travels.
typedef struct range {
    int64_t first, count;
} range;

// One rank's part on its way, as every rank of the team sees it.
typedef struct bringing {
    const gs_save_team *team;
    const gs_state_snapshot *mine;  // NULL: not ready; on the sender and on the saver never
    int from;
    const offer *offers;  // by rank
    range *ranges;
    uint8_t *piece;
    bool *refused;  // by rank: the saver has no room for what it would bring, or could not write it
    const char *directory;
} bringing;

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

static gs_status broadcast_from(int rank, const bringing *it, void *data, size_t bytes) {
    const gs_tensor_view view = {data, bytes, GS_U8};
    return gs_coalesced_broadcast(it->team->comm, &view, 1, rank, 0, gs_deadline_in_seconds(it->team->timeout_seconds));
}

static gs_status broadcast(const bringing *it, void *data, size_t bytes) { return broadcast_from(it->from, it, data, bytes); }

// Bytes that come may be anything: nothing is made room for, or written, that is not of a tensor here.
static gs_status check_ranges(const bringing *it, const gs_state_snapshot *own) {
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

// A snapshot of rank `from` with room for what comes; digests, position and what does not travel are the saver's own.
static gs_status make_room(gs_state_snapshot *out, gs_spill **spill, const bringing *it) {
    const gs_state_snapshot *own = it->mine;
    size_t count = num_all(own);
    GS_FAILPOINT("save_team.room");
    *out = *own;
    out->bytes = 0;
    out->shares = (gs_share_range){.first = it->from, .count = own->shares.count ? 1 : 0, .world_size = own->shares.world_size};
    out->tensors = calloc(count + 1, sizeof *out->tensors);
    out->data = calloc(count + 1, sizeof *out->data);
    out->here = calloc(count + 1, sizeof *out->here);
    out->memory = NULL;
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
    gs_directory job;
    GS_TRY(gs_checkpoint_open_directory(&job, it->directory));
    gs_status status = gs_spill_open(spill, &job, (size_t)it->offers[it->from].bytes);
    gs_directory_close(&job);
    return status;
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

// What came to the saver and could not be kept stays away from what others bring: they go on, and hear of it behind the last piece.
static void keep_piece(gs_status *kept, gs_spill *spill, size_t first, const uint8_t *piece, size_t bytes) {
    if (!kept->code) *kept = gs_spill_write(spill, first, piece, bytes);
}

static gs_status bring_bytes(const bringing *it, gs_digest_stream *stream, gs_spill *spill, gs_status *kept) {
    int rank = gs_comm_rank(it->team->comm);
    size_t total = (size_t)it->offers[it->from].bytes;
    for (size_t first = 0; first < total; first += PIECE_BYTES) {
        size_t bytes = total - first < PIECE_BYTES ? total - first : PIECE_BYTES;
        if (rank == it->from) pack(it->piece, it->mine, first, bytes);
        GS_TRY(broadcast(it, it->piece, bytes));
        gs_digest_stream_add(stream, it->piece, bytes);
        if (spill) keep_piece(kept, spill, first, it->piece, bytes);
    }
    return gs_ok();
}

// Every rank of the team has seen all pieces, and compares.
static gs_status bring_stream(const bringing *it, gs_spill *spill, gs_status *kept) {
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return let_go(it->team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    gs_status status = bring_bytes(it, stream, spill, kept);
    const gs_digest found = gs_digest_stream_value(stream);
    gs_digest sent = found;
    gs_digest_stream_destroy(stream);
    if (!status.code) status = broadcast(it, &sent, sizeof sent);
    if (status.code || (sent.high == found.high && sent.low == found.low)) return status;
    return let_go(it->team, gs_error(GS_DATA_LOSS, "rank %d received something else than rank %d sent to be saved",
                                     gs_comm_rank(it->team->comm), it->from));
}

static gs_status bring_ranges(const bringing *it) {
    int64_t count = it->offers[it->from].num_tensors + it->offers[it->from].num_own;
    if (gs_comm_rank(it->team->comm) == it->from)
        for (int64_t i = 0; i < count; i++)
            it->ranges[i] = (range){(int64_t)it->mine->here[i].first, (int64_t)it->mine->here[i].count};
    return broadcast(it, it->ranges, (size_t)count * sizeof *it->ranges);
}

// A save that fails stops no training: what the saver has no room for, or cannot write, is left out, and all know it.
static gs_status agree_on_refusal(const bringing *it, gs_status of_saver) {
    uint8_t is_fine = !of_saver.code;
    if (of_saver.code) gs_log_warn("part not brought", "rank=%d reason=\"%s\"", it->from, of_saver.message);
    GS_TRY(broadcast_from(it->team->saver, it, &is_fine, sizeof is_fine));
    it->refused[it->from] = !is_fine;
    return gs_ok();
}

static gs_status bring_part(gs_state_snapshot *out, gs_spill **spill, const bringing *it) {
    gs_status kept = gs_ok();
    GS_TRY(bring_ranges(it));
    if (out) {
        gs_status status = check_ranges(it, it->mine);
        if (status.code) return let_go(it->team, status);
    }
    GS_TRY(agree_on_refusal(it, out ? make_room(out, spill, it) : gs_ok()));
    if (it->refused[it->from]) return gs_ok();
    GS_TRY(bring_stream(it, out ? *spill : NULL, &kept));
    return agree_on_refusal(it, kept);
}

static gs_status make_list(gs_brought_parts *brought, int count) {
    brought->ranks = calloc((size_t)count, sizeof *brought->ranks);
    brought->snapshots = calloc((size_t)count, sizeof *brought->snapshots);
    brought->spills = calloc((size_t)count, sizeof *brought->spills);
    return brought->ranks && brought->snapshots && brought->spills ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory");
}

static gs_status bring_all(gs_brought_parts *brought, bringing *it) {
    const gs_save_team *team = it->team;
    int rank = gs_comm_rank(team->comm);
    bool is_saver = rank == team->saver;
    for (int from = 0; from < gs_comm_world_size(team->comm); from++) {
        if (!team->apart[from] || !is_alike(&it->offers[from], &it->offers[team->saver])) continue;
        it->from = from;
        gs_state_snapshot *out = is_saver ? &brought->snapshots[brought->count] : NULL;
        gs_spill **spill = is_saver ? &brought->spills[brought->count] : NULL;
        if (is_saver) brought->ranks[brought->count++] = from;
        GS_TRY(bring_part(out, spill, it));
        if (is_saver && it->refused[from]) gs_brought_parts_drop(brought, --brought->count);
    }
    return gs_ok();
}

static gs_status find_refusal(const bringing *it) {
    const gs_save_team *team = it->team;
    const offer *offers = it->offers;
    if (it->refused[gs_comm_rank(team->comm)])
        return gs_error(GS_RESOURCE_EXHAUSTED, "rank %d, which would write this part, has no room for its %lld bytes, or could not keep them", team->saver,
                        (long long)offers[gs_comm_rank(team->comm)].bytes);
    if (!team->is_apart || is_alike(&offers[gs_comm_rank(team->comm)], &offers[team->saver])) return gs_ok();
    if (!offers[team->saver].is_ready) return gs_error(GS_UNAVAILABLE, "rank %d, which would write this part, has nothing to save", team->saver);
    return gs_error(GS_UNAVAILABLE, "this rank's part of step %lld is none of what rank %d saves", (long long)offers[gs_comm_rank(team->comm)].step,
                    team->saver);
}

static gs_status bring(gs_brought_parts *brought, bringing *it, offer *offers, gs_deadline ready) {
    const gs_save_team *team = it->team;
    const offer mine = make_offer(it->mine);
    const gs_deadline usual = gs_deadline_in_seconds(team->timeout_seconds);
    GS_TRY(gather(offers, &mine, sizeof mine / sizeof(int64_t), team, ready.at_ns > usual.at_ns ? ready : usual));
    GS_TRY(check_offers(team, offers));
    int64_t count = 1;
    for (int rank = 0; rank < gs_comm_world_size(team->comm); rank++)
        if (offers[rank].num_tensors + offers[rank].num_own > count) count = offers[rank].num_tensors + offers[rank].num_own;
    it->ranges = calloc((size_t)count, sizeof *it->ranges);
    it->piece = malloc(PIECE_BYTES);
    it->refused = calloc((size_t)gs_comm_world_size(team->comm), sizeof *it->refused);
    gs_status status = it->ranges && it->piece && it->refused ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory");
    if (!status.code && it->mine && gs_comm_rank(team->comm) == team->saver) status = make_list(brought, team->num_apart);
    if (status.code) return let_go(team, status);
    GS_TRY(bring_all(brought, it));
    return find_refusal(it);
}

gs_status gs_save_team_bring(gs_brought_parts *brought, const gs_save_team *team, const gs_state_snapshot *mine, const char *directory,
                             gs_deadline ready) {
    gs_brought_parts_release(brought);
    offer *offers = calloc((size_t)gs_comm_world_size(team->comm), sizeof *offers);
    if (!offers) return let_go(team, gs_error(GS_RESOURCE_EXHAUSTED, "save team: out of memory"));
    bringing it = {.team = team, .mine = mine, .offers = offers, .directory = directory};
    gs_status status = bring(brought, &it, offers, ready);
    free(it.ranges);
    free(it.piece);
    free(it.refused);
    free(offers);
    if (status.code) gs_brought_parts_release(brought);
    return status;
}

void gs_brought_parts_drop(gs_brought_parts *brought, int index) {
    gs_state_snapshot_release(&brought->snapshots[index]);
    gs_spill_close(brought->spills[index]);
    brought->spills[index] = NULL;
}

void gs_brought_parts_release(gs_brought_parts *brought) {
    for (int i = 0; i < brought->count; i++) gs_brought_parts_drop(brought, i);
    free(brought->spills);
    free(brought->ranks);
    free(brought->snapshots);
    *brought = (gs_brought_parts){0};
}
