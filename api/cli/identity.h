// Where commands go and as whom: from flags, then variables, then what `gradsync login` kept. A token that was kept
// for one server is shown to no other.
#ifndef API_CLI_IDENTITY_H
#define API_CLI_IDENTITY_H

#include <stdbool.h>

#include "core/status.h"

typedef struct gs_cli_identity {
    char server[1024];  // "http://127.0.0.1:8470"
    char token[128], cacert[512];
} gs_cli_identity;

typedef struct gs_cli_identity_wish {  // flags; NULL: not given
    const char *server, *context, *token_file, *cacert;
    bool ignores_kept;  // tokens that login kept
} gs_cli_identity_wish;

// An error says which flag, variable or file is wrong.
GS_NODISCARD gs_status gs_cli_identity_find(gs_cli_identity *out, const gs_cli_identity_wish *wish);
// The first line of a file that only its owner, and at most his group, may read.
GS_NODISCARD gs_status gs_cli_identity_read_token(char token[128], const char *path);
// Whether what goes to this server stays on the machine: a Unix socket, localhost, 127.x.y.z, [::1].
bool gs_cli_identity_is_local(const char *server);
// "train.example/" → "http://train.example"
void gs_cli_identity_name_server(char url[1024], const char *server);

#endif
