// Reading: everything is checked against the bytes that are there before anything is believed.
#include "rpc/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"
#include "rpc/json/json.h"

#define MAX_HEADER_BYTES 100000000u
#define LENGTH_BYTES 8
// A parsed value may take a kilobyte: without this bound 100 MB of "{},{}," would take many GB.
// Some hundred thousand tensors fit.
#define MAX_HEADER_MARKS 1000000u

static const struct {
    const char *name;
    size_t bytes;
    gs_dtype dtype;
} file_dtypes[] = {
    {"F32", 4, GS_FP32},
    {"F64", 8, GS_FP64},
    {"F16", 2, GS_FP16},
    {"BF16", 2, GS_BF16},
    {"I64", 8, GS_I64},
    {"I32", 4, GS_I32},
    {"U8", 1, GS_U8},
    {"BOOL", 1, GS_DTYPE_UNSET},
    {"I8", 1, GS_DTYPE_UNSET},
    {"I16", 2, GS_DTYPE_UNSET},
    {"U16", 2, GS_DTYPE_UNSET},
    {"U32", 4, GS_DTYPE_UNSET},
    {"U64", 8, GS_DTYPE_UNSET},
    {"F8_E4M3", 1, GS_DTYPE_UNSET},
    {"F8_E5M2", 1, GS_DTYPE_UNSET},
};
#define NUM_FILE_DTYPES (sizeof file_dtypes / sizeof *file_dtypes)

struct gs_safetensors {
    int fd;           // owned; -1: all of it is in memory
    void *loaded;     // owned; NULL: the bytes are borrowed, or in the file
    gs_json *header;  // owned; metadata is looked up in it
    const uint8_t *data;  // NULL: in the file
    size_t data_begin, data_bytes;
    gs_safetensor *tensors;  // owned, their names too; sorted by name
    size_t count;
};

// What visiting the header's members carries along.
typedef struct header_walk {
    gs_safetensors *file;
    gs_status status;
} header_walk;

static gs_status read_shape(gs_safetensor *tensor, const gs_json *member, size_t *elements) {
    const gs_json *shape = gs_json_get(member, "shape");
    if (gs_json_type_of(shape) != GS_JSON_ARRAY) return gs_error(GS_DATA_LOSS, "no shape");
    size_t num_dims = gs_json_count(shape);
    if (num_dims > GS_MAX_DIMS)
        return gs_error(GS_DATA_LOSS, "%zu dimensions, at most %d are read", num_dims, GS_MAX_DIMS);
    tensor->num_dims = (int)num_dims;
    *elements = 1;
    for (size_t i = 0; i < num_dims; i++) {
        int64_t size;
        if (!gs_json_int(&size, gs_json_at(shape, i)) || size < 0)
            return gs_error(GS_DATA_LOSS, "shape: dimension %zu is not a size", i);
        tensor->shape[i] = size;
        if (!gs_bytes_of(elements, *elements, (size_t)size))
            return gs_error(GS_DATA_LOSS, "shape overflows");
    }
    return gs_ok();
}

static gs_status read_dtype(gs_safetensor *tensor, const gs_json *member, size_t *element_bytes) {
    const char *name = gs_json_string_or(member, "dtype", "");
    for (size_t i = 0; i < NUM_FILE_DTYPES; i++) {
        if (strcmp(name, file_dtypes[i].name) != 0) continue;
        tensor->dtype_name = file_dtypes[i].name;
        tensor->dtype = file_dtypes[i].dtype;
        *element_bytes = file_dtypes[i].bytes;
        return gs_ok();
    }
    return gs_error(GS_DATA_LOSS, "dtype \"%.32s\" is unknown", name);
}

