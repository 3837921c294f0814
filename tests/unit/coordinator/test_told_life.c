// What a worker says of other lives of the coordinator counts with what a coordinator has given it for that, and no further.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/observe/hosts/told_life.h"
#include "tests/support/asserts.h"

// A gate is a thread and a socket; here its key is all.
static gs_curve_key secret = {{1, 2, 3, [17] = 9}};
static int any_gate;
#define GATE ((const gs_key_gate *)(const void *)&any_gate)

void __wrap_gs_key_gate_prove(const gs_key_gate *gate, char text[GS_LIFE_PROOF_BYTES], const gs_told_life *told);
bool __wrap_gs_key_gate_has_proven(const gs_key_gate *gate, const char *text, const gs_told_life *told);

void __wrap_gs_key_gate_prove(const gs_key_gate *gate, char text[GS_LIFE_PROOF_BYTES], const gs_told_life *told) {
    assert_ptr_equal(gate, GATE);
    gs_life_proof_make(text, &secret, told);
}

bool __wrap_gs_key_gate_has_proven(const gs_key_gate *gate, const char *text, const gs_told_life *told) {
    return gate && gs_life_proof_holds(text, &secret, told);
}

static const gs_principal keyed = {.is_known = true, .name = "w"};
static gs_cluster before = {.id = "c-1", .epoch = 4, .life = UINT64_C(0xfedcba9876543210)}, after = {.id = "c-1", .epoch = 5, .life = 77};

static gs_json *proof_of(const gs_cluster *cluster, int64_t end) {
    gs_json *item = gs_json_new_object();
    gs_item_prove_life(item, "seen_proof", GATE, cluster, end);
    return item;
}

static bool is_doubtful(const gs_principal *principal, gs_seen_life seen, const gs_json *hello) {
    gs_told_life_check(&seen, GATE, principal, hello);
    return seen.is_doubtful;
}

static void a_life_is_believed_with_its_own_proof(void **state) {
    (void)state;
    gs_json *said = proof_of(&before, 0), *nothing = gs_json_new_object();
    gs_seen_life seen = {.cluster = "c-1", .epoch = 4, .life = before.life};
    assert_false(is_doubtful(&keyed, seen, said));
    assert_true(is_doubtful(&keyed, seen, nothing));
    assert_false(is_doubtful(&(gs_principal){0}, seen, nothing));  // who shows no key is asked for none
    seen.epoch = 1000000;
    assert_true(is_doubtful(&keyed, seen, said));
    seen = (gs_seen_life){.cluster = "c-1", .epoch = 4, .life = 7};
    assert_true(is_doubtful(&keyed, seen, said));
    seen = (gs_seen_life){.cluster = "c-2", .epoch = 4, .life = before.life};
    assert_true(is_doubtful(&keyed, seen, said));
    secret.bytes[31] ^= 1;  // of a coordinator with another key
    assert_true(is_doubtful(&keyed, (gs_seen_life){.cluster = "c-1", .epoch = 4, .life = before.life}, said));
    secret.bytes[31] ^= 1;
    gs_json_release(said);
    gs_json_release(nothing);
}

static gs_json *runs_with(const gs_cluster *cluster, int64_t proven, int64_t said) {
    gs_json *request = gs_json_new_object(), *list = gs_json_new_array(), *running = gs_json_new_object(), *numbers = gs_json_new_object();
    gs_json_set_int(numbers, "coordinator_epoch", cluster->epoch);
    gs_json_set_u64(numbers, "coordinator_life", cluster->life);
    gs_json_set_int(numbers, "end", said);
    gs_item_prove_life(numbers, "proof", GATE, cluster, proven);
    gs_json_set(running, "numbers", numbers);
    gs_json_push(list, running);
    gs_json_set(request, "running", list);
    return request;
}

static int64_t shown(const gs_cluster *cluster, int64_t proven, int64_t said) {
    gs_agent_hello hello = {0};
    gs_json *request = runs_with(cluster, proven, said);
    gs_told_numbers_check(&hello, GATE, &after, request);
    gs_json_release(request);
    return hello.proven_end;
}

// What this life has reserved and not used would show any worker that it is old.
static void numbers_are_shown_by_what_another_life_has_reserved(void **state) {
    (void)state;
    assert_int_equal(shown(&before, 3000, 3000), 3000);
    assert_int_equal(shown(&before, 3000, 4000), 0);
    assert_int_equal(shown(&before, 0, 3000), 0);  // a proof of the life alone
    assert_int_equal(shown(&after, 3000, 3000), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_life_is_believed_with_its_own_proof),
        cmocka_unit_test(numbers_are_shown_by_what_another_life_has_reserved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
