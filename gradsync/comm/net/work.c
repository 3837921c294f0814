#include "gradsync/comm/net/work.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/comm/net/aside.h"

// Before other lanes and the network have their turn.
#define SEGMENTS_PER_TURN 4
#define MOST_SAID_BYTES (sizeof(gs_collective_claim) + GS_NET_SMALL_BYTES)
_Static_assert(sizeof(gs_collective_claim) == 56, "claims travel as they lie in memory");

gs_net_work *gs_net_work_create(gs_net_party *party, int lane, uint64_t sequence) {
    gs_net_work *work = calloc(1, sizeof *work + (size_t)party->world_size * sizeof *work->sides);
    if (!work) return NULL;
    work->party = party;
    work->lane = lane;
    work->sequence = sequence;
    return work;
}

void gs_net_work_destroy(gs_net_work *work) {
    if (!work) return;
    for (int i = 0; i < work->party->world_size; i++) free(work->sides[i].said);
    gs_net_store_give_back(&work->party->store, work->hold);
    gs_net_store_give_back(&work->party->store, work->stage);
    gs_net_store_give_back(&work->party->store, work->wire);
    gs_net_store_give_back(&work->party->store, work->kept);
    free(work);
}

static gs_net_header header_of(const gs_net_work *work, gs_net_kind kind, uint64_t bytes) {
    return (gs_net_header){.kind = (uint8_t)kind,
                           .lane = (uint8_t)work->lane,
                           .input = (uint16_t)work->party->rank,
                           .sequence = work->sequence,
                           .bytes = bytes};
}

static gs_status send_to(gs_net_work *work, int peer, gs_net_header header, const void *body,
                         uint32_t *pending) {
    return gs_net_transport_send(work->party->transport, peer, &header, body, pending);
}

// Own elements as they are sent: rounded into `wire` where there is a wire dtype.
static const unsigned char *own_as_sent(gs_net_work *work, int input, gs_net_range range) {
    const gs_collective *collective = &work->collective;
    const unsigned char *own = gs_net_course_own_input(&work->course, input, range.first);
    if (!collective->wire_dtype) return own;
    unsigned char *wire =
        (unsigned char *)work->wire.data + range.first * work->course.element_bytes;
    gs_device *device = work->party->device;
    gs_collective_cast_to_wire(collective, gs_device_kernels(device), gs_device_stream(device),
                               wire, own, range.count);
    return wire;
}

// A claim, and behind it, where nothing is cut, the own inputs one after the other.
static gs_status say_claim(gs_net_work *work, int peer, const gs_collective_claim *claim,
                           unsigned char *body) {
    const gs_net_course *course = &work->course;
    size_t bytes = sizeof *claim;
    memcpy(body, claim, sizeof *claim);
    gs_net_range range = {0, 0};
    if (course->is_small) range = gs_net_course_said(course, course->rank, peer);
    for (int i = 0; range.count && i < course->num_inputs; i++) {
        bool is_own =
            !course->reduces || gs_net_course_rank_of_input(course, i, peer) == course->rank;
        if (!is_own) continue;
        memcpy(body + bytes, own_as_sent(work, i, range), range.count * course->element_bytes);
        bytes += range.count * course->element_bytes;
    }
    return send_to(work, peer, header_of(work, GS_NET_CLAIM, bytes), body,
                   &work->sides[peer].pending);
}

static gs_status take_wire(gs_net_work *work) {
    size_t bytes = gs_net_course_row_count(&work->course) * work->course.element_bytes;
    work->wire = gs_net_store_take(&work->party->store, bytes);
    return work->wire.data ? gs_ok()
                           : gs_error(GS_RESOURCE_EXHAUSTED, "rounded gradients: out of memory");
}

static gs_collective_claim claim_of(const gs_net_work *work) {
    gs_collective_claim claim =
        gs_collective_claim_of(&work->collective, work->party->generation);
    claim.shares = work->course.shares ? work->course.shares->digest : 0;
    return claim;
}

gs_status gs_net_work_post(gs_net_work *work, const gs_collective *collective,
                           const gs_net_shares *shares) {
    gs_net_party *party = work->party;
    unsigned char body[MOST_SAID_BYTES];
    work->collective = *collective;
    work->course = gs_net_course_of(&work->collective, party->rank, party->world_size);
    work->course.shares = shares;
    work->is_posted = true;
    GS_FAILPOINT("comm.publish");
    if (collective->wire_dtype) GS_TRY(take_wire(work));
    gs_collective_claim claim = claim_of(work);
    for (int i = 0; i < party->world_size; i++) {
        if (i != party->rank) GS_TRY(say_claim(work, i, &claim, body));
    }
    return gs_ok();
}

