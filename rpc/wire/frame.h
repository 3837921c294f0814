// The envelope of the control plane: a fixed little-endian header beside each JSON body.
//
// Unpacking is strict: what is not exactly a frame of this protocol is refused with a reason, and a
// frame whose bits were changed anywhere, header or body, is one of those. Knows no sockets.
#ifndef RPC_WIRE_FRAME_H
#define RPC_WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/schema/messages.h"

#define GS_FRAME_HEADER_BYTES 80
#define GS_FRAME_MAX_BODY_BYTES ((size_t)1 << 20)

typedef enum gs_frame_kind {
    GS_FRAME_REQUEST = 1,
    GS_FRAME_REPLY,  // ends a call
    GS_FRAME_ITEM,   // of a stream
    GS_FRAME_END,    // of a stream
    GS_FRAME_ONE_WAY,
    GS_FRAME_CANCEL,  // of `call`; of all of the sender's when `call` is 0: it is leaving
    // Answered by one with `call` set, whose time_left_ms says how often the client is to be heard: never more seldom
    // (0: each second). In the client's own, with time_left_ms, its sender hears nothing and will close the connection
    // then: what is closed so was not closed by a death.
    GS_FRAME_PING,
    GS_FRAME_NUM_KINDS
} gs_frame_kind;

typedef struct gs_frame {
    uint16_t proto;
    gs_method method;  // NONE in pings and cancels
    gs_frame_kind kind;
    gs_code status;  // of replies and ends
    uint32_t time_left_ms;
    uint64_t call, job;
    uint32_t coord_epoch, generation;
    uint64_t incarnation, seq, ack;
    uint64_t token;  // from a trainer: its launch token, as rpc/schema/launch_token.h shows it; else 0, or a clock
} gs_frame;

// The header that goes before `body` (NULL when body_bytes is 0). Our protocol goes out, unless
// frame->proto is an older one: whoever speaks it is told so in its own.
void gs_frame_pack(uint8_t header[GS_FRAME_HEADER_BYTES], const gs_frame *frame, const void *body,
                   size_t body_bytes);
// INVALID_ARGUMENT: malformed; DATA_LOSS: check sum; FAILED_PRECONDITION: a frame of another
// protocol version (`frame` then has proto, call, incarnation and seq, for the refusal). The body's
// JSON is not looked at.
GS_NODISCARD gs_status gs_frame_unpack(gs_frame *frame, const void *header, size_t header_bytes,
                                       const void *body, size_t body_bytes);

#endif
