#include "api/cli/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/contexts.h"

static const char *given(const char *flag, const char *variable) {
    const char *value = flag ? flag : getenv(variable);
    return value && *value ? value : NULL;
}

void gs_cli_identity_name_server(char url[1024], const char *server) {
    size_t len = strlen(server);
    while (len > 0 && server[len - 1] == '/') len--;
    bool has_scheme = strstr(server, "://") || strncmp(server, "unix:", 5) == 0;
    snprintf(url, 1024, "%s%.*s", has_scheme ? "" : "http://", (int)len, server);
}

bool gs_cli_identity_is_local(const char *server) {
    if (strncmp(server, "unix:", 5) == 0) return true;
    const char *host = strstr(server, "://");
    if (!host) return false;
    host += 3;
    size_t len = strcspn(host, *host == '[' ? "/" : ":/");
    if (memchr(host, '@', strcspn(host, "/"))) return false;  // what stands before it is no host
    if (*host == '[') return strncmp(host, "[::1]", 5) == 0 && (host[5] == ':' || host[5] == '/' || !host[5]);
    if (len == 9 && strncasecmp(host, "localhost", 9) == 0) return true;
    return len > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == len;
}

// Nothing in it may end the header that it becomes part of.
static gs_status check_token(const char *token, const char *origin) {
    for (const char *c = token; *c; c++)
        if (*c < '!' || *c > '~') return gs_error(GS_INVALID_ARGUMENT, "%s: what is there is no token", origin);
    return *token ? gs_ok() : gs_error(GS_INVALID_ARGUMENT, "%s: there is no token", origin);
}

gs_status gs_cli_identity_read_token(char token[128], const char *path) {
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "token file %s", path);
    bool is_exposed = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && (facts.st_mode & (S_IRWXO | S_IWGRP));
    size_t used = 0;
    for (ssize_t got = 1; !is_exposed && got > 0 && used < 127; used += got > 0 ? (size_t)got : 0)
        got = read(fd, token + used, 127 - used);
    close(fd);
    if (is_exposed)
        return gs_error(GS_FAILED_PRECONDITION, "token file %s may be read by others; `chmod 600 %s` mends that", path, path);
    token[used] = '\0';
    token[strcspn(token, "\r\n")] = '\0';
    return check_token(token, path);
}

static gs_status find_token(gs_cli_identity *out, const char *file_flag, const gs_cli_context *kept) {
    const char *shown = getenv("GRADSYNC_TOKEN"), *file = given(NULL, "GRADSYNC_TOKEN_FILE");
    if (file_flag) return gs_cli_identity_read_token(out->token, file_flag);
    if (shown && *shown) {
        if ((size_t)snprintf(out->token, sizeof out->token, "%s", shown) >= sizeof out->token)
            return gs_error(GS_INVALID_ARGUMENT, "GRADSYNC_TOKEN: what is there is no token");
        return check_token(out->token, "GRADSYNC_TOKEN");
    }
    if (file) return gs_cli_identity_read_token(out->token, file);
    if (kept) snprintf(out->token, sizeof out->token, "%s", kept->token);
    return gs_ok();
}

static gs_status refuse_context(const gs_cli_contexts *contexts, const char *name) {
    char names[160] = "";
    size_t used = 0;
    for (int i = 0; i < contexts->count && used < 120; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.20s", i ? ", " : "", contexts->items[i].name);
    return gs_error(GS_NOT_FOUND, "--context: there is no %s%s%s; `gradsync login` makes one", name, *names ? " beside " : "", names);
}

static gs_status choose(gs_cli_identity *out, const gs_cli_identity_wish *wish, gs_cli_contexts *contexts) {
    const char *server = wish->server;
    gs_cli_context *chosen = wish->context ? gs_cli_contexts_find(contexts, wish->context) : NULL;
    if (wish->context && !chosen) return refuse_context(contexts, wish->context);
    if (!server && chosen) server = chosen->server;
    if (!server) server = given(NULL, "GRADSYNC_SERVER");
    gs_cli_context *current = gs_cli_contexts_find(contexts, contexts->current);
    if (!server) server = current ? current->server : "http://127.0.0.1:8470";
    gs_cli_identity_name_server(out->server, server);
    if (chosen && strcmp(chosen->server, out->server) != 0) chosen = NULL;
    if (!chosen) chosen = gs_cli_contexts_find_server(contexts, out->server);
    const char *cacert = given(wish->cacert, "GRADSYNC_CACERT");
    if (!cacert && chosen) cacert = chosen->cacert;
    snprintf(out->cacert, sizeof out->cacert, "%s", cacert ? cacert : "");
    return find_token(out, wish->token_file, wish->ignores_kept ? NULL : chosen);
}

gs_status gs_cli_identity_find(gs_cli_identity *out, const gs_cli_identity_wish *wish) {
    *out = (gs_cli_identity){0};
    gs_cli_contexts *contexts = calloc(1, sizeof *contexts);
    if (!contexts) return gs_error(GS_RESOURCE_EXHAUSTED, "contexts: out of memory");
    gs_status status = gs_cli_contexts_read(contexts);
    if (!status.code) status = choose(out, wish, contexts);
    free(contexts);
    return status;
}
