// Which rank a key is, as plain data.
#include "rpc/server/rank_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static gs_rank_key key_of(uint64_t incarnation, uint8_t first) {
    gs_rank_key key = {.incarnation = incarnation, .worker = "w", .owner = "k-00000001"};
    memcpy(key.shown.bytes, &incarnation, sizeof incarnation);
    key.shown.bytes[31] = first;
    return key;
}

static void a_key_is_found_until_it_is_dropped(void **unused) {
    (void)unused;
    gs_rank_keys keys;
    gs_rank_keys_init(&keys, 1);
    for (uint64_t i = 1; i <= 200; i++) {
        gs_rank_key key = key_of(i, 0);
        assert_true(gs_rank_keys_add(&keys, &key));
    }
    for (uint64_t i = 1; i <= 200; i += 2) gs_rank_keys_drop(&keys, i);
    gs_rank_keys_drop(&keys, 1000);
    for (uint64_t i = 1; i <= 200; i++) {
        gs_rank_key key = key_of(i, 0);
        const gs_rank_key *found = gs_rank_keys_find(&keys, &key.shown);
        assert_int_equal(found != NULL, i % 2 == 0);
        assert_ptr_equal(gs_rank_keys_find_rank(&keys, i), found);
        if (!found) continue;
        assert_int_equal(found->incarnation, i);
        assert_ptr_equal(gs_rank_keys_find_id(&keys, found->id), found);
    }
    assert_int_equal(keys.count, 100);
    assert_null(gs_rank_keys_find_id(&keys, "k-00000001"));
    gs_rank_keys_release(&keys);
}

static void the_same_again_keeps_its_id_and_another_does_not(void **unused) {
    (void)unused;
    gs_rank_keys keys;
    char id[GS_KEY_ID_BYTES];
    gs_rank_keys_init(&keys, 1);
    gs_rank_key first = key_of(7, 1), other = key_of(7, 2), stolen = key_of(8, 1);
    assert_true(gs_rank_keys_add(&keys, &first));
    memcpy(id, gs_rank_keys_find_rank(&keys, 7)->id, sizeof id);
    snprintf(first.owner, sizeof first.owner, "k-00000002");
    assert_true(gs_rank_keys_add(&keys, &first));
    assert_string_equal(gs_rank_keys_find_rank(&keys, 7)->id, id);
    assert_string_equal(gs_rank_keys_find_rank(&keys, 7)->owner, "k-00000002");
    stolen.shown = first.shown;
    assert_false(gs_rank_keys_add(&keys, &stolen));  // it is rank 7
    assert_true(gs_rank_keys_add(&keys, &other));
    assert_string_not_equal(gs_rank_keys_find_rank(&keys, 7)->id, id);
    assert_null(gs_rank_keys_find(&keys, &first.shown));
    assert_null(gs_rank_keys_find_id(&keys, id));
    assert_int_equal(keys.count, 1);
    gs_rank_keys_release(&keys);
}

static bool is_of_seven(void *ctx, uint64_t incarnation) {
    (*(int *)ctx)++;
    return incarnation % 7 == 0;
}

static void who_is_not_there_is_swept_when_there_are_many(void **unused) {
    (void)unused;
    gs_rank_keys keys;
    int num_asked = 0;
    gs_rank_keys_init(&keys, 1);
    for (uint64_t i = 1; i <= 700; i++) {
        gs_rank_key key = key_of(i, 0);
        assert_true(gs_rank_keys_add(&keys, &key));
        assert_int_equal(gs_rank_keys_are_many(&keys), i > 256);
    }
    gs_rank_keys_sweep(&keys, is_of_seven, &num_asked);
    assert_int_equal(num_asked, 700);
    assert_int_equal(keys.count, 100);
    for (uint64_t i = 1; i <= 700; i++) assert_int_equal(gs_rank_keys_find_rank(&keys, i) != NULL, i % 7 == 0);
    for (uint64_t i = 1001; i <= 1200; i++) {
        gs_rank_key key = key_of(i, 0);
        assert_true(gs_rank_keys_add(&keys, &key));
        assert_int_equal(gs_rank_keys_are_many(&keys), keys.count > 256);
    }
    gs_rank_keys_release(&keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_found_until_it_is_dropped),
        cmocka_unit_test(the_same_again_keeps_its_id_and_another_does_not),
        cmocka_unit_test(who_is_not_there_is_swept_when_there_are_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