gs_comm_failure gs_net_work_failure(const gs_net_work *work, gs_comm_failure_kind kind) {
    return (gs_comm_failure){.kind = kind,
                             .reporter = work->party->rank,
                             .lane = work->lane,
                             .sequence = work->sequence,
                             .step = work->is_posted ? work->collective.step : 0,
                             .bucket = work->is_posted ? work->collective.bucket : -1};
}

static gs_status blame_minority(const gs_net_work *work, const gs_collective_claim *const *claims,
                                gs_comm_failure *cause) {
    int world_size = work->party->world_size, culprit = -1;
    int meant = gs_collective_claims_find_meant(claims, world_size);
    *cause = gs_net_work_failure(work, GS_COMM_FAILURE_MISMATCH);
    for (int i = world_size - 1; i >= 0; i--) {
        if (memcmp(claims[i], claims[meant], sizeof *claims[i]) == 0) continue;
        gs_comm_failure_accuse(cause, i);
        culprit = i;
    }
    cause->step = claims[meant]->step;  // of what was meant, whoever says so
    cause->bucket = claims[meant]->bucket;
    char name[48], theirs[104], ours[104];
    gs_work_name(name, sizeof name, (gs_work){work->sequence, work->lane});
    gs_collective_claim_describe(theirs, sizeof theirs, claims[culprit]);
    gs_collective_claim_describe(ours, sizeof ours, claims[meant]);
    return gs_error(GS_FAILED_PRECONDITION, "%s: rank %d posted %s; rank %d %s", name, culprit,
                    theirs, meant, ours);
}

static gs_status blame_damage(const gs_net_work *work, int peer, const char *what) {
    char name[48];
    gs_work_name(name, sizeof name, (gs_work){work->sequence, work->lane});
    return gs_error(GS_DATA_LOSS, "%s: rank %d %s", name, peer, what);
}

static size_t bytes_said(const gs_net_work *work, int from) {
    const gs_net_course *course = &work->course;
    if (!course->is_small) return 0;
    gs_net_range range = gs_net_course_said(course, from, course->rank);
    size_t num_inputs = course->reduces
                            ? (size_t)gs_net_course_num_inputs_of(course, from, course->rank)
                            : (range.count ? 1 : 0);
    return range.count * course->element_bytes * num_inputs;
}

static gs_status check_claims(const gs_net_work *work, gs_comm_failure *cause) {
    const gs_net_party *party = work->party;
    const gs_collective_claim *claims[GS_REDUCE_MAX_INPUTS];
    gs_collective_claim own = claim_of(work);
    bool equal = true;
    for (int i = 0; i < party->world_size; i++) {
        claims[i] = i == party->rank ? &own : &work->sides[i].claim;
        equal &= memcmp(claims[i], &own, sizeof own) == 0;
    }
    if (!equal) return blame_minority(work, claims, cause);
    for (int i = 0; i < party->world_size; i++) {
        if (i == party->rank || work->sides[i].said_bytes == sizeof own + bytes_said(work, i))
            continue;
        *cause = gs_net_work_failure(work, GS_COMM_FAILURE_DAMAGED);
        gs_comm_failure_accuse(cause, i);
        return blame_damage(work, i, "said more or less than its claim");
    }
    return gs_ok();
}

static void reduce(const gs_net_work *work, void *output, const void *const *inputs, size_t count) {
    const gs_collective *collective = &work->collective;
    gs_device *device = work->party->device;
    gs_reduction reduction = {.outputs = &output,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = work->course.num_inputs,
                              .merges = collective->tree ? collective->tree->merges : NULL,
                              .dtype = gs_collective_sent_dtype(collective),
                              .op = collective->op,
                              .scale = collective->scale != 0 ? collective->scale : 1,
                              .count = count};
    gs_device_kernels(device)->reduce(gs_device_stream(device), &reduction);
}

static unsigned char *result_at(const gs_net_work *work, size_t element) {
    return work->result + (element - work->result_first) * work->result_bytes;
}

