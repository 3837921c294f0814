#include "rpc/wire/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"

static const gs_frame call_frame = {.method = GS_GET_JOB,
                                    .kind = GS_FRAME_REQUEST,
                                    .time_left_ms = 5000,
                                    .job = 0x1122334455667788,
                                    .coord_epoch = 3,
                                    .generation = 9,
                                    .incarnation = 77,
                                    .seq = 12,
                                    .ack = 11,
                                    .token = (uint64_t)1 << 63 | 123456789};

static gs_status unpack(gs_frame *frame, const uint8_t *header, const void *body, size_t bytes) {
    return gs_frame_unpack(frame, header, GS_FRAME_HEADER_BYTES, body, bytes);
}

static void what_is_packed_comes_back(void **state) {
    (void)state;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame frame;
    gs_frame_pack(header, &call_frame, "{}", 2);
    gs_status status = unpack(&frame, header, "{}", 2);
    assert_string_equal(status.message, "");
    assert_int_equal(frame.proto, GS_PROTOCOL_MOST);
    assert_int_equal(frame.method, GS_GET_JOB);
    assert_int_equal(frame.kind, GS_FRAME_REQUEST);
    assert_int_equal(frame.time_left_ms, 5000);
    assert_true(frame.job == 0x1122334455667788);
    assert_int_equal(frame.coord_epoch, 3);
    assert_int_equal(frame.generation, 9);
    assert_int_equal(frame.incarnation, 77);
    assert_int_equal(frame.seq, 12);
    assert_int_equal(frame.ack, 11);
    assert_true(frame.token == ((uint64_t)1 << 63 | 123456789));
}

static void an_older_peer_is_answered_in_its_version(void **state) {
    (void)state;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    for (int proto = 0; proto <= GS_PROTOCOL_MOST + 1; proto++) {
        gs_frame frame = call_frame;
        frame.proto = (uint16_t)proto;
        gs_frame_pack(header, &frame, "{}", 2);
        bool is_older = proto > 0 && proto < GS_PROTOCOL_LEAST;
        assert_int_equal(header[4] | header[5] << 8, is_older ? proto : GS_PROTOCOL_MOST);
    }
}

static void header_is_little_endian_and_fixed(void **state) {
    (void)state;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &call_frame, "{}", 2);
    assert_memory_equal(header, "GSY1", 4);
    assert_int_equal(header[4], GS_PROTOCOL_MOST);
    assert_int_equal(header[6], GS_GET_JOB);
    assert_int_equal(header[8], GS_FRAME_REQUEST);
    assert_int_equal(header[12] | header[13] << 8, 5000);
    assert_int_equal(header[24], 0x88);
    assert_int_equal(header[31], 0x11);
    assert_int_equal(header[40], 77);
    assert_int_equal(header[72], 2);
}

static void every_flipped_bit_is_noticed(void **state) {
    (void)state;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    char body[] = "{\"job\":\"j-abc\"}";
    size_t bytes = sizeof body - 1;
    gs_frame frame;
    gs_frame_pack(header, &call_frame, body, bytes);
    for (size_t bit = 0; bit < (sizeof header + bytes) * 8; bit++) {
        uint8_t *byte =
            bit / 8 < sizeof header ? &header[bit / 8] : (uint8_t *)&body[bit / 8 - sizeof header];
        *byte ^= (uint8_t)(1u << bit % 8);
        gs_status status = unpack(&frame, header, body, bytes);
        if (!status.code) fail_msg("bit %zu is not noticed", bit);
        *byte ^= (uint8_t)(1u << bit % 8);
    }
    gs_status status = unpack(&frame, header, body, bytes);
    assert_int_equal(status.code, GS_OK);
}

static void other_lengths_are_refused(void **state) {
    (void)state;
    uint8_t header[GS_FRAME_HEADER_BYTES + 1];
    gs_frame frame;
    gs_frame_pack(header, &call_frame, "{} ", 2);
    for (size_t bytes = 0; bytes <= sizeof header; bytes++) {
        if (bytes == GS_FRAME_HEADER_BYTES) continue;
        gs_status status = gs_frame_unpack(&frame, header, bytes, "{} ", 2);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    }
    gs_status status = unpack(&frame, header, "{} ", 1);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    status = unpack(&frame, header, "{} ", 3);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
}

