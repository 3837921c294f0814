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
    uint64_t next_cursor, kept_cursor;  // that one as of the last line that is known to be in its file
    FILE *file;  // the last segment, appending
    uint64_t *seen;  // owned; of the last NUM_SEEN lines; NULL: nothing is loaded
    size_t num_seen;
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
    free(disk->directory);
    free(disk);
}

static void segment_path(char *path, size_t path_bytes, const gs_log_disk *disk, int64_t number) {
    snprintf(path, path_bytes, "%s/log-%" PRId64 ".ndjson", disk->directory, number);
}

static bool note_key(gs_log_disk *disk, uint64_t key) {
    if (!disk->seen) disk->seen = calloc(NUM_SEEN, sizeof *disk->seen);
    if (!disk->seen) return true;  // a line twice rather than none
    size_t filled = disk->num_seen < NUM_SEEN ? disk->num_seen : NUM_SEEN;
    for (size_t i = 0; i < filled; i++) {
        if (disk->seen[i] == key) return false;
    }
    disk->seen[disk->num_seen++ % NUM_SEEN] = key;
    return true;
}

// {"cursor":N,"key":"K",… : both are read without parsing the rest.
static bool read_prefix(const char *line, uint64_t *cursor, uint64_t *key) {
    return sscanf(line, "{\"cursor\":%" SCNu64 ",\"key\":\"%" SCNx64 "\"", cursor, key) == 2;
}

// Finds where counting goes on and which records were the last: what an agent sends again is known.
static void scan_segment(gs_log_disk *disk, gs_log_segment *segment) {
    char path[1300];
    segment_path(path, sizeof path, disk, segment->number);
    FILE *file = fopen(path, "re");
    if (!file) return;
    char *line = NULL;
    size_t reserved = 0;
    ssize_t length;
    while ((length = getline(&line, &reserved, file)) > 0) {
        uint64_t cursor = 0, key = 0;
        if (line[length - 1] != '\n' || !read_prefix(line, &cursor, &key)) continue;
        if (!segment->first_cursor) segment->first_cursor = cursor;
        if (cursor >= disk->next_cursor) disk->next_cursor = cursor + 1;
        note_key(disk, key);
        segment->bytes += length;
    }
    free(line);
    fclose(file);
}

// The smallest number of a segment that is there; −1: none.
static int64_t find_oldest(const gs_log_disk *disk) {
    DIR *list = opendir(disk->directory);
    if (!list) return -1;
    int64_t oldest = -1, number = 0;
    const struct dirent *entry;
    while ((entry = readdir(list))) {
        if (sscanf(entry->d_name, "log-%" SCNd64 ".ndjson", &number) != 1 || number < 0) continue;
        if (oldest < 0 || number < oldest) oldest = number;
    }
    closedir(list);
    return oldest;
}

static void load_segments(gs_log_disk *disk) {
    if (disk->loaded) return;
    disk->loaded = true;
    int64_t number = find_oldest(disk);
    // Segments are dropped from the front, so their numbers have no holes behind the first.
    for (; number >= 0 && disk->num_segments < GS_LOG_MAX_SEGMENTS; number++) {
        char path[1300];
        segment_path(path, sizeof path, disk, number);
        if (access(path, F_OK) != 0) break;
        gs_log_segment *segment = &disk->segments[disk->num_segments++];
        *segment = (gs_log_segment){.number = number};
        scan_segment(disk, segment);
    }
    disk->kept_cursor = disk->next_cursor;
}

// What a death cut off in the middle of a line goes: the next line must not continue it, and it comes again.
static gs_status drop_cut_line(gs_log_segment *segment, int file, const char *path) {
    struct stat info;
    if (fstat(file, &info) < 0) return gs_error_from_errno(errno, "log: %s", path);
    int64_t end = info.st_size;
    char last = '\n';
    while (end > 0 && pread(file, &last, 1, end - 1) == 1 && last != '\n') end--;
    if (end < info.st_size && ftruncate(file, end) < 0) {
        return gs_error_from_errno(errno, "log: %s", path);
    }
    segment->bytes = end;
    return gs_ok();
}

static gs_status open_segment(gs_log_disk *disk) {
    gs_log_segment *last = disk->num_segments ? &disk->segments[disk->num_segments - 1] : NULL;
    if (disk->file && last->bytes < GS_LOG_SEGMENT_BYTES) return gs_ok();
    if (disk->file) fclose(disk->file);
    disk->file = NULL;
    if (!last || last->bytes >= GS_LOG_SEGMENT_BYTES) {
        int64_t number = last ? last->number + 1 : 0;
        if (disk->num_segments == GS_LOG_MAX_SEGMENTS) {
            char oldest[1300];
            segment_path(oldest, sizeof oldest, disk, disk->segments[0].number);
            unlink(oldest);
            free(disk->segments[0].marks);
            memmove(disk->segments, disk->segments + 1,
                    (size_t)(--disk->num_segments) * sizeof *disk->segments);
        }
        last = &disk->segments[disk->num_segments++];
        *last = (gs_log_segment){.number = number, .first_cursor = disk->next_cursor};
    }
    GS_TRY(gs_file_make_directory(disk->directory));
    char path[1300];
    segment_path(path, sizeof path, disk, last->number);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return gs_error_from_errno(errno, "log: %s", path);
    gs_status status = drop_cut_line(last, file, path);
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

// After a failure only the files say which lines are there: what is not comes again, is no repeat, and no line that is
// missed.
static gs_status forget_state(gs_log_disk *disk, gs_status status) {
    if (disk->file) fclose(disk->file);
    disk->file = NULL;
    for (int i = 0; i < disk->num_segments; i++) free(disk->segments[i].marks);
    disk->num_segments = 0;
    disk->num_seen = 0;
    disk->next_cursor = disk->kept_cursor;
    disk->loaded = false;
    return status;
}

gs_status gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key) {
    load_segments(disk);
    if (!note_key(disk, key)) return gs_ok();
    gs_status opened = open_segment(disk);
    if (opened.code) return forget_state(disk, opened);
    gs_log_segment *segment = &disk->segments[disk->num_segments - 1];
    if (!segment->first_cursor) segment->first_cursor = disk->next_cursor;
    mark_offset(segment, disk->next_cursor);
    int written = fprintf(disk->file, "{\"cursor\":%" PRIu64 ",\"key\":\"%016" PRIx64 "\",%s\n",
                          disk->next_cursor, key, line + 1);
    if (written < 0) {
        return forget_state(disk, gs_error_from_errno(errno, "log: write in %s", disk->directory));
    }
    segment->bytes += written;
    disk->next_cursor++;
    return gs_ok();
}

gs_status gs_log_disk_flush(gs_log_disk *disk) {
    if (!disk->file || fflush(disk->file) == 0) {
        disk->kept_cursor = disk->next_cursor;
        return gs_ok();
    }
    return forget_state(disk, gs_error_from_errno(errno, "log: write in %s", disk->directory));
}

void gs_log_disk_rest(gs_log_disk *disk) {
    gs_status status = forget_state(disk, gs_log_disk_flush(disk));
    (void)status;  // lines that are not there were not acknowledged
    free(disk->seen);
    disk->seen = NULL;
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
    if (offset > 0 && fseeko(file, offset, SEEK_SET) != 0) rewind(file);
    char *line = NULL;
    size_t reserved = 0;
    ssize_t length;
    while (!collection->full && (length = getline(&line, &reserved, file)) > 0) {
        uint64_t cursor = 0, key = 0;
        if (line[length - 1] != '\n' || !read_prefix(line, &cursor, &key)) continue;
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
    load_segments(disk);
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