// The result into recv, where it is not there yet.
static void store_result(const gs_net_work *work) {
    const gs_collective *collective = &work->collective;
    gs_net_range range = gs_net_course_received(&work->course);
    if (!range.count || work->result == collective->recv) return;
    const unsigned char *from = result_at(work, range.first);
    if (!collective->wire_dtype) {
        memcpy(collective->recv, from, range.count * work->result_bytes);
        return;
    }
    gs_device *device = work->party->device;
    gs_device_kernels(device)->cast(gs_device_stream(device), collective->recv, collective->dtype,
                                    from, collective->wire_dtype, 1, range.count);
}

static bool is_in_place(const gs_net_work *work) {
    const gs_collective *collective = &work->collective;
    size_t first = gs_net_course_received(&work->course).first * gs_dtype_bytes(collective->dtype);
    return collective->send && collective->recv == (const unsigned char *)collective->send + first;
}

// Where the result comes together.
static gs_status find_place(gs_net_work *work) {
    const gs_collective *collective = &work->collective;
    const gs_net_course *course = &work->course;
    gs_net_range range = gs_net_course_received(course);
    if (work->result) return gs_ok();
    work->result_bytes = course->element_bytes;
    if (course->reduces && collective->wire_dtype) {
        work->result = work->wire.data;
        return gs_ok();
    }
    gs_net_range held =
        range.count ? (gs_net_range){0, 0} : gs_net_course_slice(course, course->rank);
    work->result_first = range.count ? range.first : held.first;
    work->result = collective->recv;
    size_t kept = course->reduces && is_in_place(work) ? range.count : 0;
    if (held.count) {
        work->hold = gs_net_store_take(&work->party->store, held.count * course->element_bytes);
        work->result = work->hold.data;
    }
    if (kept) work->kept = gs_net_store_take(&work->party->store, kept * course->element_bytes);
    return (!held.count || work->hold.data) && (!kept || work->kept.data)
               ? gs_ok()
               : gs_error(GS_RESOURCE_EXHAUSTED, "result of a collective: out of memory");
}

static unsigned char *kept_at(const gs_net_work *work, size_t element) {
    return (unsigned char *)work->kept.data + (element - work->result_first) * work->result_bytes;
}

// Before a result goes there.
static void keep(const gs_net_work *work, gs_net_range range) {
    if (work->kept.data)
        gs_net_copy_aside(kept_at(work, range.first), result_at(work, range.first),
               range.count * work->result_bytes);
}

static void copy_own_part(const gs_net_work *work) {
    const gs_net_course *course = &work->course;
    const gs_collective *collective = &work->collective;
    if (course->reduces || !collective->count) return;
    bool is_root = collective->kind == GS_BROADCAST && collective->root == course->rank;
    if (collective->kind == GS_BROADCAST && !is_root) return;
    size_t first = collective->kind == GS_ALLGATHER ? collective->count * (size_t)course->rank : 0;
    unsigned char *to = (unsigned char *)collective->recv + first * course->element_bytes;
    if (to != collective->send)
        memcpy(to, collective->send, collective->count * course->element_bytes);
}

// Nothing is cut: all is there with the claims.
static void reduce_small(gs_net_work *work) {
    const gs_net_course *course = &work->course;
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    gs_net_range range = gs_net_course_received(course);
    size_t taken[GS_REDUCE_MAX_INPUTS] = {0}, bytes = range.count * course->element_bytes;
    if (!range.count) return;
    for (int i = 0; i < course->num_inputs; i++) {
        int rank = gs_net_course_rank_of_input(course, i, course->rank);
        inputs[i] = rank == course->rank ? own_as_sent(work, i, range)
                                         : work->sides[rank].said + sizeof(gs_collective_claim) +
                                               taken[rank]++ * bytes;
    }
    // Nothing can fail between the first byte and the last, so the result may go over an input.
    bool rounds = work->collective.wire_dtype != GS_DTYPE_UNSET;
    work->result = rounds ? work->wire.data : work->collective.recv;
    work->result_first = rounds ? 0 : range.first;
    work->result_bytes = course->element_bytes;
    reduce(work, result_at(work, range.first), inputs, range.count);
}

