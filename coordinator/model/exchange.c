#include "coordinator/model/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "rpc/schema/messages.h"

void gs_exchange_free(gs_exchange_round *round) {
    for (int i = 0; i < round->num_ranks; i++) free(round->entries[i].bytes);
    free(round->entries);
    free(round->ranks);
    free(round);
}

static int place_of(const gs_exchange_round *round, int rank) {
    for (int i = 0; i < round->num_ranks; i++) {
        if (round->ranks[i] == rank) return i;
    }
    return -1;
}

static bool names(const gs_exchange_request *request, int rank) {
    for (int i = 0; request->ranks && i < request->num_ranks; i++) {
        if (request->ranks[i] == rank) return true;
    }
    return !request->ranks;
}

static gs_status check_request(const gs_exchange_request *request, int world_size, int rank) {
    if (!request->bytes || strlen(request->tag) >= GS_EXCHANGE_TAG_BYTES)
        return gs_error(GS_INVALID_ARGUMENT, "exchange: bytes must be base64, tag below %d", GS_EXCHANGE_TAG_BYTES);
    if (request->ranks && (request->num_ranks < 1 || request->num_ranks > world_size))
        return gs_error(GS_INVALID_ARGUMENT, "exchange: %d ranks of %d", request->num_ranks, world_size);
    for (int i = 0; request->ranks && i < request->num_ranks; i++) {
        int one = request->ranks[i];
        if (one < 0 || one >= world_size || (i > 0 && one <= request->ranks[i - 1]))
            return gs_error(GS_INVALID_ARGUMENT, "exchange: ranks must ascend, from 0 to %d", world_size - 1);
    }
    if (names(request, rank)) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "exchange: rank %d is not among the ranks", rank);
}

static gs_exchange_round *find_round(gs_exchange_round *rounds, const char *tag) {
    while (rounds && strcmp(rounds->tag, tag) != 0) rounds = rounds->next;
    return rounds;
}

static int count_open(const gs_exchange_round *rounds, int rank) {
    int num_open = 0;
    for (; rounds; rounds = rounds->next) {
        int place = place_of(rounds, rank);
        num_open += place >= 0 && rounds->entries[place].bytes;
    }
    return num_open;
}

static int rank_at(const gs_exchange_request *request, int place) {
    return request->ranks ? request->ranks[place] : place;
}

static gs_exchange_round *open_round(gs_exchange_round **rounds, const gs_exchange_request *request,
                                     int num_ranks) {
    gs_exchange_round *round = gs_model_alloc(1, sizeof *round);
    round->entries = gs_model_alloc((size_t)num_ranks, sizeof *round->entries);
    round->ranks = gs_model_alloc((size_t)num_ranks, sizeof *round->ranks);
    for (int i = 0; i < num_ranks; i++) round->ranks[i] = rank_at(request, i);
    snprintf(round->tag, sizeof round->tag, "%s", request->tag);
    round->num_ranks = num_ranks;
    round->next = *rounds;
    return *rounds = round;
}

static bool means_the_same(const gs_exchange_round *round, const gs_exchange_request *request, int num_ranks) {
    if (num_ranks != round->num_ranks) return false;
    for (int i = 0; i < num_ranks; i++) {
        if (round->ranks[i] != rank_at(request, i)) return false;
    }
    return true;
}

// As the answer has it: between quotes, before a comma.
static size_t bytes_of(const char *text) { return text ? strlen(text) + 3 : 0; }

// Takes what the rank of the entry gave. An answer that no message holds would come to nobody, when all have given theirs.
static gs_status take_bytes(gs_exchange_round *round, gs_exchange_entry *entry, gs_exchange_request *request) {
    round->bytes += bytes_of(request->bytes) - bytes_of(entry->bytes);
    if (!entry->bytes) round->num_arrived++;
    free(entry->bytes);
    entry->bytes = request->bytes;
    request->bytes = NULL;
    if (round->bytes <= GS_EXCHANGE_ANSWER_BYTES) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "exchange %s: %d of %d ranks gave more than the %zu bytes that an answer holds",
                    round->tag, round->num_arrived, round->num_ranks, GS_EXCHANGE_ANSWER_BYTES);
}

gs_status gs_exchange_enter(gs_exchange_round **rounds, gs_exchange_round **round, gs_exchange_entry **entry,
                            int world_size, int rank, gs_exchange_request *request) {
    *round = NULL;
    *entry = NULL;
    GS_TRY(check_request(request, world_size, rank));
    int num_ranks = request->ranks ? request->num_ranks : world_size;
    gs_exchange_round *found = find_round(*rounds, request->tag);
    if (found && found->refusal.code) return found->refusal;
    if (!found && count_open(*rounds, rank) >= GS_EXCHANGE_MOST_OPEN)
        return gs_error(GS_RESOURCE_EXHAUSTED, "exchange: rank %d has %d open", rank, GS_EXCHANGE_MOST_OPEN);
    if (!found) found = open_round(rounds, request, num_ranks);
    *round = found;
    if (!means_the_same(found, request, num_ranks)) {
        found->refusal = gs_error(GS_FAILED_PRECONDITION, "exchange %s: rank %d means other ranks than "
                                  "those before it", request->tag, rank);
        return found->refusal;
    }
    *entry = &found->entries[place_of(found, rank)];
    found->refusal = take_bytes(found, *entry, request);
    return found->refusal;
}

void gs_exchange_unlink(gs_exchange_round **rounds, gs_exchange_round *round) {
    gs_exchange_round **link = rounds;
    while (*link != round) link = &(*link)->next;
    *link = round->next;
    round->next = NULL;
}
