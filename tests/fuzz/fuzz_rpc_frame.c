// Whatever comes in as a frame: what unpacks is exactly what packing would have made. The input:
// one byte of switches, header, body. Most mutations would end at the version, the length or the
// check sum, so a switch mends those and the checks behind them are reached; another leaves the version.
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "rpc/json/json.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/rpc_error.h"
#include "tests/fuzz/fuzz.h"

static void write_number(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

#define MENDS 1
#define KEEPS_VERSION 2

static void mend(uint8_t header[GS_FRAME_HEADER_BYTES], uint8_t switches, const void *body,
                 size_t body_bytes) {
    if (!(switches & KEEPS_VERSION)) memcpy(header + 4, (uint8_t[]){GS_PROTOCOL_MOST, 0}, 2);
    write_number(header + 72, (uint32_t)body_bytes);
    write_number(header + 76, 0);
    write_number(header + 76,
                 gs_crc32c(gs_crc32c(0, header, GS_FRAME_HEADER_BYTES), body, body_bytes));
}

static void read_body(const gs_frame *frame, const void *body, size_t body_bytes) {
    gs_json *value = NULL;
    gs_status status;
    if (frame->kind == GS_FRAME_REPLY || frame->kind == GS_FRAME_END) {
        status = gs_rpc_answer_decode(&value, frame->status, body, body_bytes);
        if (frame->status && !status.code) abort();
    } else {
        status = gs_json_parse_foreign(&value, body, body_bytes);
        if (status.code && value) abort();
    }
    gs_json_release(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    uint8_t header[GS_FRAME_HEADER_BYTES], again[GS_FRAME_HEADER_BYTES];
    size_t header_bytes = bytes - 1 < sizeof header ? bytes - 1 : sizeof header;
    const uint8_t *body = data + 1 + header_bytes;
    size_t body_bytes = bytes - 1 - header_bytes;
    memcpy(header, data + 1, header_bytes);
    if (header_bytes == sizeof header && data[0] & MENDS)
        mend(header, data[0], body, body_bytes);
    gs_frame frame;
    gs_status status = gs_frame_unpack(&frame, header, header_bytes, body, body_bytes);
    if (status.code) return 0;
    gs_frame_pack(again, &frame, body, body_bytes);
    if (memcmp(header, again, sizeof header) != 0) abort();
    read_body(&frame, body, body_bytes);
    return 0;
}
