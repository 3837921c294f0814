// Writing: a reader sees the old file or the new one, never half of one, whatever fails and
// whenever.
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "core/memory.h"
#include "core/random.h"
#include "rpc/json/json.h"
#include "rpc/checkpoint/safetensors.h"

#define DATA_ALIGNMENT 64
#define WRITE_BYTES ((size_t)1 << 20)

typedef struct output {
    gs_file_place place;
    char *temp_name;          // owned; beside it
    int fd;                   // -1: closed
    gs_digest_stream *digest; // owned; NULL when nobody asks
    size_t bytes;
    bool is_new;  // never in the place of another file
} output;

// What a file is made of. Data is the entries', or the source's where there is one.
typedef struct contents {
    const gs_safetensors_entry *entries;
    size_t num_entries;
    const gs_safetensors_metadata_entry *metadata;
    size_t num_metadata;
    const gs_safetensors_source *source;
} contents;

static const char *dtype_name_of(gs_dtype dtype) {
    switch (dtype) {
    case GS_FP32:
        return "F32";
    case GS_FP64:
        return "F64";
    case GS_FP16:
        return "F16";
    case GS_BF16:
        return "BF16";
    case GS_I64:
        return "I64";
    case GS_I32:
        return "I32";
    case GS_U8:
        return "U8";
    default:
        return NULL;
    }
}

static gs_status entry_bytes(size_t *bytes, const gs_safetensors_entry *entry) {
    *bytes = gs_dtype_bytes(entry->dtype);
    if (!dtype_name_of(entry->dtype) || entry->num_dims < 0 || entry->num_dims > GS_MAX_DIMS)
        return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": dtype or dimensions", entry->name);
    for (int i = 0; i < entry->num_dims; i++)
        if (entry->shape[i] < 0 || !gs_bytes_of(bytes, *bytes, (size_t)entry->shape[i]))
            return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": bad shape", entry->name);
    return gs_ok();
}

// Wide elements first, so that every tensor is aligned to its element.
static void order_entries(size_t *order, const gs_safetensors_entry *entries, size_t num_entries) {
    size_t placed = 0;
    for (size_t element_bytes = 8; element_bytes >= 1; element_bytes /= 2)
        for (size_t i = 0; i < num_entries; i++)
            if (gs_dtype_bytes(entries[i].dtype) == element_bytes) order[placed++] = i;
}

static gs_json *describe_entry(const gs_safetensors_entry *entry, size_t begin, size_t end) {
    gs_json *member = gs_json_new_object(), *shape = gs_json_new_array();
    gs_json *offsets = gs_json_new_array();
    gs_json_set_string(member, "dtype", dtype_name_of(entry->dtype));
    for (int i = 0; i < entry->num_dims; i++) gs_json_push(shape, gs_json_new_int(entry->shape[i]));
    gs_json_set(member, "shape", shape);
    gs_json_push(offsets, gs_json_new_int((int64_t)begin));
    gs_json_push(offsets, gs_json_new_int((int64_t)end));
    gs_json_set(member, "data_offsets", offsets);
    return member;
}

// The first bytes of the file: length and JSON, padded so that the data starts on DATA_ALIGNMENT.
static gs_status make_header(char **header, size_t *header_bytes, size_t *data_bytes,
                             const size_t *order, const contents *what) {
    gs_json *object = gs_json_new_object();
    if (what->num_metadata) {
        gs_json *values = gs_json_new_object();
        for (size_t i = 0; i < what->num_metadata; i++)
            gs_json_set_string(values, what->metadata[i].key, what->metadata[i].value);
        gs_json_set(object, "__metadata__", values);
    }
    gs_status status = gs_ok();
    *data_bytes = 0;
    for (size_t i = 0; i < what->num_entries && !status.code; i++) {
        const gs_safetensors_entry *entry = &what->entries[order[i]];
        size_t bytes;
        status = entry_bytes(&bytes, entry);
        if (!status.code && (gs_json_get(object, entry->name) || !*entry->name))
            status = gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\" is there twice or unnamed",
                              entry->name);
        if (status.code) break;
        gs_json_set(object, entry->name, describe_entry(entry, *data_bytes, *data_bytes + bytes));
        *data_bytes += bytes;
    }
    char *text = NULL;
    size_t text_bytes = 0;
    if (!status.code) status = gs_json_encode(&text, &text_bytes, object, false);
    gs_json_release(object);
    if (status.code) return status;

    *header_bytes = gs_round_up(8 + text_bytes, DATA_ALIGNMENT);
    *header = malloc(*header_bytes);
    if (!*header) {
        free(text);
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    memset(*header, ' ', *header_bytes);
    uint64_t length = *header_bytes - 8;
    for (int i = 0; i < 8; i++) (*header)[i] = (char)(uint8_t)(length >> (8 * i));
    memcpy(*header + 8, text, text_bytes);
    free(text);
    return gs_ok();
}

