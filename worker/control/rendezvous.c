#include "worker/control/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/json/base64.h"
#include "rpc/json/json.h"
#include "worker/control/squeezed.h"

#define LENGTH_BYTES 4  // little-endian, in front of what is squeezed

// Who meets, and until when.
typedef struct meeting {
    gs_rpc_client *client;
    const gs_place *place;
    const char *tag;
    const int *ranks;
    int num_ranks;
    gs_deadline deadline;
} meeting;

// What a rank gave, as its pieces come in.
typedef struct contribution {
    unsigned char *data;  // owned; the length first
    size_t bytes, come;   // the former 0 until the first piece has said it
} contribution;

static int name_of(const meeting *it, int i) { return it->ranks ? it->ranks[i] : i; }

// Of each rank in one round: a text of it has four characters for three bytes, and stands between quotes, before a comma.
static size_t piece_bytes(int num_ranks) {
    size_t characters = GS_EXCHANGE_ANSWER_BYTES / (size_t)num_ranks;
    return characters > 3 ? (characters - 3) / 4 * 3 : 0;
}

static gs_json *make_request(const meeting *it, int round, const void *mine, size_t bytes) {
    char tag[128];
    gs_json *request = gs_json_new_object();
    if (round > 1) snprintf(tag, sizeof tag, "%.100s.%d", it->tag, round);
    gs_json_set_int(request, "generation", it->place->generation);
    gs_json_set_string(request, "tag", round > 1 ? tag : it->tag);
    gs_json_set_int(request, "rank", it->place->rank);
    gs_json_set_bytes(request, "bytes", mine, bytes);
    if (!it->ranks) return request;
    gs_json *list = gs_json_new_array();
    for (int i = 0; i < it->num_ranks; i++) gs_json_push(list, gs_json_new_int(it->ranks[i]));
    gs_json_set(request, "ranks", list);
    return request;
}

// The texts of all of them, in *reply.
static gs_status meet(const meeting *it, gs_json **reply, int round, const void *mine, size_t bytes) {
    gs_json *request = make_request(it, round, mine, bytes);
    gs_status status = gs_rpc_call(it->client, GS_EXCHANGE, request, reply, it->deadline);
    gs_json_release(request);
    if (status.code) return status;
    size_t count = gs_json_count(gs_json_get(*reply, "all"));
    if (count == (size_t)it->num_ranks) return gs_ok();
    return gs_error(GS_INTERNAL, "%zu answers for %d ranks", count, it->num_ranks);
}

// The bytes of one text are the caller's (free()).
static gs_status read_text(unsigned char **data, size_t *bytes, const gs_json *reply, int i) {
    const char *text = gs_json_string(gs_json_at(gs_json_get(reply, "all"), (size_t)i));
    *data = NULL;
    if (!text) return gs_error(GS_INVALID_ARGUMENT, "bytes: must be base64");
    *data = malloc(strlen(text) / 4 * 3 + 1);
    if (!*data) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (gs_base64_decode(*data, bytes, text)) return gs_ok();
    free(*data);
    *data = NULL;
    return gs_error(GS_INVALID_ARGUMENT, "bytes: must be base64");
}

static gs_status exchange_whole(const meeting *it, const void *mine, size_t bytes, void *all) {
    gs_json *reply = NULL;
    gs_status status = meet(it, &reply, 1, mine, bytes);
    for (int i = 0; !status.code && i < it->num_ranks; i++) {
        unsigned char *data;
        size_t data_bytes;
        status = read_text(&data, &data_bytes, reply, i);
        if (status.code) break;
        if (data_bytes == bytes && bytes) memcpy((char *)all + (size_t)i * bytes, data, bytes);
        free(data);
        if (data_bytes != bytes)
            status = gs_error(GS_FAILED_PRECONDITION, "rank %d sent %zu bytes instead of %zu", name_of(it, i), data_bytes, bytes);
    }
    gs_json_release(reply);
    return status;
}

// Its first piece says how long it is; `most_bytes` is what a rank of this build would say.
static gs_status begin_contribution(contribution *it, const unsigned char *piece, size_t bytes, size_t most_bytes) {
    size_t told = 0;
    for (size_t i = 0; i < LENGTH_BYTES && i < bytes; i++) told |= (size_t)piece[i] << (8 * i);
    if (bytes < LENGTH_BYTES || told > most_bytes) return gs_error(GS_FAILED_PRECONDITION, "another length");
    it->bytes = LENGTH_BYTES + told;
    it->data = malloc(it->bytes);
    return it->data ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
}

