#include "rpc/wire/frame.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "core/digest.h"

#define MAGIC 0x31595347u  // "GSY1" in the order of its bytes

// What is on the wire; every number little-endian.
typedef struct wire_header {
    uint32_t magic;
    uint16_t proto, type;
    uint8_t kind, status;
    uint16_t reserved;
    uint32_t time_left_ms;
    uint64_t call, job;
    uint32_t coord_epoch, generation;
    uint64_t incarnation, seq, ack, token;
    uint32_t body_bytes, crc;
} wire_header;

static_assert(sizeof(wire_header) == GS_FRAME_HEADER_BYTES, "no padding");
static_assert(offsetof(wire_header, call) == 16, "layout");
static_assert(offsetof(wire_header, coord_epoch) == 32, "layout");
static_assert(offsetof(wire_header, incarnation) == 40, "layout");
static_assert(offsetof(wire_header, body_bytes) == 72, "layout");
static_assert(GS_EXCHANGE_ANSWER_BYTES < GS_FRAME_MAX_BODY_BYTES, "an answer fits a message");
static_assert(GS_NUM_METHODS <= UINT16_MAX && GS_NUM_CODES <= UINT8_MAX, "fields are wide enough");

// Of the header with its crc at 0, then the body.
static uint32_t sum_frame(const wire_header *header, const void *body, size_t body_bytes) {
    wire_header blank = *header;
    blank.crc = 0;
    return gs_crc32c(gs_crc32c(0, &blank, sizeof blank), body, body_bytes);
}

void gs_frame_pack(uint8_t header[GS_FRAME_HEADER_BYTES], const gs_frame *frame, const void *body,
                   size_t body_bytes) {
    bool is_older = frame->proto > 0 && frame->proto < GS_PROTOCOL_LEAST;
    wire_header wire = {
        .magic = htole32(MAGIC),
        .proto = htole16(is_older ? frame->proto : GS_PROTOCOL_MOST),
        .type = htole16((uint16_t)frame->method),
        .kind = (uint8_t)frame->kind,
        .status = (uint8_t)frame->status,
        .time_left_ms = htole32(frame->time_left_ms),
        .call = htole64(frame->call),
        .job = htole64(frame->job),
        .coord_epoch = htole32(frame->coord_epoch),
        .generation = htole32(frame->generation),
        .incarnation = htole64(frame->incarnation),
        .seq = htole64(frame->seq),
        .ack = htole64(frame->ack),
        .token = htole64(frame->token),
        .body_bytes = htole32((uint32_t)body_bytes),
    };
    wire.crc = htole32(sum_frame(&wire, body, body_bytes));
    memcpy(header, &wire, sizeof wire);
}

static void read_wire(gs_frame *frame, const wire_header *wire) {
    *frame = (gs_frame){
        .proto = le16toh(wire->proto),
        .method = (gs_method)le16toh(wire->type),
        .kind = (gs_frame_kind)wire->kind,
        .status = (gs_code)wire->status,
        .time_left_ms = le32toh(wire->time_left_ms),
        .call = le64toh(wire->call),
        .job = le64toh(wire->job),
        .coord_epoch = le32toh(wire->coord_epoch),
        .generation = le32toh(wire->generation),
        .incarnation = le64toh(wire->incarnation),
        .seq = le64toh(wire->seq),
        .ack = le64toh(wire->ack),
        .token = le64toh(wire->token),
    };
}

static gs_status refuse(const char *what, uint64_t value) {
    return gs_error(GS_INVALID_ARGUMENT, "frame: %s %llu", what, (unsigned long long)value);
}

// Which members go together.
static gs_status check_meaning(const gs_frame *frame, size_t body_bytes) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    bool names_method = frame->kind != GS_FRAME_CANCEL && frame->kind != GS_FRAME_PING;
    bool answers = frame->kind == GS_FRAME_REPLY || frame->kind == GS_FRAME_ITEM ||
                   frame->kind == GS_FRAME_END;
    bool ends = frame->kind == GS_FRAME_REPLY || frame->kind == GS_FRAME_END;
    if (frame->incarnation == 0) return refuse("incarnation", 0);
    if (frame->seq == 0) return refuse("seq", 0);
    if (names_method ? !info : frame->method != GS_METHOD_NONE)
        return refuse("method", frame->method);
    if (frame->status && !ends) return refuse("status", frame->status);
    if (answers != (frame->call != 0) && names_method) return refuse("call", frame->call);
    if (!names_method) return body_bytes ? refuse("body of length", body_bytes) : gs_ok();
    bool fits = frame->kind == GS_FRAME_REQUEST   ? info->shape != GS_ONE_WAY
                : frame->kind == GS_FRAME_ONE_WAY ? info->shape == GS_ONE_WAY
                : frame->kind == GS_FRAME_REPLY   ? info->shape == GS_CALL
                                                  : info->shape == GS_STREAM;
    if (!fits) {
        return gs_error(GS_INVALID_ARGUMENT, "frame: kind %d does not fit %s", frame->kind,
                        info->name);
    }
    if (!answers && body_bytes > info->max_body_bytes) {
        return gs_error(GS_INVALID_ARGUMENT, "frame: %s with a body of %zu bytes, most are %zu",
                        info->name, body_bytes, info->max_body_bytes);
    }
    return gs_ok();
}

gs_status gs_frame_unpack(gs_frame *frame, const void *header, size_t header_bytes,
                          const void *body, size_t body_bytes) {
    wire_header wire;
    if (header_bytes != sizeof wire) return refuse("header of length", header_bytes);
    memcpy(&wire, header, sizeof wire);
    if (le32toh(wire.magic) != MAGIC) return refuse("magic", le32toh(wire.magic));
    if (le32toh(wire.body_bytes) != body_bytes)
        return refuse("body of another length,", body_bytes);
    if (body_bytes > GS_FRAME_MAX_BODY_BYTES) return refuse("body of length", body_bytes);
    if (le32toh(wire.crc) != sum_frame(&wire, body, body_bytes)) {
        return gs_error(GS_DATA_LOSS, "frame: check sum does not match");
    }
    read_wire(frame, &wire);
    if (frame->proto < GS_PROTOCOL_LEAST || frame->proto > GS_PROTOCOL_MOST) {
        return gs_error(GS_FAILED_PRECONDITION,
                        "frame: protocol version %u, this side speaks %d to %d", frame->proto,
                        GS_PROTOCOL_LEAST, GS_PROTOCOL_MOST);
    }
    if (wire.reserved) return refuse("reserved bits", le16toh(wire.reserved));
    if (wire.kind == 0 || wire.kind >= GS_FRAME_NUM_KINDS) return refuse("kind", wire.kind);
    if (wire.status >= GS_NUM_CODES) return refuse("status", wire.status);
    return check_meaning(frame, body_bytes);
}