static gs_status read_tensor(gs_safetensor *tensor, const gs_safetensors *file,
                             const gs_json *member) {
    if (gs_json_type_of(member) != GS_JSON_OBJECT) return gs_error(GS_DATA_LOSS, "not an object");
    size_t element_bytes, elements, bytes;
    GS_TRY(read_dtype(tensor, member, &element_bytes));
    GS_TRY(read_shape(tensor, member, &elements));
    if (!gs_bytes_of(&bytes, elements, element_bytes))
        return gs_error(GS_DATA_LOSS, "shape overflows");

    const gs_json *offsets = gs_json_get(member, "data_offsets");
    int64_t begin, end;
    if (gs_json_type_of(offsets) != GS_JSON_ARRAY || gs_json_count(offsets) != 2 ||
        !gs_json_int(&begin, gs_json_at(offsets, 0)) || !gs_json_int(&end, gs_json_at(offsets, 1)))
        return gs_error(GS_DATA_LOSS, "no data_offsets");
    if (begin < 0 || begin > end || (uint64_t)end > file->data_bytes)
        return gs_error(GS_DATA_LOSS, "data_offsets [%lld, %lld] are outside %zu bytes of data",
                        (long long)begin, (long long)end, file->data_bytes);
    if ((uint64_t)(end - begin) != bytes)
        return gs_error(GS_DATA_LOSS, "%lld bytes of data for a shape of %zu",
                        (long long)(end - begin), bytes);
    tensor->begin = (size_t)begin;
    tensor->bytes = bytes;
    tensor->data = file->data ? file->data + begin : NULL;
    return gs_ok();
}

static gs_status check_metadata(const gs_json *metadata);

static bool visit_member(void *ctx, const char *key, const gs_json *value) {
    header_walk *walk = ctx;
    gs_safetensors *file = walk->file;
    if (strcmp(key, "__metadata__") == 0) {
        walk->status = check_metadata(value);
        return !walk->status.code;
    }
    gs_safetensor *tensor = &file->tensors[file->count];
    walk->status = read_tensor(tensor, file, value);
    if (walk->status.code) {
        walk->status = gs_status_prefix(walk->status, "tensor \"%.100s\"", key);
        return false;
    }
    tensor->name = strdup(key);
    if (!tensor->name) {
        walk->status = gs_error(GS_RESOURCE_EXHAUSTED, "safetensors: out of memory");
        return false;
    }
    file->count++;
    return true;
}

static bool visit_metadata(void *ctx, const char *key, const gs_json *value) {
    gs_status *status = ctx;
    if (gs_json_type_of(value) == GS_JSON_STRING) return true;
    *status = gs_error(GS_DATA_LOSS, "__metadata__: \"%.100s\" is not a string", key);
    return false;
}

static gs_status check_metadata(const gs_json *metadata) {
    if (gs_json_type_of(metadata) != GS_JSON_OBJECT)
        return gs_error(GS_DATA_LOSS, "__metadata__ is not an object");
    gs_status status = gs_ok();
    gs_json_each(metadata, visit_metadata, &status);
    return status;
}

static int compare_places(const void *a, const void *b) {
    const gs_safetensor *x = *(const gs_safetensor *const *)a,
                        *y = *(const gs_safetensor *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const gs_safetensor *)a)->name, ((const gs_safetensor *)b)->name);
}

// Every byte of data belongs to exactly one tensor.
static gs_status check_places(const gs_safetensors *file) {
    const gs_safetensor **order = calloc(file->count + 1, sizeof(const gs_safetensor *));
    if (!order) return gs_error(GS_RESOURCE_EXHAUSTED, "safetensors: out of memory");
    for (size_t i = 0; i < file->count; i++) order[i] = &file->tensors[i];
    qsort(order, file->count, sizeof *order, compare_places);

    gs_status status = gs_ok();
    size_t end = 0;
    for (size_t i = 0; i < file->count && !status.code; i++) {
        if (order[i]->begin != end)
            status = gs_error(GS_DATA_LOSS, "tensor \"%.100s\": its data %s", order[i]->name,
                              order[i]->begin < end ? "overlaps another tensor's"
                                                    : "leaves a hole before it");
        end = order[i]->begin + order[i]->bytes;
    }
    if (!status.code && end != file->data_bytes)
        status = gs_error(GS_DATA_LOSS, "%zu bytes of data after the last tensor",
                          file->data_bytes - end);
    free(order);
    return status;
}

