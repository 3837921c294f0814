#include "coordinator/fault.h"

static void accuse(gs_fault_facts *facts, int64_t rank) {
    if (rank < 0 || rank >= GS_FAULT_MAX_RANKS) return;
    facts->accused[rank / 64] |= UINT64_C(1) << (rank % 64);
}

static bool is_accused(const gs_fault_facts *facts, int rank) {
    return facts->accused[rank / 64] >> (rank % 64) & 1;
}

gs_fault_facts gs_fault_facts_of(gs_fault_kind kind, int accused) {
    gs_fault_facts facts = {.kind = kind, .reporter = -1, .bucket = -1};
    accuse(&facts, accused);
    return facts;
}

static int rank_in(const gs_json *message, const char *key, int fallback, int num_ranks) {
    int64_t rank = gs_json_int_or(message, key, fallback);
    return rank >= 0 && rank < num_ranks ? (int)rank : fallback;
}

gs_fault_facts gs_fault_facts_read(const gs_json *message, int sender, int num_ranks) {
    gs_fault_facts facts =
        gs_fault_facts_of(gs_fault_kind_of(gs_json_string_or(message, "kind", "")), -1);
    facts.reporter = rank_in(message, "reporter", sender, num_ranks);
    int64_t collective = gs_json_int_or(message, "collective", 0);
    if (collective > 0) {
        facts.collective = (uint64_t)collective;
        facts.lane = (int)gs_json_int_or(message, "lane", 0);
        facts.step = gs_json_int_or(message, "collective_step", 0);
        facts.bucket = (int)gs_json_int_or(message, "bucket", -1);
    }
    // A worker of before calls them so.
    const gs_json *accused = gs_json_get(message, "accused");
    if (!accused) accused = gs_json_get(message, "suspects");
    for (size_t i = 0; i < gs_json_count(accused); i++) {
        int64_t rank = -1;
        if (gs_json_int(&rank, gs_json_at(accused, i)) && rank < num_ranks) accuse(&facts, rank);
    }
    return facts;
}

void gs_fault_facts_write(gs_json *out, const gs_fault_facts *facts) {
    gs_json *accused = gs_json_new_array();
    for (int rank = 0; rank < GS_FAULT_MAX_RANKS; rank++) {
        if (is_accused(facts, rank)) gs_json_push(accused, gs_json_new_int(rank));
    }
    gs_json_set_string(out, "kind", gs_fault_kind_name(facts->kind));
    gs_json_set(out, "accused", accused);
    if (facts->reporter >= 0) gs_json_set_int(out, "reporter", facts->reporter);
    if (!facts->collective) return;
    gs_json_set_int(out, "collective", (int64_t)facts->collective);
    gs_json_set_int(out, "lane", facts->lane);
    gs_json_set_int(out, "collective_step", facts->step);
    if (facts->bucket >= 0) gs_json_set_int(out, "bucket", facts->bucket);
}

int gs_fault_first_accused(const gs_fault_facts *facts) {
    for (int rank = 0; rank < GS_FAULT_MAX_RANKS; rank++) {
        if (is_accused(facts, rank)) return rank;
    }
    return -1;
}
