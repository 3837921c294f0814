// What tokens of the API and keys of the control port have in common: an id, a name, a role, and a time in which they count. Plain
// values: no clock, no file.
#ifndef RPC_KEYS_CREDENTIAL_H
#define RPC_KEYS_CREDENTIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/json/json.h"
#include "rpc/schema/fields.h"

enum { GS_CREDENTIAL_ID_BYTES = 16 };

// When it was made, is to end, and was revoked; ms of the wall clock, 0: never.
typedef struct gs_credential_times {
    int64_t created_ms, expires_ms, revoked_ms;
} gs_credential_times;

bool gs_credential_counts(gs_credential_times times, int64_t now_ms);  // neither revoked nor expired
int64_t gs_credential_ended_ms(gs_credential_times times);             // whichever came first
// Of `count` of them: the one that ended first; `count` when all count.
size_t gs_credential_earliest_ended(size_t count, gs_credential_times (*times_of)(const void *ctx, size_t index), const void *ctx,
                                    int64_t now_ms);

// "k-" and 8 hexadecimal digits, for 'k'.
void gs_credential_draw_id(char id[GS_CREDENTIAL_ID_BYTES], char kind);
bool gs_credential_looks_like_id(const char *name, char kind);

// A row of its times in a file; `member` of the stored struct.
#define GS_CREDENTIAL_TIME(struct_, member, word)                                                           \
    {.name = #member, .type = GS_FIELD_INT, .offset = offsetof(struct_, member), .has_range = true, .least = 0, \
     .most = 9007199254740991.0, .default_value = "0", .help = "When it was " word ", in ms; 0: never."}
// What a file of them holds. INVALID_ARGUMENT names the member.
GS_NODISCARD gs_status gs_credential_file_decode(void *stored, const gs_field *fields, const gs_json *file);
gs_json *gs_credential_file_encode(const void *stored, const gs_field *fields);
// As people are shown it: with "valid", "expired" or "revoked", and its times.
void gs_credential_view(gs_json *view, gs_credential_times times, int64_t now_ms);

#endif
