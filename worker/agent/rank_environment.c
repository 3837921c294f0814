#include "worker/agent/rank_environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/below.h"
#include "rpc/schema/job_environment.h"

#define MASK "***"

static gs_status out_of_memory(void) { return gs_error(GS_RESOURCE_EXHAUSTED, "environment: out of memory"); }

static bool is_of_name(const char *variable, const char *name, size_t name_bytes) {
    return strncmp(variable, name, name_bytes) == 0 && variable[name_bytes] == '=';
}

static void wipe(char *text) {
    explicit_bzero(text, strlen(text));
    free(text);
}

// Takes "NAME=value"; in the place of the one of this name, if there is one.
static gs_status put(gs_rank_environment *environment, char *variable) {
    if (!variable) return out_of_memory();
    size_t name_bytes = strcspn(variable, "=");
    for (size_t i = 0; i < environment->count; i++) {
        if (!is_of_name(environment->variables[i], variable, name_bytes)) continue;
        wipe(environment->variables[i]);
        environment->variables[i] = variable;
        return gs_ok();
    }
    char **grown = realloc(environment->variables, (environment->count + 2) * sizeof *grown);
    if (!grown) {
        wipe(variable);
        return out_of_memory();
    }
    environment->variables = grown;
    grown[environment->count++] = variable;
    grown[environment->count] = NULL;
    return gs_ok();
}

// What a process needs to be loaded and to speak its user's language, and what drivers, NCCL, matrix products and sanitizers are
// told by environment alone. Whatever else the agent has is its own affair: credentials of a shell, a cloud, a supervisor.
static bool is_usual(const char *variable) {
    static const char *const families[] = {"LC_",   "CUDA_",   "NVIDIA_", "NCCL_", "CUBLAS", "OPENBLAS_", "GOTO_", "OMP_",
                                           "HWLOC_", "IBV_",   "RDMAV_",  "UCX_",  "FI_",    "MALLOC_",   "ASAN_", "UBSAN_",
                                           "LSAN_", "TSAN_",   "GRADSYNC_CUDA_", "GRADSYNC_MATMUL_", "GRADSYNC_NCCL_", NULL};
    static const char *const names[] = {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "RES_OPTIONS",
        // Read by the trainer itself; tests/references.py compares with what its sources ask for.
        "GRADSYNC_REDUCER_LOG", "GRADSYNC_GRAPHS", "GRADSYNC_EARLY_UPDATES", "GRADSYNC_COMMON_PARAMS", "GRADSYNC_STEP_DIGESTS",
        "GRADSYNC_FAILPOINTS", "GRADSYNC_HOST", "GRADSYNC_NCCL", "GRADSYNC_CUBLASLT", "GRADSYNC_CUDNN", "GRADSYNC_KERNEL_TIMES", NULL};
    for (size_t i = 0; families[i]; i++)
        if (strncmp(variable, families[i], strlen(families[i])) == 0) return true;
    for (size_t i = 0; names[i]; i++)
        if (is_of_name(variable, names[i], strlen(names[i]))) return true;
    return false;
}

// `names` with commas between, and blanks around them.
static bool is_passed(const char *variable, const char *names) {
    static const char between[] = ", ";
    while (names && *names) {
        size_t bytes = strcspn(names, between);
        if (bytes && is_of_name(variable, names, bytes)) return true;
        names += bytes;
        names += strspn(names, between);
    }
    return false;
}

static gs_status take_own(gs_rank_environment *out, char *const *own, const char *passed) {
    for (; own && *own; own++) {
        if (strchr(*own, '=') && (is_usual(*own) || is_passed(*own, passed))) GS_TRY(put(out, strdup(*own)));
    }
    return gs_ok();
}

// The longest first: of one that another begins with, the rest would be shown.
static gs_status remember(gs_rank_environment *out, const char *line, size_t bytes) {
    if (bytes < GS_SECRET_LEAST_BYTES) return gs_ok();
    char **grown = realloc(out->secrets, (out->num_secrets + 1) * sizeof *grown);
    if (!grown) return out_of_memory();
    out->secrets = grown;
    char *kept = strndup(line, bytes);
    if (!kept) return out_of_memory();
    size_t at = out->num_secrets++;
    for (; at > 0 && strlen(grown[at - 1]) < bytes; at--) grown[at] = grown[at - 1];
    grown[at] = kept;
    return gs_ok();
}

// Logs are of lines.
static gs_status remember_lines(gs_rank_environment *out, const char *value) {
    while (*value) {
        size_t bytes = strcspn(value, "\r\n");
        GS_TRY(remember(out, value, bytes));
        value += bytes;
        value += strspn(value, "\r\n");
    }
    return gs_ok();
}