static void take_small(gs_net_work *work) {
    const gs_net_course *course = &work->course;
    const gs_collective *collective = &work->collective;
    work->result = collective->recv;
    work->result_bytes = course->element_bytes;
    for (int i = 0; i < course->world_size; i++) {
        gs_net_range range = gs_net_course_said(course, i, course->rank);
        if (i == course->rank || !range.count) continue;
        memcpy((unsigned char *)collective->recv + range.first * course->element_bytes,
               work->sides[i].said + sizeof(gs_collective_claim),
               range.count * course->element_bytes);
    }
}

static size_t stage_bytes(const gs_net_work *work) {
    return work->course.segment_count * work->course.element_bytes;
}

static unsigned char *stage_at(const gs_net_work *work, uint32_t segment, int input) {
    size_t slot =
        (size_t)(segment % GS_NET_WINDOW) * (size_t)work->course.num_inputs + (size_t)input;
    return (unsigned char *)work->stage.data + slot * stage_bytes(work);
}

// Room for peers' inputs of the own slice, and word that they may come.
static gs_status invite_inputs(gs_net_work *work, uint32_t granted) {
    const gs_net_course *course = &work->course;
    gs_net_header grant = header_of(work, GS_NET_GRANT, 0);
    grant.segment = granted < work->num_segments ? granted : work->num_segments;
    for (int i = 0; i < course->world_size; i++) {
        if (i != course->rank && gs_net_course_num_inputs_of(course, i, course->rank))
            GS_TRY(send_to(work, i, grant, NULL, NULL));
    }
    return gs_ok();
}

static gs_status start_cut(gs_net_work *work) {
    const gs_net_course *course = &work->course;
    work->num_segments = gs_net_course_num_segments(course, course->rank);
    work->num_foreign = (uint32_t)(course->num_inputs -
                                   gs_net_course_num_inputs_of(course, course->rank, course->rank));
    GS_TRY(find_place(work));
    if (!work->num_segments || !work->num_foreign) return gs_ok();
    if (course->reduces) {
        work->stage = gs_net_store_take(
            &work->party->store, GS_NET_WINDOW * (size_t)course->num_inputs * stage_bytes(work));
        if (!work->stage.data)
            return gs_error(GS_RESOURCE_EXHAUSTED, "inputs of a collective: out of memory");
    }
    return invite_inputs(work, GS_NET_WINDOW);
}

// Of a segment of another's slice, unless recv has nothing of it.
static void keep_of(gs_net_work *work, int owner, uint32_t segment) {
    gs_net_side *side = &work->sides[owner];
    if (side->num_kept > segment || !gs_net_course_wants(&work->course, work->course.rank, owner))
        return;
    keep(work, gs_net_course_segment(&work->course, owner, segment));
    side->num_kept = segment + 1;
}

// As many segments of the own inputs as an owner has room for.
static gs_status give_inputs(gs_net_work *work, int owner) {
    const gs_net_course *course = &work->course;
    gs_net_side *side = &work->sides[owner];
    for (; side->given < side->granted; side->given++) {
        gs_net_range range = gs_net_course_segment(course, owner, side->given);
        gs_net_header header = header_of(work, GS_NET_INPUT, range.count * course->element_bytes);
        header.segment = side->given;
        for (int i = 0; i < course->num_inputs; i++) {
            if (gs_net_course_rank_of_input(course, i, owner) != course->rank) continue;
            header.input = (uint16_t)i;
            GS_TRY(send_to(work, owner, header, own_as_sent(work, i, range), &side->pending));
        }
        keep_of(work, owner, side->given);
    }
    return gs_ok();
}

gs_status gs_net_work_start(gs_net_work *work, gs_comm_failure *cause) {
    const gs_net_course *course = &work->course;
    GS_TRY(check_claims(work, cause));
    copy_own_part(work);
    if (!course->is_small) GS_TRY(start_cut(work));
    work->has_started = true;
    for (int i = 0; !course->is_small && i < course->world_size; i++)
        if (i != course->rank) GS_TRY(give_inputs(work, i));
    return gs_ok();
}

