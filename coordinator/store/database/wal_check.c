#include "coordinator/store/database/wal_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"

// Format 3007000 of SQLite's documentation, "WAL-mode File Format". All numbers are big-endian; the magic's last bit says in
// which byte order checksums take the words of what they sum.
#define HEADER_BYTES 32
#define FRAME_HEADER_BYTES 24
#define MAGIC 0x377f0682u
#define FORMAT 3007000u
#define USUAL_PAGE_BYTES 4096u

typedef struct checksum {
    uint32_t a, b;
} checksum;

typedef struct frame {
    uint32_t page, commits;  // size of the database behind it where it ends a transaction, else 0
    uint32_t salts[2];       // of the log's header, as long as that stays
    checksum stored, from_stored, from_valid;  // its own; what it would be behind the frame before as that says, and as it is
} frame;

typedef struct wal {
    int file;
    const char *path;
    uint8_t *bytes;  // owned; of a frame
    size_t page_bytes, num_frames;
    bool is_big_endian, is_header_whole;
    uint32_t salts[2];
    checksum header, header_again;  // stored; of what it says
} wal;

static uint32_t number_at(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint32_t word_at(const wal *it, const uint8_t *bytes) {
    uint32_t word = number_at(bytes);
    return it->is_big_endian ? word : __builtin_bswap32(word);
}

static checksum sum(const wal *it, checksum seed, const uint8_t *bytes, size_t num_bytes) {
    for (size_t i = 0; i + 8 <= num_bytes; i += 8) {
        seed.a += word_at(it, bytes + i) + seed.b;
        seed.b += word_at(it, bytes + i + 4) + seed.a;
    }
    return seed;
}

static bool same(checksum x, checksum y) { return x.a == y.a && x.b == y.b; }

static checksum checksum_at(const uint8_t *bytes) { return (checksum){number_at(bytes), number_at(bytes + 4)}; }

static bool is_page_size(uint32_t bytes) { return bytes >= 512 && bytes <= 65536 && !(bytes & (bytes - 1)); }

// That the disk does not give it now says nothing of what is on it.
static gs_status error_of_read(int error_number, const char *path) {
    gs_status status = gs_error_from_errno(error_number, "%s", path);
    if (error_number == EIO) status.code = GS_UNAVAILABLE;
    return status;
}

static gs_status read_all(const wal *it, uint8_t *bytes, size_t num_bytes, off_t at) {
    for (size_t done = 0; done < num_bytes;) {
        ssize_t got = pread(it->file, bytes + done, num_bytes - done, at + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_of_read(errno, it->path);
        if (got == 0) return gs_error(GS_UNAVAILABLE, "%s: grew shorter", it->path);
        done += (size_t)got;
    }
    return gs_ok();
}

static gs_status read_header(wal *it, off_t file_bytes) {
    uint8_t header[HEADER_BYTES];
    GS_TRY(read_all(it, header, sizeof header, 0));
    uint32_t magic = number_at(header), page_bytes = number_at(header + 8);
    bool is_known = (magic & ~1u) == MAGIC && number_at(header + 4) == FORMAT && is_page_size(page_bytes);
    it->is_big_endian = is_known && (magic & 1);
    it->page_bytes = is_page_size(page_bytes) ? page_bytes : USUAL_PAGE_BYTES;
    it->salts[0] = number_at(header + 16);
    it->salts[1] = number_at(header + 20);
    it->header = checksum_at(header + 24);
    it->header_again = sum(it, (checksum){0}, header, 24);
    it->is_header_whole = is_known && same(it->header, it->header_again);
    it->num_frames = ((size_t)file_bytes - HEADER_BYTES) / (FRAME_HEADER_BYTES + it->page_bytes);
    it->bytes = malloc(FRAME_HEADER_BYTES + it->page_bytes);
    return it->bytes ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", it->path);
}

// Behind a frame that says `stored`, and is `valid` by what can be computed up to there.
static gs_status read_frame(frame *out, const wal *it, size_t index, checksum stored, checksum valid) {
    size_t bytes = FRAME_HEADER_BYTES + it->page_bytes;
    GS_TRY(read_all(it, it->bytes, bytes, (off_t)(HEADER_BYTES + index * bytes)));
    const uint8_t *page = it->bytes + FRAME_HEADER_BYTES;
    *out = (frame){.page = number_at(it->bytes),
                   .commits = number_at(it->bytes + 4),
                   .salts = {number_at(it->bytes + 8), number_at(it->bytes + 12)},
                   .stored = checksum_at(it->bytes + 16)};
    out->from_stored = sum(it, sum(it, stored, it->bytes, 8), page, it->page_bytes);
    out->from_valid = sum(it, sum(it, valid, it->bytes, 8), page, it->page_bytes);
    return gs_ok();
}

static bool is_of_log(const wal *it, const frame *found) {
    return found->page != 0 && found->salts[0] == it->salts[0] && found->salts[1] == it->salts[1];
}

// It was written behind the one before, whatever has become of that.
static bool follows(const frame *found) { return same(found->stored, found->from_stored) || same(found->stored, found->from_valid); }

// The first that is not as it was written; num_frames: all are.
static gs_status find_end(const wal *it, size_t *end, checksum *valid) {
    *valid = it->header;
    for (*end = 0; *end < it->num_frames; ++*end) {
        frame found;
        GS_TRY(read_frame(&found, it, *end, *valid, *valid));
        if (!is_of_log(it, &found) || !same(found.stored, found.from_valid)) return gs_ok();
        *valid = found.stored;
    }
    return gs_ok();
}

// What lies behind the end: of this log, and behind a commit that is not in front of the end?
static gs_status look_behind(const wal *it, size_t end, checksum valid, bool *is_lost, size_t *num_behind) {
    bool was_commit = false;
    frame before = {.stored = valid, .from_valid = valid};
    for (size_t i = end; i < it->num_frames && !*is_lost; i++) {
        frame found;
        GS_TRY(read_frame(&found, it, i, before.stored, i == end + 1 ? before.from_valid : before.stored));
        *num_behind += is_of_log(it, &found);
        *is_lost = was_commit && is_of_log(it, &found) && follows(&found);
        was_commit = found.commits != 0;
        before = found;
    }
    return gs_ok();
}

// A header that is not whole is none to SQLite. One that was never whole has no frame behind it that follows from it.
static gs_status check_header(const wal *it) {
    frame first;
    if (it->num_frames == 0) return gs_ok();
    GS_TRY(read_frame(&first, it, 0, it->header, it->header_again));
    if (first.page == 0 || !follows(&first)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "store: the header of %s is damaged, and %zu frames behind it are not read", it->path, it->num_frames);
}

static gs_status check_frames(const wal *it) {
    size_t end = 0, num_behind = 0;
    checksum valid;
    bool is_lost = false;
    GS_TRY(find_end(it, &end, &valid));
    GS_TRY(look_behind(it, end, valid, &is_lost, &num_behind));
    if (is_lost)
        return gs_error(GS_DATA_LOSS, "store: frame %zu of %zu in %s is damaged, and transactions were committed behind it",
                        end + 1, it->num_frames, it->path);
    if (num_behind > 0)
        gs_log_warn("end of the log is not whole", "path=%s frame=%zu frames=%zu of=\"a transaction that a crash cut off, or damage\"",
                    it->path, end + 1, num_behind);
    return gs_ok();
}

static gs_status check(wal *it) {
    struct stat info;
    if (fstat(it->file, &info) != 0) return error_of_read(errno, it->path);
    if (info.st_size < HEADER_BYTES) return gs_ok();
    GS_TRY(read_header(it, info.st_size));
    return it->is_header_whole ? check_frames(it) : check_header(it);
}

gs_status gs_wal_check(const char *path) {
    char name[4200];
    snprintf(name, sizeof name, "%s-wal", path);
    wal it = {.path = name, .file = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (it.file < 0) return errno == ENOENT ? gs_ok() : error_of_read(errno, name);
    gs_status status = check(&it);
    close(it.file);
    free(it.bytes);
    return status;
}
