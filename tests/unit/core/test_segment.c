#include "core/segment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"

#define MOST_TENSORS 9
#define MOST_PARTS 12

static uint64_t draw(uint64_t seed, uint64_t *at, uint64_t below) {
    return gs_random_u64((gs_random_key){.seed = seed}, (*at)++) % below;
}

static size_t bytes_of(const gs_segment *segments, size_t n, const gs_segment_tensor *tensors) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += segments[i].count * tensors[segments[i].tensor].element_bytes;
    return bytes;
}

// Drawn states: empty tensors, single elements, more parts than elements.
static void parts_are_whole_apart_equal_and_cut_on_boundaries(void **state) {
    (void)state;
    static const size_t element_bytes[] = {4, 8, 2, 1};
    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t at = 0;
        size_t num_tensors = draw(seed, &at, MOST_TENSORS),
               num_parts = 1 + draw(seed, &at, MOST_PARTS);
        size_t boundary = draw(seed, &at, 2) ? 64 : 1, least = SIZE_MAX, most = 0;
        gs_segment_tensor tensors[MOST_TENSORS];
        gs_segment all[MOST_TENSORS * MOST_PARTS], *segments = all;
        for (size_t i = 0; i < num_tensors; i++)
            tensors[i] = (gs_segment_tensor){"t", draw(seed, &at, 4) * draw(seed, &at, 100),
                                             element_bytes[draw(seed, &at, 4)]};
        for (size_t part = 0; part < num_parts; part++) {
            size_t n =
                gs_segments_of_part(segments, tensors, num_tensors, part, num_parts, boundary);
            assert_ok(gs_segments_check_apart(segments, n, tensors, num_tensors));
            for (size_t i = 0; i < n; i++) {
                assert_true(segments[i].count > 0);
                assert_int_equal(
                    segments[i].first * tensors[segments[i].tensor].element_bytes % boundary, 0);
            }
            size_t bytes = bytes_of(segments, n, tensors);
            if (bytes < least) least = bytes;
            if (bytes > most) most = bytes;
            segments += n;
        }
        size_t n = (size_t)(segments - all);
        assert_ok(gs_segments_check_whole(all, n, tensors, num_tensors));
        assert_true(most - least <= 2 * (boundary + 8));
        if (!n) continue;
        // Without any one of them, or with one twice, it is not whole.
        size_t victim = draw(seed, &at, n);
        gs_segment kept = all[victim];
        all[victim] = all[n - 1];
        assert_int_equal(gs_segments_check_whole(all, n - 1, tensors, num_tensors).code,
                         GS_INVALID_ARGUMENT);
        all[n - 1] = kept;
        all[n] = kept;
        assert_int_equal(gs_segments_check_whole(all, n + 1, tensors, num_tensors).code,
                         GS_INVALID_ARGUMENT);
    }
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    const gs_segment_tensor tensors[] = {{"a", 10, 4}, {"b", 6, 4}};
    const struct {
        gs_segment segments[3];
        size_t n;
        const char *says;
    } bad[] = {
        {{{1, 0, 6}, {0, 0, 4}, {0, 5, 5}}, 3, "\"a\": element 4 is missing"},
        {{{0, 0, 10}}, 1, "\"b\": element 0 is missing"},
        {{{0, 0, 10}, {1, 0, 5}}, 2, "\"b\": element 5 is missing"},
        {{{0, 0, 10}, {1, 0, 4}, {1, 3, 3}}, 3, "\"b\": element 3 is there twice"},
        {{{0, 0, 11}, {1, 0, 6}}, 2, "\"a\": 11 elements from 0 on, it has 10"},
        {{{0, 0, 10}, {1, SIZE_MAX, 6}}, 2, "\"b\""},
        {{{0, 0, 10}, {1, 0, SIZE_MAX}}, 2, "\"b\""},
        {{{0, 0, 10}, {1, 0, 6}, {2, 0, 1}}, 3, "there is no tensor 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_status status = gs_segments_check_whole(bad[i].segments, bad[i].n, tensors, 2);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, bad[i].says))
            fail_msg("\"%s\" does not say %s", status.message, bad[i].says);
    }
    assert_ok(gs_segments_check_whole(NULL, 0, tensors, 0));
}

static void what_two_have_in_common(void **state) {
    (void)state;
    const struct {
        gs_segment a, b;
        size_t first, count;
    } pairs[] = {{{1, 2, 5}, {1, 4, 9}, 4, 3}, {{1, 4, 9}, {1, 2, 5}, 4, 3},
                 {{1, 0, 9}, {1, 3, 2}, 3, 2}, {{1, 0, 3}, {1, 3, 2}, 3, 0},
                 {{1, 0, 3}, {2, 0, 3}, 0, 0}, {{1, 5, 0}, {1, 0, 9}, 5, 0}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        gs_segment both = gs_segment_intersect(pairs[i].a, pairs[i].b);
        assert_int_equal(both.first, pairs[i].first);
        assert_int_equal(both.count, pairs[i].count);
    }
}

static void equal_lists_have_equal_digests(void **state) {
    (void)state;
    gs_segment a[] = {{0, 1, 2}, {1, 0, 7}}, b[] = {{0, 1, 2}, {1, 0, 7}};
    assert_true(gs_digest_equal(gs_segments_digest(a, 2), gs_segments_digest(b, 2)));
    assert_false(gs_digest_equal(gs_segments_digest(a, 2), gs_segments_digest(b, 1)));
    b[1].first = 1;
    assert_false(gs_digest_equal(gs_segments_digest(a, 2), gs_segments_digest(b, 2)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_whole_apart_equal_and_cut_on_boundaries),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(what_two_have_in_common),
        cmocka_unit_test(equal_lists_have_equal_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
