#include "core/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void crc_has_the_published_check_value(void **state) {
    (void)state;
    assert_int_equal(gs_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(gs_crc32c(0, "", 0), 0);
}

static void crc_of_pieces_is_the_crc_of_the_whole(void **state) {
    (void)state;
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + 3);
    uint32_t whole = gs_crc32c(0, data, sizeof data);
    for (size_t cut = 0; cut <= 40; cut++) {
        uint32_t crc = gs_crc32c(0, data, cut);
        assert_int_equal(gs_crc32c(crc, data + cut, sizeof data - cut), whole);
    }
}

static void crc_sees_every_flipped_bit(void **state) {
    (void)state;
    unsigned char data[64] = {1, 2, 3};
    uint32_t before = gs_crc32c(0, data, sizeof data);
    for (size_t bit = 0; bit < sizeof data * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        assert_int_not_equal(gs_crc32c(0, data, sizeof data), before);
        data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
}

static void a_stream_digests_as_the_whole(void **state) {
    (void)state;
    char data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i % 251);
    gs_digest_stream *stream = gs_digest_stream_create();
    assert_non_null(stream);
    for (size_t at = 0; at < sizeof data; at += 617) {
        size_t bytes = sizeof data - at < 617 ? sizeof data - at : 617;
        gs_digest_stream_add(stream, data + at, bytes);
        gs_digest_stream_add(stream, NULL, 0);
    }
    assert_true(gs_digest_equal(gs_digest_stream_value(stream), gs_digest_of(data, sizeof data)));
    gs_digest_stream_destroy(stream);
    gs_digest_stream_destroy(NULL);
}

static void text_reads_back_and_garbage_does_not(void **state) {
    (void)state;
    char text[GS_DIGEST_TEXT_LEN];
    gs_digest digest = gs_digest_of("plan", 4), back = {0};
    gs_digest_format(text, digest);
    assert_int_equal(strlen(text), GS_DIGEST_TEXT_LEN - 1);
    assert_true(gs_digest_parse(&back, text));
    assert_true(gs_digest_equal(digest, back));
    text[10] = 'x';
    assert_false(gs_digest_parse(&back, text));
    assert_false(gs_digest_parse(&back, "xxh3:12"));
    assert_false(gs_digest_parse(&back, ""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_has_the_published_check_value),
        cmocka_unit_test(crc_of_pieces_is_the_crc_of_the_whole),
        cmocka_unit_test(crc_sees_every_flipped_bit),
        cmocka_unit_test(a_stream_digests_as_the_whole),
        cmocka_unit_test(text_reads_back_and_garbage_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
