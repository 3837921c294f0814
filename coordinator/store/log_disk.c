#include "coordinator/store/log_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/store/files/files.h"
#include "core/failpoint.h"

#define NUM_SEEN 4096
#define INDEX_EVERY_BYTES (64 << 10)
#define MAX_ANSWER_BYTES (600 << 10)

typedef struct gs_log_mark {
    uint64_t cursor;  // of the line at `offset`
    int64_t offset;
} gs_log_mark;

typedef struct gs_log_segment {
    int64_t number, bytes;
    uint64_t first_cursor;
    gs_log_mark *marks;  // owned; sparse
    size_t num_marks;
} gs_log_segment;

struct gs_log_disk {
    char *directory;  // owned
    bool loaded;
    gs_log_segment segments[GS_LOG_MAX_SEGMENTS];
    int num_segments;
    uint64_t next_cursor;
    // Both as of the last line that is known to be in its file: where a failure goes back to.
    uint64_t kept_cursor;
    int64_t kept_bytes;  // of the last segment
    FILE *file;  // the last segment, appending
    uint64_t *seen;  // owned; of the last NUM_SEEN lines that are kept; NULL: none
    size_t num_seen;
    uint64_t *fresh;  // owned; of the lines behind those
    size_t num_fresh, max_fresh;
};

gs_log_disk *gs_log_disk_create(const char *directory) {
    gs_log_disk *disk = calloc(1, sizeof *disk);
    if (disk) disk->directory = strdup(directory);
    if (!disk || !disk->directory) {
        free(disk);
        return NULL;
    }
    disk->next_cursor = disk->kept_cursor = 1;
    return disk;
}

void gs_log_disk_destroy(gs_log_disk *disk) {
    if (!disk) return;
    if (disk->file) fclose(disk->file);
    for (int i = 0; i < disk->num_segments; i++) free(disk->segments[i].marks);
    free(disk->seen);
    free(disk->fresh);
    free(disk->directory);
    free(disk);
}

static void segment_path(char *path, size_t path_bytes, const gs_log_disk *disk, int64_t number) {
    snprintf(path, path_bytes, "%s/log-%" PRId64 ".ndjson", disk->directory, number);
}

static bool is_among(const uint64_t *keys, size_t first, size_t end, uint64_t key) {
    for (size_t i = first; i < end; i++) {
        if (keys[i] == key) return true;
    }
    return false;
}

static bool is_repeat(const gs_log_disk *disk, uint64_t key) {
    size_t num_kept = disk->num_seen < NUM_SEEN ? disk->num_seen : NUM_SEEN;
    size_t first = disk->num_fresh < NUM_SEEN ? 0 : disk->num_fresh - NUM_SEEN;
    return is_among(disk->seen, 0, num_kept, key) || is_among(disk->fresh, first, disk->num_fresh, key);
}

// Without memory for it: a line twice rather than none.
static void note_kept(gs_log_disk *disk, uint64_t key) {
    if (!disk->seen) disk->seen = calloc(NUM_SEEN, sizeof *disk->seen);
    if (disk->seen) disk->seen[disk->num_seen++ % NUM_SEEN] = key;
}

static void note_fresh(gs_log_disk *disk, uint64_t key) {
    if (disk->num_fresh == disk->max_fresh) {
        size_t reserved = disk->max_fresh ? 2 * disk->max_fresh : 64;
        uint64_t *fresh = realloc(disk->fresh, reserved * sizeof *fresh);
        if (!fresh) return;
        disk->fresh = fresh;
        disk->max_fresh = reserved;
    }
    disk->fresh[disk->num_fresh++] = key;
}

// {"cursor":N,"key":"K",… : both are read without parsing the rest.
static bool read_prefix(const char *line, uint64_t *cursor, uint64_t *key) {
    return sscanf(line, "{\"cursor\":%" SCNu64 ",\"key\":\"%" SCNx64 "\"", cursor, key) == 2;
}

// Finds where counting goes on and which records were the last: what an agent sends again is known.
static gs_status scan_segment(gs_log_disk *disk, gs_log_segment *segment) {
    char path[1300];
    segment_path(path, sizeof path, disk, segment->number);
    FILE *file = fopen(path, "re");
    if (!file) return gs_error_from_errno(errno, "log: %s", path);
    char *line = NULL;
    size_t reserved = 0;
    ssize_t length;
    while ((length = getline(&line, &reserved, file)) > 0) {
        uint64_t cursor = 0, key = 0;
        if (line[length - 1] != '\n') break;  // a death cut it
        segment->bytes += length;
        if (!read_prefix(line, &cursor, &key)) continue;
        if (!segment->first_cursor) segment->first_cursor = cursor;
        if (cursor >= disk->next_cursor) disk->next_cursor = cursor + 1;
        note_kept(disk, key);
    }
    gs_status status = ferror(file) ? gs_error_from_errno(errno, "log: %s", path) : gs_ok();
    free(line);
    fclose(file);
    return status;
}