static gs_status reduce_segment(gs_net_work *work, uint32_t segment) {
    const gs_net_course *course = &work->course;
    gs_net_range range = gs_net_course_segment(course, course->rank, segment);
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    GS_FAILPOINT("comm.slice");
    for (int i = 0; course->reduces && i < course->num_inputs; i++) {
        bool is_own = gs_net_course_rank_of_input(course, i, course->rank) == course->rank;
        inputs[i] = is_own ? own_as_sent(work, i, range) : stage_at(work, segment, i);
    }
    keep(work, range);
    if (course->reduces) reduce(work, result_at(work, range.first), inputs, range.count);
    // It lies over the input: to be put back even if it cannot be sent.
    work->num_reduced++;
    gs_net_header header = header_of(work, GS_NET_RESULT, range.count * course->element_bytes);
    header.segment = segment;
    for (int i = 0; i < course->world_size; i++) {
        if (i == course->rank || !gs_net_course_wants(course, i, course->rank)) continue;
        GS_FAILPOINT("comm.gather");
        GS_TRY(send_to(work, i, header, result_at(work, range.first), &work->sides[i].pending));
    }
    return gs_ok();
}

gs_status gs_net_work_advance(gs_net_work *work, bool *moved) {
    for (int turn = 0; turn < SEGMENTS_PER_TURN && work->num_reduced < work->num_segments; turn++) {
        uint32_t *arrived = &work->arrived[work->num_reduced % GS_NET_WINDOW];
        if (*arrived < work->num_foreign) return gs_ok();
        GS_TRY(reduce_segment(work, work->num_reduced));
        *arrived = 0;
        *moved = true;
        if (work->num_foreign && work->num_reduced + GS_NET_WINDOW <= work->num_segments)
            GS_TRY(invite_inputs(work, work->num_reduced + GS_NET_WINDOW));
    }
    return gs_ok();
}

static bool has_all_results(const gs_net_work *work, int owner) {
    const gs_net_course *course = &work->course;
    return !gs_net_course_wants(course, course->rank, owner) ||
           work->sides[owner].num_results == gs_net_course_num_segments(course, owner);
}

static bool has_given_all(const gs_net_work *work, int owner) {
    const gs_net_course *course = &work->course;
    return !gs_net_course_num_inputs_of(course, course->rank, owner) ||
           work->sides[owner].given == gs_net_course_num_segments(course, owner);
}

static bool has_all_inputs(const gs_net_work *work, int peer) {
    const gs_net_course *course = &work->course;
    uint32_t num_inputs = (uint32_t)gs_net_course_num_inputs_of(course, peer, course->rank);
    return work->sides[peer].num_inputs == num_inputs * work->num_segments;
}

// Inputs that it was asked for.
static bool owes_inputs(const gs_net_work *work, int peer) {
    uint32_t asked = work->num_reduced + GS_NET_WINDOW;
    if (asked > work->num_segments) asked = work->num_segments;
    uint32_t num_inputs =
        (uint32_t)gs_net_course_num_inputs_of(&work->course, peer, work->course.rank);
    return work->sides[peer].num_inputs < num_inputs * asked;
}

gs_net_debts gs_net_work_debts(const gs_net_work *work) {
    gs_net_debts debts = {0};
    bool is_cut = work->has_started && !work->course.is_small;
    for (int i = 0; work->is_posted && i < work->party->world_size; i++) {
        const gs_net_side *side = &work->sides[i];
        if (i == work->party->rank) continue;
        if (!side->has_claimed)
            debts.absent |= gs_net_rank_bit(i);
        else if (side->pending || (is_cut && owes_inputs(work, i)))
            debts.own |= gs_net_rank_bit(i);
        else if (is_cut &&
                 !(has_all_results(work, i) && has_given_all(work, i) && has_all_inputs(work, i)))
            debts.sums |= gs_net_rank_bit(i);
    }
    return debts;
}

bool gs_net_work_is_complete(const gs_net_work *work) {
    bool is_small = work->course.is_small;
    if (!work->has_started || work->num_reduced < work->num_segments) return false;
    for (int i = 0; i < work->party->world_size; i++) {
        if (i == work->party->rank) continue;
        if (work->sides[i].pending) return false;
        if (!is_small && (!has_all_results(work, i) || !has_given_all(work, i))) return false;
    }
    return true;
}

void gs_net_work_finish(gs_net_work *work) {
    if (work->course.is_small && work->course.reduces)
        reduce_small(work);
    else if (work->course.is_small)
        take_small(work);
    if (work->collective.kind != GS_BARRIER) store_result(work);
}