// Writes a number into a packed header and makes the check sum right again.
static void forge(uint8_t *header, size_t at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) header[at + i] = (uint8_t)(value >> 8 * i);
    memset(header + 76, 0, 4);
    uint32_t crc = gs_crc32c(gs_crc32c(0, header, GS_FRAME_HEADER_BYTES), "{}", 2);
    for (size_t i = 0; i < 4; i++) header[76 + i] = (uint8_t)(crc >> 8 * i);
}

static void expect_forgery_refused(size_t at, uint64_t value, size_t bytes, gs_code code) {
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame frame;
    gs_frame_pack(header, &call_frame, "{}", 2);
    forge(header, at, value, bytes);
    gs_status status = unpack(&frame, header, "{}", 2);
    if (status.code != code)
        fail_msg("field at %zu: %s %s", at, gs_code_name(status.code), status.message);
}

static void fields_that_do_not_fit_are_refused(void **state) {
    (void)state;
    expect_forgery_refused(0, 0x32595347, 4, GS_INVALID_ARGUMENT);
    expect_forgery_refused(4, GS_PROTOCOL_MOST + 1, 2, GS_FAILED_PRECONDITION);
    expect_forgery_refused(4, 0, 2, GS_FAILED_PRECONDITION);
    expect_forgery_refused(6, 0, 2, GS_INVALID_ARGUMENT);
    expect_forgery_refused(6, GS_NUM_METHODS, 2, GS_INVALID_ARGUMENT);
    expect_forgery_refused(6, 0xffff, 2, GS_INVALID_ARGUMENT);
    expect_forgery_refused(6, GS_HEARTBEAT, 2, GS_INVALID_ARGUMENT);  // one-way, as a request
    expect_forgery_refused(8, 0, 1, GS_INVALID_ARGUMENT);
    expect_forgery_refused(8, GS_FRAME_NUM_KINDS, 1, GS_INVALID_ARGUMENT);
    expect_forgery_refused(8, GS_FRAME_REPLY, 1, GS_INVALID_ARGUMENT);  // answers nothing
    expect_forgery_refused(8, GS_FRAME_PING, 1, GS_INVALID_ARGUMENT);   // with a method
    expect_forgery_refused(9, GS_ABORTED, 1, GS_INVALID_ARGUMENT);      // a request with a status
    expect_forgery_refused(10, 1, 2, GS_INVALID_ARGUMENT);
    expect_forgery_refused(16, 5, 8, GS_INVALID_ARGUMENT);  // a request that answers
    expect_forgery_refused(40, 0, 8, GS_INVALID_ARGUMENT);
    expect_forgery_refused(48, 0, 8, GS_INVALID_ARGUMENT);
}

static void body_above_the_methods_limit_is_refused(void **state) {
    (void)state;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    size_t most = gs_method_info_of(GS_GET_JOB)->max_body_bytes;
    char *body = calloc(1, most + 1);
    gs_frame frame;
    gs_frame_pack(header, &call_frame, body, most);
    gs_status status = unpack(&frame, header, body, most);
    assert_int_equal(status.code, GS_OK);
    gs_frame_pack(header, &call_frame, body, most + 1);
    status = unpack(&frame, header, body, most + 1);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    free(body);
}

static void every_method_has_a_row(void **state) {
    (void)state;
    assert_null(gs_method_info_of(GS_METHOD_NONE));
    assert_null(gs_method_info_of(GS_NUM_METHODS));
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        assert_non_null(info);
        assert_in_range(info->max_body_bytes, 1, GS_FRAME_MAX_BODY_BYTES);
    }
    assert_string_equal(gs_method_info_of(GS_WATCH)->name, "Watch");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_packed_comes_back),
        cmocka_unit_test(an_older_peer_is_answered_in_its_version),
        cmocka_unit_test(header_is_little_endian_and_fixed),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(other_lengths_are_refused),
        cmocka_unit_test(fields_that_do_not_fit_are_refused),
        cmocka_unit_test(body_above_the_methods_limit_is_refused),
        cmocka_unit_test(every_method_has_a_row),
    };
    return cmocka_run_group_tests_name("rpc frame", tests, NULL, NULL);
}