// A full disk by its other names too.
static gs_status write_error(int error_number, const char *what) {
    if (error_number == EDQUOT || error_number == EFBIG)
        return gs_error(GS_RESOURCE_EXHAUSTED, "%s: %s", what, strerror(error_number));
    return gs_error_from_errno(error_number, "%s", what);
}

static gs_status write_all(output *out, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes) {
        ssize_t written = write(out->fd, from, bytes < WRITE_BYTES ? bytes : WRITE_BYTES);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return write_error(errno, "write");
        if (out->digest) gs_digest_stream_add(out->digest, from, (size_t)written);
        from += written;
        bytes -= (size_t)written;
        out->bytes += (size_t)written;
    }
    return gs_ok();
}

static gs_status copy_entry(output *out, const gs_safetensors_source *source, size_t index,
                            size_t bytes) {
    void *piece = malloc(WRITE_BYTES);
    gs_status status = gs_ok();
    if (!piece) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t begin = 0; begin < bytes && !status.code; begin += WRITE_BYTES) {
        size_t piece_bytes = bytes - begin < WRITE_BYTES ? bytes - begin : WRITE_BYTES;
        status = source->read(source->ctx, index, piece, begin, piece_bytes);
        if (!status.code) status = write_all(out, piece, piece_bytes);
    }
    free(piece);
    return status;
}

static gs_status write_entry(output *out, const contents *what, size_t index) {
    GS_FAILPOINT("safetensors.write");
    size_t bytes;
    GS_TRY(entry_bytes(&bytes, &what->entries[index]));
    if (what->source) return copy_entry(out, what->source, index, bytes);
    return write_all(out, what->entries[index].data, bytes);
}

