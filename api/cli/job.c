#include "api/cli/job.h"

#include <stdlib.h>
#include <string.h>

char *gs_cli_job_path(gs_cli_http *http, const char *job, const char *rest) {
    gs_strbuf path = {0};
    char *escaped = gs_cli_http_escape(http, job);
    gs_strbuf_printf(&path, "/v1/jobs/%s%s", escaped ? escaped : "", rest);
    free(escaped);
    char *text = gs_strbuf_take(&path);
    return text ? text : strdup("/v1/jobs");
}

int gs_cli_get(gs_cli_http *http, gs_json **reply, const char *path) {
    return gs_cli_http_call(http, reply, &(gs_cli_request){.verb = "GET", .path = path});
}

bool gs_cli_is_terminal_state(const char *state) {
    return strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "cancelled") == 0;
}

void gs_cli_add_query(gs_cli_http *http, gs_strbuf *path, const char *name, const char *value) {
    if (!value) return;
    char *escaped = gs_cli_http_escape(http, value);
    gs_strbuf_printf(path, "%c%s=%s", strchr(gs_strbuf_text(path), '?') ? '&' : '?', name, escaped);
    free(escaped);
}
