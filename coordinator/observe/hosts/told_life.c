#include "coordinator/observe/hosts/told_life.h"

#include <string.h>

void gs_item_prove_life(gs_json *item, const char *key, const gs_key_gate *gate, const gs_cluster *cluster, int64_t generations_end) {
    char proof[GS_LIFE_PROOF_BYTES];
    if (!gate) return;
    gs_key_gate_prove(gate, proof, &(gs_told_life){cluster->id, cluster->epoch, cluster->life, generations_end});
    gs_json_set_string(item, key, proof);
}

void gs_told_life_check(gs_seen_life *seen, const gs_key_gate *gate, const gs_principal *principal, const gs_json *hello) {
    const gs_told_life told = {seen->cluster, seen->epoch, seen->life, 0};
    seen->is_doubtful = principal->is_known && !gs_key_gate_has_proven(gate, gs_json_string_or(hello, "seen_proof", ""), &told);
}

// What this life has given out itself shows nothing: it reserves more than it has used.
static int64_t shown_end(const gs_key_gate *gate, const gs_cluster *cluster, const gs_json *numbers) {
    gs_told_life told = {.cluster = cluster->id, .epoch = gs_json_int_or(numbers, "coordinator_epoch", 0),
                         .generations_end = gs_json_int_or(numbers, "end", 0)};
    if (gs_json_read_u64(&told.life, numbers, "coordinator_life").code || told.generations_end <= 0) return 0;
    if (told.epoch == (int64_t)cluster->epoch && told.life == cluster->life) return 0;
    return gs_key_gate_has_proven(gate, gs_json_string_or(numbers, "proof", ""), &told) ? told.generations_end : 0;
}

void gs_told_numbers_check(gs_agent_hello *hello, const gs_key_gate *gate, const gs_cluster *cluster, const gs_json *request) {
    const gs_json *list = gs_json_get(request, "running");
    for (size_t i = 0; i < gs_json_count(list); i++) {
        int64_t end = shown_end(gate, cluster, gs_json_get(gs_json_at(list, i), "numbers"));
        if (end > hello->proven_end) hello->proven_end = end;
    }
}