static gs_status open_temp(output *out, size_t total_bytes) {
    if (asprintf(&out->temp_name, "%s.tmp.%016llx", out->place.name,
                 (unsigned long long)gs_random_from_system()) < 0) {
        out->temp_name = NULL;
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    out->fd = openat(gs_file_place_fd(out->place), out->temp_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out->fd < 0) {
        gs_status status = write_error(errno, "create");
        free(out->temp_name); // nothing of ours to remove
        out->temp_name = NULL;
        return status;
    }
    GS_TRY(gs_file_place_share(out->place, out->fd));
    // Claims the room now, so that a full disk shows before the first byte. Some file systems
    // cannot.
    int error_number = posix_fallocate(out->fd, 0, (off_t)total_bytes);
    if (error_number && error_number != EOPNOTSUPP && error_number != EINVAL)
        return write_error(error_number, "allocate");
    return gs_ok();
}

static gs_status sync_directory(gs_file_place place) {
    if (place.directory) return gs_directory_sync(place.directory);
    char *copy = strdup(place.name);
    if (!copy) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    if (fd < 0) return gs_error_from_errno(errno, "open directory");
    gs_status status = gs_ok();
    // Some file systems refuse to sync a directory; they have nothing better to offer.
    if (fsync(fd) != 0 && errno != EINVAL) status = write_error(errno, "sync directory");
    close(fd);
    return status;
}

static gs_status give_name(const output *out) {
    int fd = gs_file_place_fd(out->place);
    if (!out->is_new) {
        if (renameat(fd, out->temp_name, fd, out->place.name) == 0) return gs_ok();
        return write_error(errno, "rename");
    }
    // Some file systems do not know the flag; a link fails as well where something has the name.
    if (renameat2(fd, out->temp_name, fd, out->place.name, RENAME_NOREPLACE) == 0)
        return gs_ok();
    if (errno == EINVAL && linkat(fd, out->temp_name, fd, out->place.name, 0) == 0) {
        unlinkat(fd, out->temp_name, 0);
        return gs_ok();
    }
    return write_error(errno, "rename");
}

static gs_status publish(output *out) {
    if (fsync(out->fd) != 0) return write_error(errno, "sync");
    int closed = close(out->fd);
    out->fd = -1;
    if (closed != 0) return write_error(errno, "close");
    GS_FAILPOINT("safetensors.rename");
    GS_TRY(give_name(out));
    free(out->temp_name);
    out->temp_name = NULL;
    return sync_directory(out->place);
}

static gs_status write_file(output *out, const contents *what) {
    for (size_t i = 0; i < what->num_entries; i++) {
        size_t bytes;
        GS_TRY(entry_bytes(&bytes, &what->entries[i]));
    }
    size_t *order = calloc(what->num_entries + 1, sizeof *order);
    if (!order) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    order_entries(order, what->entries, what->num_entries);
    char *header = NULL;
    size_t header_bytes = 0, data_bytes = 0;
    gs_status status = make_header(&header, &header_bytes, &data_bytes, order, what);
    if (!status.code) status = open_temp(out, header_bytes + data_bytes);
    if (!status.code) status = write_all(out, header, header_bytes);
    for (size_t i = 0; i < what->num_entries && !status.code; i++)
        status = write_entry(out, what, order[i]);
    free(header);
    free(order);
    if (status.code) return status;
    return publish(out);
}

static void release_output(output *out) {
    if (out->fd >= 0) close(out->fd);
    if (out->temp_name) {
        unlinkat(gs_file_place_fd(out->place), out->temp_name, 0);
        free(out->temp_name);
    }
    gs_digest_stream_destroy(out->digest);
}

gs_status gs_safetensors_write(const char *path, const gs_safetensors_entry *entries,
                               size_t num_entries, const gs_safetensors_metadata_entry *metadata,
                               size_t num_metadata, size_t *bytes, gs_digest *digest) {
    const contents what = {entries, num_entries, metadata, num_metadata, NULL};
    output out = {.fd = -1, .place = {NULL, path}};
    gs_status status = gs_ok();
    if (digest) out.digest = gs_digest_stream_create();
    if (digest && !out.digest) status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (!status.code) status = write_file(&out, &what);
    if (!status.code && bytes) *bytes = out.bytes;
    if (!status.code && digest) *digest = gs_digest_stream_value(out.digest);
    release_output(&out);
    return gs_status_prefix(status, "%s", path);
}

gs_status gs_safetensors_write_at(gs_file_place place, const gs_safetensors_entry *entries, size_t num_entries,
                                  const gs_safetensors_metadata_entry *metadata, size_t num_metadata) {
    const contents what = {entries, num_entries, metadata, num_metadata, NULL};
    output out = {.fd = -1, .place = place};
    gs_status status = write_file(&out, &what);
    release_output(&out);
    return gs_status_prefix(status, GS_PLACE, GS_PLACE_OF(place));
}

gs_status gs_safetensors_write_source_at(gs_file_place place, const gs_safetensors_source *source) {
    const contents what = {source->entries, source->num_entries, source->metadata, source->num_metadata, source};
    output out = {.fd = -1, .place = place};
    gs_status status = write_file(&out, &what);
    release_output(&out);
    return gs_status_prefix(status, GS_PLACE, GS_PLACE_OF(place));
}

gs_status gs_safetensors_create(const char *path, const gs_safetensors_source *source,
                                size_t *bytes) {
    const contents what = {source->entries, source->num_entries, source->metadata,
                           source->num_metadata, source};
    output out = {.fd = -1, .place = {NULL, path}, .is_new = true};
    gs_status status = write_file(&out, &what);
    if (!status.code && bytes) *bytes = out.bytes;
    release_output(&out);
    return gs_status_prefix(status, "%s", path);
}