static gs_status read_file(char **value, int fd) {
    struct stat facts;
    if (fstat(fd, &facts) != 0) return gs_error_from_errno(errno, "cannot be read");
    if (!S_ISREG(facts.st_mode)) return gs_error(GS_FAILED_PRECONDITION, "is no regular file");
    if (facts.st_size > GS_SECRET_MOST_BYTES)
        return gs_error(GS_FAILED_PRECONDITION, "has more than %d bytes", GS_SECRET_MOST_BYTES);
    char *text = calloc(1, (size_t)facts.st_size + 1);
    if (!text) return out_of_memory();
    size_t bytes = 0;
    while (bytes < (size_t)facts.st_size) {
        ssize_t got = read(fd, text + bytes, (size_t)facts.st_size - bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        bytes += (size_t)got;
    }
    bool has_zero = strlen(text) != bytes;
    // The end of the line that an editor or `echo` left.
    if (bytes && text[bytes - 1] == '\n') text[--bytes] = '\0';
    if (bytes && text[bytes - 1] == '\r') text[--bytes] = '\0';
    gs_status status = gs_ok();
    if (has_zero) status = gs_error(GS_FAILED_PRECONDITION, "holds a zero byte");
    else if (bytes < GS_SECRET_LEAST_BYTES)
        status = gs_error(GS_FAILED_PRECONDITION, "is shorter than %d bytes", GS_SECRET_LEAST_BYTES);
    if (status.code) {
        explicit_bzero(text, (size_t)facts.st_size);
        free(text);
        return status;
    }
    *value = text;
    return status;
}

// The agent's own key lies beside jobs' secrets where systemd puts credentials.
static bool is_withheld(int fd, const char *const *paths) {
    struct stat facts, own;
    if (fstat(fd, &facts) != 0) return true;
    for (; paths && *paths; paths++)
        if (**paths && stat(*paths, &own) == 0 && own.st_dev == facts.st_dev && own.st_ino == facts.st_ino) return true;
    return false;
}

static gs_status read_secret(char **value, const char *name, const gs_rank_environment_sources *sources) {
    const char *directory = sources->secrets;
    int fd = -1;
    if (!directory || !*directory) return gs_error(GS_FAILED_PRECONDITION, "this worker has no --secrets directory");
    if (!gs_job_secret_may_be(name)) return gs_error(GS_INVALID_ARGUMENT, "is no name");
    int root_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) return gs_error_from_errno(errno, "%s", directory);
    gs_status status = gs_open_below(&fd, root_fd, name, 0);
    close(root_fd);
    if (status.code) return status;
    status = is_withheld(fd, sources->withheld) ? gs_error(GS_PERMISSION_DENIED, "is the worker's own: --key or --enrol names it")
                                                : read_file(value, fd);
    close(fd);
    return status;
}

static gs_status take_variable(gs_rank_environment *out, const gs_json *item, const gs_rank_environment_sources *sources) {
    const char *name = gs_json_string_or(item, "name", ""), *secret = gs_json_string_or(item, "secret", "");
    char *value = NULL, *variable = NULL;
    // The coordinator has refused it before; what it sends is no reason to run other code here.
    if (!gs_job_variable_may_be(name))
        return gs_error(GS_FAILED_PRECONDITION, "environment: a job may not set %.64s", name);
    if (!*secret) {
        if (asprintf(&variable, "%s=%s", name, gs_json_string_or(item, "value", "")) < 0) return out_of_memory();
        return put(out, variable);
    }
    GS_TRY(gs_status_prefix(read_secret(&value, secret, sources), "secret %.64s", secret));
    gs_status status = remember_lines(out, value);
    if (!status.code && asprintf(&variable, "%s=%s", name, value) < 0) status = out_of_memory();
    wipe(value);
    return status.code ? status : put(out, variable);
}

gs_status gs_rank_environment_make(gs_rank_environment *out, const gs_json *spec, const gs_rank_environment_sources *sources) {
    *out = (gs_rank_environment){0};
    const gs_json *wanted = gs_json_get(spec, "environment");
    gs_status status = take_own(out, sources->own, sources->passed);
    for (char *const *user = sources->user; user && *user && !status.code; user++) status = put(out, strdup(*user));
    for (size_t i = 0; i < gs_json_count(wanted) && !status.code; i++)
        status = take_variable(out, gs_json_at(wanted, i), sources);
    for (char *const *set = sources->set; set && *set && !status.code; set++) status = put(out, strdup(*set));
    if (status.code) gs_rank_environment_release(out);
    return status;
}

void gs_rank_environment_release(gs_rank_environment *environment) {
    for (size_t i = 0; i < environment->count; i++) wipe(environment->variables[i]);
    for (size_t i = 0; i < environment->num_secrets; i++) wipe(environment->secrets[i]);
    free(environment->variables);
    free(environment->secrets);
    *environment = (gs_rank_environment){0};
}

size_t gs_rank_environment_hide(const gs_rank_environment *environment, char *text, size_t bytes) {
    for (size_t i = 0; i < environment->num_secrets; i++) {
        const char *secret = environment->secrets[i];
        size_t secret_bytes = strlen(secret);
        for (char *at = text; (at = memmem(at, bytes - (size_t)(at - text), secret, secret_bytes));) {
            size_t behind = bytes - (size_t)(at - text) - secret_bytes;
            memcpy(at, MASK, strlen(MASK));
            memmove(at + strlen(MASK), at + secret_bytes, behind);
            bytes -= secret_bytes - strlen(MASK);
            at += strlen(MASK);
        }
    }
    return bytes;
}

size_t gs_rank_environment_longest(const gs_rank_environment *environment) {
    return environment->num_secrets ? strlen(environment->secrets[0]) : 0;
}

// The first byte of a secret that lies across `at`; `at` when none does.
static size_t begin_across(const char *secret, const char *text, size_t bytes, size_t at) {
    size_t secret_bytes = strlen(secret);
    size_t from = at >= secret_bytes ? at - secret_bytes + 1 : 0, to = at + secret_bytes - 1;
    if (to > bytes) to = bytes;
    const char *found = to > from ? memmem(text + from, to - from, secret, secret_bytes) : NULL;
    return found ? (size_t)(found - text) : at;
}

size_t gs_rank_environment_cut(const gs_rank_environment *environment, const char *text, size_t bytes, size_t at) {
    for (size_t i = 0; i < environment->num_secrets;) {
        size_t begin = begin_across(environment->secrets[i], text, bytes, at);
        if (begin == 0) return strlen(environment->secrets[i]);  // it is the whole piece
        i = begin < at ? 0 : i + 1;  // before another place, those that were looked for may lie across it
        at = begin;
    }
    return at;
}
