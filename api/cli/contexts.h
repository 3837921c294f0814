// Servers that this user knows, each with its token: ~/.config/gradsync/contexts.json, for his eyes alone.
#ifndef API_CLI_CONTEXTS_H
#define API_CLI_CONTEXTS_H

#include <stdbool.h>

#include "core/status.h"
#include "rpc/json/json.h"

enum { GS_CONTEXTS_MOST = 64 };

typedef struct gs_cli_context {
    char name[64], server[512], token[64], cacert[512];
} gs_cli_context;

typedef struct gs_cli_contexts {
    char current[64];  // "": none
    gs_cli_context items[GS_CONTEXTS_MOST];
    int count;
} gs_cli_contexts;

// $XDG_CONFIG_HOME/gradsync/contexts.json or below ~/.config. NOT_FOUND: no home.
GS_NODISCARD gs_status gs_cli_contexts_path(char *path, size_t path_bytes);
// No file is no contexts. FAILED_PRECONDITION: others may read it. INVALID_ARGUMENT: it is not what was written.
GS_NODISCARD gs_status gs_cli_contexts_read(gs_cli_contexts *out);
GS_NODISCARD gs_status gs_cli_contexts_decode(gs_cli_contexts *out, const gs_json *file);
// The file is replaced as a whole.
GS_NODISCARD gs_status gs_cli_contexts_write(const gs_cli_contexts *contexts);

gs_cli_context *gs_cli_contexts_find(gs_cli_contexts *contexts, const char *name);  // NULL: none
// The one that goes to this server, the current one first.
gs_cli_context *gs_cli_contexts_find_server(gs_cli_contexts *contexts, const char *server);

#endif
