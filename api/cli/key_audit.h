// Who made and revoked keys beside the coordinator: lines as its audit has them, in keys-audit.jsonl of its data directory, a file of
// its own, for the coordinator runs meanwhile and writes the other. One command at a time writes it, from its first line to its last.
//
// Where no line can be written that is said, and the key is made or revoked all the same: who has to shut somebody out is not held up.
#ifndef API_CLI_KEY_AUDIT_H
#define API_CLI_KEY_AUDIT_H

#include <stdint.h>

#include "core/status.h"
#include "rpc/keys/audit.h"

typedef struct gs_cli_key_audit {
    gs_audit *audit;  // NULL: there is none
    int lock_fd;
    const char *what, *target;  // "key revoke", and of which; borrowed until the end
    int64_t begin_ns;
} gs_cli_key_audit;

void gs_cli_key_audit_begin(gs_cli_key_audit *it, const char *data_dir, const char *what, const char *target);
void gs_cli_key_audit_end(gs_cli_key_audit *it, gs_status status, const char *made);  // made: an id; NULL: nothing was

#endif