// Every value but the first follows one of these; those in strings count too.
static bool is_too_rich(const char *text, size_t bytes) {
    size_t marks = 0;
    for (size_t i = 0; i < bytes; i++) marks += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return marks > MAX_HEADER_MARKS;
}

// What the first bytes say of a file of num_bytes.
static gs_status read_length(size_t *header_bytes, const uint8_t bytes[LENGTH_BYTES],
                             size_t num_bytes) {
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > MAX_HEADER_BYTES || length > num_bytes - LENGTH_BYTES)
        return gs_error(GS_DATA_LOSS, "a header of %llu bytes in a file of %zu",
                        (unsigned long long)length, num_bytes);
    *header_bytes = (size_t)length;
    return gs_ok();
}

static gs_status read_header(gs_safetensors *file, const char *text, size_t header_bytes,
                             size_t num_bytes) {
    if (!header_bytes || text[0] != '{')
        return gs_error(GS_DATA_LOSS, "the header does not start with {");
    if (is_too_rich(text, header_bytes))
        return gs_error(GS_DATA_LOSS, "the header has more than %u values", MAX_HEADER_MARKS);
    gs_status status = gs_json_parse(&file->header, text, header_bytes);
    if (status.code) {
        if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
        return gs_status_prefix(status, "header");
    }
    file->data_begin = LENGTH_BYTES + header_bytes;
    file->data_bytes = num_bytes - file->data_begin;
    file->tensors = calloc(gs_json_count(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "safetensors: out of memory");

    header_walk walk = {file, gs_ok()};
    gs_json_each(file->header, visit_member, &walk);
    if (walk.status.code) return walk.status;
    GS_TRY(check_places(file));
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_names);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return gs_error(GS_DATA_LOSS, "tensor \"%.100s\" is there twice",
                            file->tensors[i].name);
    return gs_ok();
}

static gs_status read_memory(gs_safetensors *file, const uint8_t *bytes, size_t num_bytes) {
    size_t header_bytes;
    if (num_bytes < LENGTH_BYTES)
        return gs_error(GS_DATA_LOSS, "%zu bytes are no safetensors file", num_bytes);
    GS_TRY(read_length(&header_bytes, bytes, num_bytes));
    file->data = bytes + LENGTH_BYTES + header_bytes;
    return read_header(file, (const char *)bytes + LENGTH_BYTES, header_bytes, num_bytes);
}

static gs_status create_file(gs_safetensors **out) {
    *out = calloc(1, sizeof **out);
    if (!*out) return gs_error(GS_RESOURCE_EXHAUSTED, "safetensors: out of memory");
    (*out)->fd = -1;
    return gs_ok();
}

gs_status gs_safetensors_open_memory(gs_safetensors **out, const void *data, size_t bytes) {
    gs_safetensors *file;
    GS_TRY(create_file(&file));
    gs_status status = read_memory(file, data, bytes);
    if (status.code) {
        gs_safetensors_close(file);
        return status;
    }
    *out = file;
    return gs_ok();
}

static gs_status open_file(gs_safetensors *file, size_t *bytes, gs_file_place place) {
    struct stat info;
    int no_links = place.directory ? O_NOFOLLOW : 0;
    file->fd = openat(gs_file_place_fd(place), place.name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | no_links);
    if (file->fd < 0) return gs_error_from_errno(errno, "open");
    if (fstat(file->fd, &info) != 0) return gs_error_from_errno(errno, "stat");
    if (!S_ISREG(info.st_mode)) return gs_error(GS_INVALID_ARGUMENT, "not a regular file");
    if (info.st_size < LENGTH_BYTES)
        return gs_error(GS_DATA_LOSS, "%lld bytes are no safetensors file",
                        (long long)info.st_size);
    *bytes = (size_t)info.st_size;
    return gs_ok();
}