// The smallest number of a segment that is there; −1: none.
static gs_status find_oldest(int64_t *oldest, const gs_log_disk *disk) {
    *oldest = -1;
    DIR *list = opendir(disk->directory);
    if (!list) return errno == ENOENT ? gs_ok() : gs_error_from_errno(errno, "log: %s", disk->directory);
    int64_t number = 0;
    const struct dirent *entry;
    while ((errno = 0, entry = readdir(list))) {
        if (sscanf(entry->d_name, "log-%" SCNd64 ".ndjson", &number) != 1 || number < 0) continue;
        if (*oldest < 0 || number < *oldest) *oldest = number;
    }
    gs_status status = errno ? gs_error_from_errno(errno, "log: %s", disk->directory) : gs_ok();
    closedir(list);
    return status;
}

static void forget_segments(gs_log_disk *disk) {
    for (int i = 0; i < disk->num_segments; i++) free(disk->segments[i].marks);
    disk->num_segments = 0;
    disk->num_seen = disk->num_fresh = 0;
    disk->next_cursor = disk->kept_cursor;
    disk->kept_bytes = 0;
    disk->loaded = false;
}

static gs_status scan_segments(gs_log_disk *disk) {
    int64_t number;
    GS_TRY(find_oldest(&number, disk));
    // Segments are dropped from the front, so their numbers have no holes behind the first.
    for (; number >= 0 && disk->num_segments < GS_LOG_MAX_SEGMENTS; number++) {
        char path[1300];
        segment_path(path, sizeof path, disk, number);
        if (access(path, F_OK) != 0) break;
        gs_log_segment *segment = &disk->segments[disk->num_segments++];
        *segment = (gs_log_segment){.number = number};
        GS_TRY(scan_segment(disk, segment));
        disk->kept_bytes = segment->bytes;
    }
    return gs_ok();
}

// What cannot be read is not taken for nothing: lines would be numbered anew, over those that are there.
static gs_status load_segments(gs_log_disk *disk) {
    if (disk->loaded) return gs_ok();
    gs_status status = scan_segments(disk);
    if (status.code) {
        forget_segments(disk);
        return status;
    }
    disk->loaded = true;
    disk->kept_cursor = disk->next_cursor;
    return gs_ok();
}

static void keep_lines(gs_log_disk *disk) {
    for (size_t i = 0; i < disk->num_fresh; i++) note_kept(disk, disk->fresh[i]);
    disk->num_fresh = 0;
    disk->kept_cursor = disk->next_cursor;
    disk->kept_bytes = disk->num_segments ? disk->segments[disk->num_segments - 1].bytes : 0;
}

// What is behind the lines that are kept comes again: it is no repeat, and no line that is missed. Nothing is read for that.
static gs_status go_back(gs_log_disk *disk, gs_status status) {
    if (disk->file) fclose(disk->file);
    disk->file = NULL;
    disk->num_fresh = 0;
    disk->next_cursor = disk->kept_cursor;
    if (!disk->num_segments) return status;
    gs_log_segment *last = &disk->segments[disk->num_segments - 1];
    last->bytes = disk->kept_bytes;
    while (last->num_marks && last->marks[last->num_marks - 1].offset >= last->bytes) last->num_marks--;
    return status;
}

// What a death or a failure cut off in the middle of a line goes: the next line must not continue it, and it comes again.
static gs_status drop_behind(gs_log_disk *disk, int file, const char *path, int64_t bytes) {
    struct stat info;
    if (fstat(file, &info) < 0) return gs_error_from_errno(errno, "log: %s", path);
    if (info.st_size < bytes) {
        forget_segments(disk);  // the next line looks what is there
        return gs_error(GS_UNAVAILABLE, "log: %s: is shorter than what was written", path);
    }
    if (info.st_size > bytes && ftruncate(file, bytes) < 0) return gs_error_from_errno(errno, "log: %s", path);
    return gs_ok();
}

static gs_status finish_segment(gs_log_disk *disk) {
    int failed = fclose(disk->file);
    disk->file = NULL;
    if (failed) return gs_error_from_errno(errno, "log: write in %s", disk->directory);
    keep_lines(disk);
    return gs_ok();
}

