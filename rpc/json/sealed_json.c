#include "rpc/json/sealed_json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "core/random.h"

// The bytes `,"digest":"xxh3:…"}` and a newline: always as many, always the last.
#define CLOSING_FORMAT ",\"digest\":\"%s\"}\n"
#define CLOSING_BYTES (11 + GS_DIGEST_TEXT_LEN - 1 + 3)
// What coordinator, workers and ranks tell each other where checkpoints are holds no secret, and they may be several users.
enum { MODE_PRIVATE = 0600, MODE_SHARED = 0644 };
#define MAX_BYTES (256u * 1024 * 1024)

static gs_status write_all(int fd, const char *text, size_t bytes, const char *path, bool is_kept) {
    while (bytes) {
        ssize_t put = write(fd, text, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return gs_error_from_errno(errno, "write %s", path);
        text += put;
        bytes -= (size_t)put;
    }
    if (is_kept && fsync(fd) < 0) return gs_error_from_errno(errno, "sync %s", path);
    return gs_ok();
}

static gs_status sync_directory_of(const char *path) {
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash) *slash = '\0';
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "%s", directory);
    int failed = fsync(fd);
    int error_number = errno;
    close(fd);
    return failed ? gs_error_from_errno(error_number, "sync %s", directory) : gs_ok();
}

static gs_status rename_file(const char *from, const char *to) {
    GS_FAILPOINT("checkpoint.rename");
    if (rename(from, to) < 0) return gs_error_from_errno(errno, "rename %s", from);
    return gs_ok();
}

// Under a name that nobody has.
static gs_status create_file(const char *path, const char *text, size_t bytes, bool is_kept, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    gs_status status = write_all(fd, text, bytes, path, is_kept);
    if (close(fd) < 0 && !status.code) status = gs_error_from_errno(errno, "close %s", path);
    if (status.code) unlink(path);
    return status;
}

// The same road as for part files: a temporary name, synced, closed, renamed, directory synced.
static gs_status write_file(const char *path, const char *text, size_t bytes, bool is_kept, mode_t mode) {
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.tmp.%08x", path, (unsigned)gs_random_from_system());
    GS_TRY(create_file(temporary, text, bytes, is_kept, mode));
    gs_status status = rename_file(temporary, path);
    if (status.code) {
        unlink(temporary);
        return status;
    }
    return is_kept ? sync_directory_of(path) : gs_ok();
}

// *whole is the caller's.
static gs_status seal(char **whole, gs_json *object, const char *path, uint64_t *bytes, gs_digest *digest) {
    char *text = NULL, digest_text[GS_DIGEST_TEXT_LEN];
    size_t body_bytes;
    gs_status status = gs_json_encode(&text, &body_bytes, object, false);
    gs_json_release(object);
    if (status.code) return status;
    body_bytes--;  // the closing brace comes after the digest
    gs_digest_format(digest_text, gs_digest_of(text, body_bytes));
    int length = asprintf(whole, "%.*s" CLOSING_FORMAT, (int)body_bytes, text, digest_text);
    free(text);
    if (length < 0) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    *bytes = (uint64_t)length;
    *digest = gs_digest_of(*whole, (size_t)length);
    return gs_ok();
}

static gs_status write_sealed(gs_json *object, const char *path, uint64_t *bytes, gs_digest *digest, mode_t mode) {
    char *text;
    GS_TRY(seal(&text, object, path, bytes, digest));
    gs_status status = write_file(path, text, (size_t)*bytes, true, mode);
    free(text);
    return status;
}

gs_status gs_sealed_json_write(gs_json *object, const char *path, uint64_t *bytes, gs_digest *digest) {
    return write_sealed(object, path, bytes, digest, MODE_PRIVATE);
}

gs_status gs_sealed_json_put(gs_json *object, const char *path) {
    uint64_t bytes;
    gs_digest digest;
    return write_sealed(object, path, &bytes, &digest, MODE_SHARED);
}

gs_status gs_sealed_json_text(char **text, gs_json *object) {
    uint64_t bytes;
    gs_digest digest;
    return seal(text, object, "sealed text", &bytes, &digest);
}

