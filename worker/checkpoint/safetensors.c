// Reading: everything is checked against the bytes that are there before anything is believed.
#include "worker/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
    void *mapping;  // owned; NULL when the bytes are borrowed
    size_t mapping_bytes;
    gs_json *header;  // owned; metadata is looked up in it
    const uint8_t *data;
    size_t data_bytes;
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
    tensor->data = file->data + begin;
    tensor->bytes = bytes;
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
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
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
    const uint8_t *end = file->data;
    for (size_t i = 0; i < file->count && !status.code; i++) {
        if ((const uint8_t *)order[i]->data != end)
            status = gs_error(GS_DATA_LOSS, "tensor \"%.100s\": its data %s", order[i]->name,
                              (const uint8_t *)order[i]->data < end ? "overlaps another tensor's"
                                                                    : "leaves a hole before it");
        end = (const uint8_t *)order[i]->data + order[i]->bytes;
    }
    if (!status.code && end != file->data + file->data_bytes)
        status = gs_error(GS_DATA_LOSS, "%zu bytes of data after the last tensor",
                          (size_t)(file->data + file->data_bytes - end));
    free(order);
    return status;
}

// Every value but the first follows one of these; those in strings count too.
static bool is_too_rich(const char *text, size_t bytes) {
    size_t marks = 0;
    for (size_t i = 0; i < bytes; i++) marks += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return marks > MAX_HEADER_MARKS;
}

static gs_status read_header(gs_safetensors *file, const uint8_t *bytes, size_t num_bytes) {
    if (num_bytes < LENGTH_BYTES)
        return gs_error(GS_DATA_LOSS, "%zu bytes are no safetensors file", num_bytes);
    uint64_t header_bytes = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) header_bytes |= (uint64_t)bytes[i] << (8 * i);
    if (header_bytes > MAX_HEADER_BYTES || header_bytes > num_bytes - LENGTH_BYTES)
        return gs_error(GS_DATA_LOSS, "a header of %llu bytes in a file of %zu",
                        (unsigned long long)header_bytes, num_bytes);
    const char *text = (const char *)bytes + LENGTH_BYTES;
    if (!header_bytes || text[0] != '{')
        return gs_error(GS_DATA_LOSS, "the header does not start with {");
    if (is_too_rich(text, header_bytes))
        return gs_error(GS_DATA_LOSS, "the header has more than %u values", MAX_HEADER_MARKS);
    gs_status status = gs_json_parse(&file->header, text, header_bytes);
    if (status.code) {
        if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
        return gs_status_prefix(status, "header");
    }
    file->data = bytes + LENGTH_BYTES + header_bytes;
    file->data_bytes = num_bytes - LENGTH_BYTES - header_bytes;
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

gs_status gs_safetensors_open_memory(gs_safetensors **out, const void *data, size_t bytes) {
    gs_safetensors *file = calloc(1, sizeof *file);
    if (!file) return gs_error(GS_RESOURCE_EXHAUSTED, "safetensors: out of memory");
    gs_status status = read_header(file, data, bytes);
    if (status.code) {
        gs_safetensors_close(file);
        return status;
    }
    *out = file;
    return gs_ok();
}

static gs_status map_file(void **mapping, size_t *bytes, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return gs_error_from_errno(errno, "open");
    struct stat info;
    gs_status status = gs_ok();
    if (fstat(fd, &info) != 0)
        status = gs_error_from_errno(errno, "stat");
    else if (!S_ISREG(info.st_mode))
        status = gs_error(GS_INVALID_ARGUMENT, "not a regular file");
    else if (info.st_size < LENGTH_BYTES)
        status =
            gs_error(GS_DATA_LOSS, "%lld bytes are no safetensors file", (long long)info.st_size);
    if (!status.code) {
        *bytes = (size_t)info.st_size;
        *mapping = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*mapping == MAP_FAILED) status = gs_error_from_errno(errno, "map");
    }
    close(fd);
    return status;
}

gs_status gs_safetensors_open(gs_safetensors **out, const char *path) {
    void *mapping = NULL;
    size_t bytes = 0;
    gs_status status = map_file(&mapping, &bytes, path);
    if (status.code) return gs_status_prefix(status, "%s", path);
    status = gs_safetensors_open_memory(out, mapping, bytes);
    if (status.code) {
        munmap(mapping, bytes);
        return gs_status_prefix(status, "%s", path);
    }
    (*out)->mapping = mapping;
    (*out)->mapping_bytes = bytes;
    return gs_ok();
}

void gs_safetensors_close(gs_safetensors *file) {
    if (!file) return;
    for (size_t i = 0; file->tensors && i < file->count; i++)
        free((char *)(uintptr_t)file->tensors[i].name);
    free(file->tensors);
    gs_json_release(file->header);
    if (file->mapping) munmap(file->mapping, file->mapping_bytes);
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