static gs_status begin_segment(gs_log_disk *disk) {
    char path[1300];
    if (disk->num_segments == GS_LOG_MAX_SEGMENTS) {
        segment_path(path, sizeof path, disk, disk->segments[0].number);
        if (unlink(path) != 0 && errno != ENOENT) return gs_error_from_errno(errno, "log: %s", path);
        free(disk->segments[0].marks);
        memmove(disk->segments, disk->segments + 1,
                (size_t)(--disk->num_segments) * sizeof *disk->segments);
    }
    int64_t number = disk->num_segments ? disk->segments[disk->num_segments - 1].number : -1;
    // Over one that is there, behind another that somebody removed, nothing is written.
    do segment_path(path, sizeof path, disk, ++number);
    while (access(path, F_OK) == 0);
    disk->segments[disk->num_segments++] = (gs_log_segment){.number = number, .first_cursor = disk->next_cursor};
    disk->kept_bytes = 0;
    return gs_ok();
}

static gs_status open_segment(gs_log_disk *disk) {
    const gs_log_segment *last = disk->num_segments ? &disk->segments[disk->num_segments - 1] : NULL;
    bool is_full = !last || last->bytes >= GS_LOG_SEGMENT_BYTES;
    if (disk->file && !is_full) return gs_ok();
    if (disk->file) GS_TRY(finish_segment(disk));
    if (is_full) GS_TRY(begin_segment(disk));
    last = &disk->segments[disk->num_segments - 1];
    GS_TRY(gs_file_make_directory(disk->directory));
    char path[1300];
    segment_path(path, sizeof path, disk, last->number);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return gs_error_from_errno(errno, "log: %s", path);
    gs_status status = drop_behind(disk, file, path, last->bytes);
    if (!status.code) disk->file = fdopen(file, "a");
    if (disk->file) return gs_ok();
    if (!status.code) status = gs_error_from_errno(errno, "log: %s", path);
    close(file);
    return status;
}

static void mark_offset(gs_log_segment *segment, uint64_t cursor) {
    int64_t behind = segment->num_marks ? segment->marks[segment->num_marks - 1].offset : 0;
    if (segment->bytes - behind < INDEX_EVERY_BYTES) return;
    gs_log_mark *marks = realloc(segment->marks, (segment->num_marks + 1) * sizeof *marks);
    if (!marks) return;
    segment->marks = marks;
    segment->marks[segment->num_marks++] = (gs_log_mark){cursor, segment->bytes};
}

gs_status gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key) {
    GS_TRY(load_segments(disk));
    if (is_repeat(disk, key)) return gs_ok();
    gs_status opened = open_segment(disk);
    if (opened.code) return go_back(disk, opened);
    gs_log_segment *segment = &disk->segments[disk->num_segments - 1];
    if (!segment->first_cursor) segment->first_cursor = disk->next_cursor;
    mark_offset(segment, disk->next_cursor);
    int written = fprintf(disk->file, "{\"cursor\":%" PRIu64 ",\"key\":\"%016" PRIx64 "\",%s\n",
                          disk->next_cursor, key, line + 1);
    if (written < 0) return go_back(disk, gs_error_from_errno(errno, "log: write in %s", disk->directory));
    note_fresh(disk, key);
    segment->bytes += written;
    disk->next_cursor++;
    return gs_ok();
}

gs_status gs_log_disk_flush(gs_log_disk *disk) {
    if (disk->file && fflush(disk->file) != 0)
        return go_back(disk, gs_error_from_errno(errno, "log: write in %s", disk->directory));
    if (disk->file) keep_lines(disk);
    return gs_ok();
}

void gs_log_disk_rest(gs_log_disk *disk) {
    gs_status status = go_back(disk, gs_log_disk_flush(disk));
    (void)status;  // lines that are not there were not acknowledged
    forget_segments(disk);
    free(disk->seen);
    free(disk->fresh);
    disk->seen = disk->fresh = NULL;
    disk->max_fresh = 0;
}

gs_status gs_log_disk_put_aside(gs_log_disk *disk, char aside[GS_ASIDE_LEN]) {
    if (disk->file) fclose(disk->file);
    disk->file = NULL;
    return gs_leftovers_put_aside(aside, disk->directory);
}

int gs_log_level_rank(const char *name) {
    static const char *const names[] = {"debug", "info", "warning", "error", "warn"};
    for (int i = 0; i < 5; i++) {
        if (!strcmp(name, names[i])) return i == 4 ? 2 : i;
    }
    return -1;
}

static bool passes_rank(const gs_log_query *query, int64_t rank, int level) {
    if (query->all_ranks) return true;
    if (query->num_ranks == 0) return rank <= 0 || level >= 2;
    for (int i = 0; i < query->num_ranks; i++) {
        if (query->ranks[i] == rank) return true;
    }
    return false;
}