void gs_net_work_restore(gs_net_work *work) {
    const gs_net_course *course = &work->course;
    if (!work->kept.data) return;
    for (int owner = 0; owner < course->world_size; owner++) {
        bool is_own = owner == course->rank;
        uint32_t num_overwritten = is_own ? work->num_reduced : work->sides[owner].num_placed;
        for (uint32_t i = 0; i < num_overwritten; i++) {
            gs_net_range range = gs_net_course_segment(course, owner, i);
            memcpy(result_at(work, range.first), kept_at(work, range.first),
                   range.count * work->result_bytes);
        }
    }
}

static gs_status place_input(gs_net_work *work, int peer, const gs_net_header *header,
                             void **body) {
    const gs_net_course *course = &work->course;
    uint32_t segment = header->segment;
    bool is_due = work->has_started && !course->is_small && segment < work->num_segments &&
                  segment >= work->num_reduced && segment - work->num_reduced < GS_NET_WINDOW &&
                  header->input < course->num_inputs &&
                  gs_net_course_rank_of_input(course, header->input, course->rank) == peer;
    uint32_t own = is_due ? (uint32_t)gs_net_course_num_inputs_of(course, peer, course->rank) : 1;
    if (!is_due || work->sides[peer].num_inputs / own != segment)
        return blame_damage(work, peer, "sent an input that was not asked for");
    gs_net_range range = gs_net_course_segment(course, course->rank, segment);
    if (header->bytes != range.count * course->element_bytes)
        return blame_damage(work, peer, "sent an input of another length");
    *body = course->reduces ? stage_at(work, segment, header->input) : result_at(work, range.first);
    return gs_ok();
}

static gs_status place_result(gs_net_work *work, int peer, const gs_net_header *header,
                              void **body) {
    const gs_net_course *course = &work->course;
    bool is_due = work->is_posted && !course->is_small &&
                  gs_net_course_wants(course, course->rank, peer) &&
                  header->segment == work->sides[peer].num_results &&
                  header->segment < gs_net_course_num_segments(course, peer) &&
                  (!gs_net_course_num_inputs_of(course, course->rank, peer) ||
                   header->segment < work->sides[peer].given);
    if (!is_due) return blame_damage(work, peer, "sent a result that was not asked for");
    gs_net_range range = gs_net_course_segment(course, peer, header->segment);
    if (header->bytes != range.count * course->element_bytes)
        return blame_damage(work, peer, "sent a result of another length");
    GS_TRY(find_place(work));
    keep_of(work, peer, header->segment);
    work->sides[peer].num_placed = header->segment + 1;
    *body = result_at(work, range.first);
    return gs_ok();
}

static gs_status place_claim(gs_net_work *work, int peer, const gs_net_header *header,
                             void **body) {
    gs_net_side *side = &work->sides[peer];
    if (side->said || header->bytes < sizeof side->claim || header->bytes > MOST_SAID_BYTES)
        return blame_damage(work, peer, "made a claim that cannot be");
    side->said = malloc(header->bytes);
    if (!side->said)
        return gs_error(GS_RESOURCE_EXHAUSTED, "claim of rank %d: out of memory", peer);
    side->said_bytes = header->bytes;
    *body = side->said;
    return gs_ok();
}

gs_status gs_net_work_place(gs_net_work *work, int peer, const gs_net_header *header, void **body) {
    switch (header->kind) {
    case GS_NET_CLAIM:
        return place_claim(work, peer, header, body);
    case GS_NET_INPUT:
        return place_input(work, peer, header, body);
    case GS_NET_RESULT:
        return place_result(work, peer, header, body);
    default:
        return header->bytes ? blame_damage(work, peer, "sent what cannot be") : gs_ok();
    }
}

gs_status gs_net_work_came(gs_net_work *work, int peer, const gs_net_header *header) {
    gs_net_side *side = &work->sides[peer];
    switch (header->kind) {
    case GS_NET_CLAIM:
        memcpy(&side->claim, side->said, sizeof side->claim);
        side->has_claimed = true;
        work->num_claims++;
        return gs_ok();
    case GS_NET_INPUT:
        side->num_inputs++;
        work->arrived[header->segment % GS_NET_WINDOW]++;
        return gs_ok();
    case GS_NET_RESULT:
        side->num_results++;
        return gs_ok();
    default:
        if (!work->is_posted || header->segment < side->granted ||
            header->segment > gs_net_course_num_segments(&work->course, peer))
            return blame_damage(work, peer, "asked for what is not there");
        side->granted = header->segment;
        return work->has_started ? give_inputs(work, peer) : gs_ok();
    }
}
