// A step report on the wire: one flat little-endian record, which costs a rank and the coordinator microseconds
// where JSON costs a hundred of them.
#ifndef RPC_SCHEMA_STEP_RECORD_H
#define RPC_SCHEMA_STEP_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/schema/step_report.h"

// A welcome says which versions its coordinator reads (`step_record`). New values are no new version: a reader
// passes over those that it does not know.
#define GS_STEP_RECORD_VERSION 1
#define GS_STEP_RECORD_MAX_BYTES ((size_t)32 << 10)

// To `record`, which has GS_STEP_RECORD_MAX_BYTES. Returns its bytes.
size_t gs_step_record_pack(uint8_t *record, const gs_step_report *report);
// INVALID_ARGUMENT: it is none. `report` borrows `rows`.
GS_NODISCARD gs_status gs_step_record_unpack(gs_step_report *report, gs_report_rows *rows, const void *record,
                                             size_t bytes);

#endif