gs_status gs_sealed_json_show(gs_json *object, const char *path) {
    char *text;
    uint64_t bytes;
    gs_digest digest;
    GS_TRY(seal(&text, object, path, &bytes, &digest));
    gs_status status = write_file(path, text, (size_t)bytes, false, MODE_SHARED);
    free(text);
    return status;
}

gs_status gs_sealed_json_draft(gs_json *object, const char *draft, uint64_t *bytes, gs_digest *digest) {
    char *text;
    GS_TRY(seal(&text, object, draft, bytes, digest));
    gs_status status = create_file(draft, text, (size_t)*bytes, true, MODE_SHARED);
    free(text);
    return status;
}

// What a server has removed while a file of it was known here is stale.
static bool is_away(int error_number) { return error_number == ENOENT || error_number == ESTALE; }

gs_status gs_sealed_json_publish(const char *draft, const char *path) {
    gs_status status = rename_file(draft, path);
    if (!status.code) return sync_directory_of(path);
    if (access(draft, F_OK) != 0 && is_away(errno)) return gs_error(GS_ABORTED, "%s: somebody has removed it", draft);
    unlink(draft);
    return status;
}

typedef struct file_guard {
    unsigned forbidden;
    gs_file_mark mark;
} file_guard;

static gs_status read_file(char **text, size_t *bytes, const char *path, file_guard *guard) {
    // A pipe that somebody left there must not hold up whoever looks.
    int fd = open(path, O_RDONLY | O_CLOEXEC | (guard ? 0 : O_NOFOLLOW) | O_NONBLOCK);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    struct stat facts;
    gs_status status = gs_ok();
    *text = NULL;
    if (fstat(fd, &facts) < 0) {
        status = gs_error_from_errno(errno, "%s", path);
    } else if (!S_ISREG(facts.st_mode)) {
        status = gs_error(GS_DATA_LOSS, "%s: is no regular file", path);
    } else if (guard && (status = gs_file_check_guarded(&facts, path, guard->forbidden)).code) {
        // Said.
    } else if (facts.st_size > MAX_BYTES) {
        status = gs_error(GS_DATA_LOSS, "%s: too large for a sealed file", path);
    } else if (!(*text = malloc((size_t)facts.st_size + 1))) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    } else if (read(fd, *text, (size_t)facts.st_size) != facts.st_size) {
        status = gs_error(GS_DATA_LOSS, "%s: short read", path);
    }
    close(fd);
    if (status.code) {
        free(*text);
        return status;
    }
    *bytes = (size_t)facts.st_size;
    (*text)[*bytes] = '\0';
    if (guard) guard->mark = gs_file_mark_of(&facts);
    return gs_ok();
}

gs_status gs_sealed_json_parse(gs_json **out, const char *text, size_t bytes) {
    char wanted[CLOSING_BYTES + 1], digest_text[GS_DIGEST_TEXT_LEN];
    if (bytes <= CLOSING_BYTES) return gs_error(GS_DATA_LOSS, "too short");
    size_t body_bytes = bytes - CLOSING_BYTES;
    gs_digest_format(digest_text, gs_digest_of(text, body_bytes));
    snprintf(wanted, sizeof wanted, CLOSING_FORMAT, digest_text);
    if (memcmp(wanted, text + body_bytes, CLOSING_BYTES) != 0)
        return gs_error(GS_DATA_LOSS, "its digest is wrong");
    gs_status status = gs_json_parse(out, text, bytes);
    if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
    return status;
}

static gs_status read_and_parse(gs_json **out, const char *path, file_guard *guard) {
    char *text;
    size_t bytes;
    GS_TRY(read_file(&text, &bytes, path, guard));
    gs_status status = gs_sealed_json_parse(out, text, bytes);
    free(text);
    return gs_status_prefix(status, "%s", path);
}

gs_status gs_sealed_json_read(gs_json **out, const char *path) { return read_and_parse(out, path, NULL); }

gs_status gs_sealed_json_read_guarded(gs_json **out, gs_file_mark *mark, const char *path, unsigned forbidden) {
    file_guard guard = {.forbidden = forbidden};
    gs_status status = read_and_parse(out, path, &guard);
    if (mark) *mark = guard.mark;
    return status;
}
