#include "coordinator/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_round(gs_exchange_round *round) {
    for (int i = 0; round->entries && i < round->num_ranks; i++) gs_json_release(round->entries[i].bytes);
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

// Those that the request names, all of the run where it names none. The caller frees them.
static gs_status read_ranks(int **ranks, int *num_ranks, int world_size, int rank, const gs_json *request) {
    const gs_json *named = gs_json_get(request, "ranks");
    size_t count = named ? gs_json_count(named) : (size_t)world_size;
    if (count < 1 || count > (size_t)world_size)
        return gs_error(GS_INVALID_ARGUMENT, "exchange: %zu ranks of %d", count, world_size);
    int *list = calloc(count, sizeof *list);
    if (!list) return gs_error(GS_RESOURCE_EXHAUSTED, "exchange: out of memory");
    bool is_member = false;
    gs_status status = gs_ok();
    for (size_t i = 0; i < count && !status.code; i++) {
        int64_t one = (int64_t)i;
        if (named && !gs_json_int(&one, gs_json_at(named, i))) one = -1;
        if (one < 0 || one >= world_size || (i > 0 && one <= list[i - 1])) {
            status = gs_error(GS_INVALID_ARGUMENT, "exchange: ranks must ascend, from 0 to %d", world_size - 1);
            break;
        }
        list[i] = (int)one;
        is_member |= one == rank;
    }
    if (!status.code && !is_member)
        status = gs_error(GS_INVALID_ARGUMENT, "exchange: rank %d is not among the ranks", rank);
    if (status.code) {
        free(list);
        return status;
    }
    *ranks = list;
    *num_ranks = (int)count;
    return gs_ok();
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

// Takes `ranks`, also after an error.
static gs_status open_round(gs_exchange_round **rounds, gs_exchange_round **out, const char *tag, int *ranks,
                            int num_ranks) {
    gs_exchange_round *round = calloc(1, sizeof *round);
    if (round) round->entries = calloc((size_t)num_ranks, sizeof *round->entries);
    if (!round || !round->entries) {
        free(round);
        free(ranks);
        return gs_error(GS_RESOURCE_EXHAUSTED, "exchange: out of memory");
    }
    snprintf(round->tag, sizeof round->tag, "%s", tag);
    round->ranks = ranks;
    round->num_ranks = num_ranks;
    round->next = *rounds;
    *out = *rounds = round;
    return gs_ok();
}

static void end_calls(gs_exchange_round *round, gs_status status) {
    for (int i = 0; i < round->num_ranks; i++) {
        if (round->entries[i].call) gs_rpc_reply(round->entries[i].call, status, NULL);
        round->entries[i].call = NULL;
    }
}

// The round of the request; FAILED_PRECONDITION, for all who are in it or still come, where this
// rank means others by it.
static gs_status enter_round(gs_exchange_round **rounds, gs_exchange_round **out, int world_size, int rank,
                             const gs_json *request) {
    const char *tag = gs_json_string_or(request, "tag", "");
    int *ranks = NULL, num_ranks = 0;
    GS_TRY(read_ranks(&ranks, &num_ranks, world_size, rank, request));
    gs_exchange_round *round = find_round(*rounds, tag);
    if (!round && count_open(*rounds, rank) < GS_EXCHANGE_MOST_OPEN)
        return open_round(rounds, out, tag, ranks, num_ranks);
    gs_status status = round ? round->refusal
                             : gs_error(GS_RESOURCE_EXHAUSTED, "exchange: rank %d has %d open", rank,
                                        GS_EXCHANGE_MOST_OPEN);
    if (round && !status.code &&
        (num_ranks != round->num_ranks || memcmp(ranks, round->ranks, (size_t)num_ranks * sizeof *ranks) != 0)) {
        status = round->refusal = gs_error(GS_FAILED_PRECONDITION, "exchange %s: rank %d means other ranks than "
                                           "those before it", tag, rank);
        end_calls(round, status);
    }
    free(ranks);
    *out = round;
    return status;
}

static void forget_call(void *owner, gs_rpc_call_handle *call) {
    gs_exchange_entry *entry = owner;
    if (entry->call == call) entry->call = NULL;
}

gs_status gs_exchange_join(gs_exchange_round **rounds, gs_exchange_round **complete, int world_size, int rank,
                           const gs_json *request, gs_rpc_call_handle *call) {
    *complete = NULL;
    const char *bytes = gs_json_string_or(request, "bytes", NULL);
    if (!bytes || strlen(gs_json_string_or(request, "tag", "")) >= GS_EXCHANGE_TAG_BYTES)
        return gs_error(GS_INVALID_ARGUMENT, "exchange: bytes must be base64, tag below %d", GS_EXCHANGE_TAG_BYTES);
    gs_exchange_round *round = NULL;
    GS_TRY(enter_round(rounds, &round, world_size, rank, request));
    gs_exchange_entry *entry = &round->entries[place_of(round, rank)];
    if (entry->call) gs_rpc_reply(entry->call, gs_error(GS_ABORTED, "exchanged again"), NULL);
    if (!entry->bytes) round->num_arrived++;
    gs_json_release(entry->bytes);
    entry->bytes = gs_json_new_string(bytes);
    entry->call = call;
    if (call) gs_held_keep(&entry->held, call, forget_call, entry);
    if (round->num_arrived == round->num_ranks) *complete = round;
    return gs_ok();
}

void gs_exchange_answer(gs_exchange_round **rounds, gs_exchange_round *complete) {
    gs_json *all = gs_json_new_array();
    for (int i = 0; i < complete->num_ranks; i++) gs_json_push(all, gs_json_retain(complete->entries[i].bytes));
    for (int i = 0; i < complete->num_ranks; i++) {
        if (!complete->entries[i].call) continue;
        gs_json *reply = gs_json_new_object();
        gs_json_set(reply, "all", gs_json_retain(all));
        gs_rpc_reply(complete->entries[i].call, gs_ok(), reply);
    }
    gs_json_release(all);
    gs_exchange_round **link = rounds;
    while (*link != complete) link = &(*link)->next;
    *link = complete->next;
    free_round(complete);
}

void gs_exchange_drop(gs_exchange_round **rounds, gs_status status) {
    while (*rounds) {
        gs_exchange_round *round = *rounds;
        *rounds = round->next;
        end_calls(round, status);
        free_round(round);
    }
}

void gs_exchange_part(gs_exchange_round *rounds) {
    for (; rounds; rounds = rounds->next) {
        for (int i = 0; i < rounds->num_ranks; i++) rounds->entries[i].call = NULL;
    }
}