static gs_status take_piece(contribution *it, const unsigned char *piece, size_t bytes, size_t most_piece) {
    size_t left = it->bytes - it->come;
    if (bytes != (left < most_piece ? left : most_piece)) return gs_error(GS_FAILED_PRECONDITION, "another length");
    if (bytes) memcpy(it->data + it->come, piece, bytes);
    it->come += bytes;
    return gs_ok();
}

// One round. False in *more: all have given all.
static gs_status take_round(const meeting *it, contribution *given, bool *more, const gs_json *reply, size_t bytes) {
    size_t most_piece = piece_bytes(it->num_ranks);
    *more = false;
    for (int i = 0; i < it->num_ranks; i++) {
        unsigned char *piece;
        size_t count;
        GS_TRY(read_text(&piece, &count, reply, i));
        gs_status status = gs_ok();
        if (!given[i].data) status = begin_contribution(&given[i], piece, count, GS_SQUEEZED_MOST(bytes));
        if (!status.code) status = take_piece(&given[i], piece, count, most_piece);
        free(piece);
        if (status.code == GS_FAILED_PRECONDITION)
            return gs_error(status.code, "rank %d sent other than %zu bytes", name_of(it, i), bytes);
        GS_TRY(status);
        *more |= given[i].come < given[i].bytes;
    }
    return gs_ok();
}

static gs_status exchange_rounds(const meeting *it, contribution *given, const unsigned char *own, size_t own_bytes,
                                 size_t bytes) {
    size_t most_piece = piece_bytes(it->num_ranks), sent = 0;
    bool more = true;
    for (int round = 1; more; round++) {
        size_t left = own_bytes - sent, count = left < most_piece ? left : most_piece;
        gs_json *reply = NULL;
        gs_status status = meet(it, &reply, round, own + sent, count);
        if (!status.code) status = take_round(it, given, &more, reply, bytes);
        gs_json_release(reply);
        GS_TRY(status);
        sent += count;
    }
    return gs_ok();
}

static gs_status unfold(const meeting *it, const contribution *given, void *all, size_t bytes) {
    for (int i = 0; i < it->num_ranks; i++) {
        if (!gs_unsqueeze((char *)all + (size_t)i * bytes, bytes, given[i].data + LENGTH_BYTES, given[i].bytes - LENGTH_BYTES))
            return gs_error(GS_FAILED_PRECONDITION, "rank %d sent other than %zu bytes", name_of(it, i), bytes);
    }
    return gs_ok();
}

static gs_status exchange_pieces(const meeting *it, const void *mine, size_t bytes, void *all) {
    if (piece_bytes(it->num_ranks) <= LENGTH_BYTES)
        return gs_error(GS_INVALID_ARGUMENT, "%d ranks are more than an answer holds", it->num_ranks);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    contribution *given = calloc((size_t)it->num_ranks, sizeof *given);
    unsigned char *own = malloc(LENGTH_BYTES + GS_SQUEEZED_MOST(bytes));
    if (given && own) {
        size_t squeezed_bytes = gs_squeeze(own + LENGTH_BYTES, mine, bytes);
        for (size_t i = 0; i < LENGTH_BYTES; i++) own[i] = (unsigned char)(squeezed_bytes >> (8 * i));
        status = exchange_rounds(it, given, own, LENGTH_BYTES + squeezed_bytes, bytes);
        if (!status.code) status = unfold(it, given, all, bytes);
    }
    for (int i = 0; given && i < it->num_ranks; i++) free(given[i].data);
    free(given);
    free(own);
    return status;
}

gs_status gs_rendezvous_exchange(gs_rpc_client *client, const gs_place *place, const char *tag,
                                 const int *ranks, int num_ranks, const void *mine, size_t bytes,
                                 void *all, gs_deadline deadline) {
    const meeting it = {client, place, tag, ranks, num_ranks, deadline};
    bool fits = bytes <= piece_bytes(num_ranks);
    gs_status status = fits ? exchange_whole(&it, mine, bytes, all) : exchange_pieces(&it, mine, bytes, all);
    return gs_status_prefix(status, "exchange %s", tag);
}
