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

static gs_status write_all(int fd, const char *text, size_t bytes, gs_file_place place, bool is_kept) {
    while (bytes) {
        ssize_t put = write(fd, text, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return gs_error_from_errno(errno, "write " GS_PLACE, GS_PLACE_OF(place));
        text += put;
        bytes -= (size_t)put;
    }
    if (is_kept && fsync(fd) < 0) return gs_error_from_errno(errno, "sync " GS_PLACE, GS_PLACE_OF(place));
    return gs_ok();
}

static gs_status sync_directory_of(gs_file_place place) {
    if (place.directory) return gs_directory_sync(place.directory);
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", place.name);
    char *slash = strrchr(directory, '/');
    if (slash) *slash = '\0';
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "%s", directory);
    int failed = fsync(fd);
    int error_number = errno;
    close(fd);
    return failed ? gs_error_from_errno(error_number, "sync %s", directory) : gs_ok();
}

static void remove_file(gs_file_place place) { unlinkat(gs_file_place_fd(place), place.name, 0); }

static gs_status rename_file(gs_file_place from, gs_file_place to) {
    GS_FAILPOINT("checkpoint.rename");
    if (renameat(gs_file_place_fd(from), from.name, gs_file_place_fd(to), to.name) == 0) return gs_ok();
    return gs_error_from_errno(errno, "rename " GS_PLACE, GS_PLACE_OF(from));
}

// Under a name that nobody has.
static gs_status create_file(gs_file_place place, const char *text, size_t bytes, bool is_kept, mode_t mode) {
    int fd = openat(gs_file_place_fd(place), place.name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) return gs_error_from_errno(errno, GS_PLACE, GS_PLACE_OF(place));
    gs_status status = gs_file_place_share(place, fd);
    if (!status.code) status = write_all(fd, text, bytes, place, is_kept);
    if (close(fd) < 0 && !status.code) status = gs_error_from_errno(errno, "close " GS_PLACE, GS_PLACE_OF(place));
    if (status.code) remove_file(place);
    return status;
}

