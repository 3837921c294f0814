// A job as the server shows it: where it is, and what several commands ask about it.
#ifndef API_CLI_JOB_H
#define API_CLI_JOB_H

#include <stdbool.h>

#include "api/cli/http_client.h"
#include "core/strbuf.h"

// "/v1/jobs/JOB" and `rest`, escaped; the caller's (free()).
char *gs_cli_job_path(gs_cli_http *http, const char *job, const char *rest);
// Adds "?name=value" or "&name=value", escaped; nothing when `value` is NULL.
void gs_cli_add_query(gs_cli_http *http, gs_strbuf *path, const char *name, const char *value);
// GET of a path; the reply is the caller's. An exit code.
int gs_cli_get(gs_cli_http *http, gs_json **reply, const char *path);
bool gs_cli_is_terminal_state(const char *state);

#endif