static bool passes(const gs_log_query *query, const gs_json *record) {
    int level = gs_log_level_rank(gs_json_string_or(record, "level", "info"));
    if (level < query->least_level) return false;
    if (!passes_rank(query, gs_json_int_or(record, "rank", -1), level)) return false;
    if (query->stream[0] && strcmp(query->stream, gs_json_string_or(record, "stream", ""))) return false;
    if (query->generation >= 0 && gs_json_int_or(record, "generation", -1) != query->generation) {
        return false;
    }
    return strstr(gs_json_string_or(record, "text", ""), query->grep) != NULL;
}

typedef struct gs_log_collection {
    gs_json **ring;  // of tail or limit records; owned while collecting
    size_t capacity, count;
    size_t bytes;
    bool keeps_last;  // tail: the oldest falls out
    bool full;
} gs_log_collection;

static void collect_record(gs_log_collection *collection, gs_json *record, size_t bytes) {
    if (collection->count >= collection->capacity) {  // only with tail
        size_t at = collection->count % collection->capacity;
        gs_json_release(collection->ring[at]);
        collection->ring[at] = record;
    } else {
        collection->ring[collection->count] = record;
    }
    collection->count++;
    collection->bytes += bytes;
    if (collection->keeps_last) return;
    collection->full = collection->count >= collection->capacity ||
                       collection->bytes > MAX_ANSWER_BYTES;
}

static void read_segment(gs_log_disk *disk, const gs_log_segment *segment, gs_log_answer *answer,
                         gs_log_collection *collection, const gs_log_query *query) {
    char path[1300];
    segment_path(path, sizeof path, disk, segment->number);
    FILE *file = fopen(path, "re");
    if (!file) return;
    int64_t offset = 0;
    for (size_t i = 0; i < segment->num_marks; i++) {
        if (segment->marks[i].cursor <= query->since + 1) offset = segment->marks[i].offset;
    }
    if (offset > 0 && fseeko(file, offset, SEEK_SET) != 0) {
        rewind(file);
        offset = 0;
    }
    char *line = NULL;
    size_t reserved = 0;
    ssize_t length;
    while (!collection->full && (length = getline(&line, &reserved, file)) > 0) {
        uint64_t cursor = 0, key = 0;
        offset += length;
        if (offset > segment->bytes) break;  // a write that failed left it: what is there comes again
        if (!read_prefix(line, &cursor, &key)) continue;
        if (cursor <= query->since) continue;
        answer->cursor = cursor;
        gs_json *record = NULL;
        gs_status status = gs_json_parse(&record, line, (size_t)length - 1);
        if (status.code) continue;  // a line that a crash cut and a later one continued
        if (!passes(query, record)) {
            gs_json_release(record);
            continue;
        }
        gs_json_remove(record, "key");
        gs_json_set_u64(record, "cursor", cursor);
        collect_record(collection, record, (size_t)length);
    }
    free(line);
    fclose(file);
}

static gs_json *take_records(gs_log_collection *collection) {
    gs_json *records = gs_json_new_array();
    size_t kept = collection->count < collection->capacity ? collection->count : collection->capacity;
    size_t first = collection->count - kept;
    for (size_t i = first; i < collection->count; i++) {
        gs_json_push(records, collection->ring[i % collection->capacity]);
    }
    free(collection->ring);
    return records;
}

static gs_json *dropped_marker(uint64_t first_cursor) {
    gs_json *record = gs_json_new_object();
    gs_json_set_u64(record, "cursor", first_cursor - 1);
    gs_json_set_string(record, "stream", "log");
    gs_json_set_string(record, "level", "warning");
    gs_json_set_string(record, "text", "(older lines were dropped: the log of this job is at its limit)");
    return record;
}

gs_status gs_log_disk_read(gs_log_disk *disk, gs_log_answer *answer, const gs_log_query *query) {
    GS_FAILPOINT("log.read");
    GS_TRY(gs_log_disk_flush(disk));
    GS_TRY(load_segments(disk));
    gs_log_collection collection = {.capacity = (size_t)(query->tail > 0 ? query->tail : query->limit),
                                    .keeps_last = query->tail > 0};
    collection.ring = calloc(collection.capacity + 1, sizeof *collection.ring);
    if (!collection.ring) return gs_error(GS_RESOURCE_EXHAUSTED, "log: out of memory");
    answer->cursor = query->since;
    uint64_t oldest = disk->num_segments ? disk->segments[0].first_cursor : 1;
    if (oldest > 1 && query->since + 1 < oldest) {
        collect_record(&collection, dropped_marker(oldest), 128);
    }
    for (int i = 0; i < disk->num_segments && !collection.full; i++) {
        bool behind = i + 1 < disk->num_segments &&
                      disk->segments[i + 1].first_cursor <= query->since + 1;
        if (!behind) read_segment(disk, &disk->segments[i], answer, &collection, query);
    }
    answer->at_end = !collection.full || answer->cursor + 1 == disk->next_cursor;
    answer->records = take_records(&collection);
    return gs_ok();
}