static gs_status read_bytes(int fd, void *to, size_t begin, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)(begin + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gs_error_from_errno(errno, "read");
        if (got == 0)
            return gs_error(GS_DATA_LOSS, "was cut short while it is read: it ends at byte %zu",
                            begin + done);
        done += (size_t)got;
    }
    return gs_ok();
}

static gs_status read_file_header(gs_safetensors *file, size_t num_bytes) {
    uint8_t length[LENGTH_BYTES];
    size_t header_bytes;
    GS_TRY(read_bytes(file->fd, length, 0, sizeof length));
    GS_TRY(read_length(&header_bytes, length, num_bytes));
    char *text = malloc(header_bytes + 1);
    if (!text) return gs_error(GS_RESOURCE_EXHAUSTED, "safetensors: out of memory");
    gs_status status = read_bytes(file->fd, text, LENGTH_BYTES, header_bytes);
    if (!status.code) status = read_header(file, text, header_bytes, num_bytes);
    free(text);
    return status;
}

gs_status gs_safetensors_open(gs_safetensors **out, const char *path) {
    return gs_safetensors_open_at(out, (gs_file_place){NULL, path});
}

gs_status gs_safetensors_open_at(gs_safetensors **out, gs_file_place place) {
    gs_safetensors *file;
    size_t bytes;
    GS_TRY(create_file(&file));
    gs_status status = open_file(file, &bytes, place);
    if (!status.code) status = read_file_header(file, bytes);
    if (status.code) {
        gs_safetensors_close(file);
        return gs_status_prefix(status, GS_PLACE, GS_PLACE_OF(place));
    }
    *out = file;
    return gs_ok();
}

gs_status gs_safetensors_load(gs_safetensors **out, const char *path) {
    gs_safetensors *file;
    GS_TRY(gs_safetensors_open(&file, path));
    file->loaded = malloc(file->data_bytes + 1);
    gs_status status = file->loaded
                           ? read_bytes(file->fd, file->loaded, file->data_begin, file->data_bytes)
                           : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (status.code) {
        gs_safetensors_close(file);
        return gs_status_prefix(status, "%s", path);
    }
    for (size_t i = 0; i < file->count; i++)
        file->tensors[i].data = (const uint8_t *)file->loaded + file->tensors[i].begin;
    *out = file;
    return gs_ok();
}

gs_status gs_safetensors_read(const gs_safetensors *file, const gs_safetensor *tensor, void *to,
                              size_t begin, size_t bytes) {
    if (tensor->data) {
        if (bytes) memcpy(to, (const uint8_t *)tensor->data + begin, bytes);
        return gs_ok();
    }
    return read_bytes(file->fd, to, file->data_begin + tensor->begin + begin, bytes);
}

void gs_safetensors_close(gs_safetensors *file) {
    if (!file) return;
    for (size_t i = 0; file->tensors && i < file->count; i++)
        free((char *)(uintptr_t)file->tensors[i].name);
    free(file->tensors);
    gs_json_release(file->header);
    if (file->fd >= 0) close(file->fd);
    free(file->loaded);
    free(file);
}

size_t gs_safetensors_count(const gs_safetensors *file) {
    return file->count;
}

const gs_safetensor *gs_safetensors_at(const gs_safetensors *file, size_t index) {
    return index < file->count ? &file->tensors[index] : NULL;
}

const gs_safetensor *gs_safetensors_find(const gs_safetensors *file, const char *name) {
    gs_safetensor wanted = {.name = name};
    return bsearch(&wanted, file->tensors, file->count, sizeof *file->tensors, compare_names);
}

const char *gs_safetensors_metadata(const gs_safetensors *file, const char *key) {
    return gs_json_string_or(gs_json_get(file->header, "__metadata__"), key, NULL);
}