// The same road as for part files: a temporary name, synced, closed, renamed, directory synced.
static gs_status write_file(gs_file_place place, const char *text, size_t bytes, bool is_kept, mode_t mode) {
    char name[PATH_MAX];
    const gs_file_place temporary = {place.directory, name};
    snprintf(name, sizeof name, "%s.tmp.%08x", place.name, (unsigned)gs_random_from_system());
    GS_TRY(create_file(temporary, text, bytes, is_kept, mode));
    gs_status status = rename_file(temporary, place);
    if (status.code) {
        remove_file(temporary);
        return status;
    }
    return is_kept ? sync_directory_of(place) : gs_ok();
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

static gs_status write_sealed(gs_json *object, gs_file_place place, uint64_t *bytes, gs_digest *digest, mode_t mode) {
    char *text;
    GS_TRY(seal(&text, object, place.name, bytes, digest));
    gs_status status = write_file(place, text, (size_t)*bytes, true, mode);
    free(text);
    return status;
}

gs_status gs_sealed_json_write(gs_json *object, const char *path, uint64_t *bytes, gs_digest *digest) {
    return gs_sealed_json_write_at(object, (gs_file_place){NULL, path}, bytes, digest);
}

gs_status gs_sealed_json_write_at(gs_json *object, gs_file_place place, uint64_t *bytes, gs_digest *digest) {
    return write_sealed(object, place, bytes, digest, MODE_PRIVATE);
}

gs_status gs_sealed_json_put(gs_json *object, gs_file_place place) {
    uint64_t bytes;
    gs_digest digest;
    return write_sealed(object, place, &bytes, &digest, MODE_SHARED);
}

gs_status gs_sealed_json_text(char **text, gs_json *object) {
    uint64_t bytes;
    gs_digest digest;
    return seal(text, object, "sealed text", &bytes, &digest);
}

gs_status gs_sealed_json_show(gs_json *object, gs_file_place place) {
    char *text;
    uint64_t bytes;
    gs_digest digest;
    GS_TRY(seal(&text, object, place.name, &bytes, &digest));
    gs_status status = write_file(place, text, (size_t)bytes, false, MODE_SHARED);
    free(text);
    return status;
}

gs_status gs_sealed_json_draft(gs_json *object, gs_file_place draft, uint64_t *bytes, gs_digest *digest) {
    char *text;
    GS_TRY(seal(&text, object, draft.name, bytes, digest));
    gs_status status = create_file(draft, text, (size_t)*bytes, true, MODE_SHARED);
    free(text);
    return status;
}

// What a server has removed while a file of it was known here is stale.
static bool is_away(int error_number) { return error_number == ENOENT || error_number == ESTALE; }

gs_status gs_sealed_json_publish(gs_file_place draft, gs_file_place place) {
    gs_status status = rename_file(draft, place);
    if (!status.code) return sync_directory_of(place);
    if (faccessat(gs_file_place_fd(draft), draft.name, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && is_away(errno))
        return gs_error(GS_ABORTED, GS_PLACE ": somebody has removed it", GS_PLACE_OF(draft));
    remove_file(draft);
    return status;
}

typedef struct file_guard {
    unsigned forbidden;
    gs_file_mark mark;
} file_guard;

static gs_status read_file(char **text, size_t *bytes, gs_file_place place, file_guard *guard) {
    // A pipe that somebody left there must not hold up whoever looks.
    int fd = openat(gs_file_place_fd(place), place.name, O_RDONLY | O_CLOEXEC | (guard ? 0 : O_NOFOLLOW) | O_NONBLOCK);
    if (fd < 0) return gs_error_from_errno(errno, GS_PLACE, GS_PLACE_OF(place));
    struct stat facts;
    gs_status status = gs_ok();
    *text = NULL;
    if (fstat(fd, &facts) < 0) {
        status = gs_error_from_errno(errno, GS_PLACE, GS_PLACE_OF(place));
    } else if (!S_ISREG(facts.st_mode)) {
        status = gs_error(GS_DATA_LOSS, GS_PLACE ": is no regular file", GS_PLACE_OF(place));
    } else if (guard && (status = gs_file_check_guarded(&facts, place.name, guard->forbidden)).code) {
        // Said.
    } else if (facts.st_size > MAX_BYTES) {
        status = gs_error(GS_DATA_LOSS, GS_PLACE ": too large for a sealed file", GS_PLACE_OF(place));
    } else if (!(*text = malloc((size_t)facts.st_size + 1))) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, GS_PLACE ": out of memory", GS_PLACE_OF(place));
    } else if (read(fd, *text, (size_t)facts.st_size) != facts.st_size) {
        status = gs_error(GS_DATA_LOSS, GS_PLACE ": short read", GS_PLACE_OF(place));
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

static gs_status read_and_parse(gs_json **out, gs_file_place place, file_guard *guard) {
    char *text;
    size_t bytes;
    GS_TRY(read_file(&text, &bytes, place, guard));
    gs_status status = gs_sealed_json_parse(out, text, bytes);
    free(text);
    return gs_status_prefix(status, GS_PLACE, GS_PLACE_OF(place));
}

gs_status gs_sealed_json_read(gs_json **out, const char *path) { return read_and_parse(out, (gs_file_place){NULL, path}, NULL); }

gs_status gs_sealed_json_read_at(gs_json **out, gs_file_place place) { return read_and_parse(out, place, NULL); }

gs_status gs_sealed_json_read_guarded(gs_json **out, gs_file_mark *mark, const char *path, unsigned forbidden) {
    file_guard guard = {.forbidden = forbidden};
    gs_status status = read_and_parse(out, (gs_file_place){NULL, path}, &guard);
    if (mark) *mark = guard.mark;
    return status;
}
