// Images and labels in IDX files, as MNIST has them.
//
//   byte 0, 1: zero; byte 2: element type (8: uint8, the only one taken); byte 3: number of
//   dimensions d; then d big-endian uint32 sizes; then the elements. Images: (n, …), labels: (n).
//
// A sample is one image, its pixels scaled to [0, 1]. Every label is checked when the files are
// opened.
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "worker/data/dataset.h"
#include "worker/data/file_set.h"

#define TYPE_UINT8 8
#define MAX_IDX_DIMS 4

typedef struct idx_file {
    int64_t items;      // the first size
    int64_t item_bytes; // the product of the others
    size_t header_bytes;
} idx_file;

typedef struct idx_set {
    gs_file_set images, labels;
    idx_file image, label;
    uint8_t *pixels;  // owned; of the image that was read last
} idx_set;

static gs_status read_header(idx_file *out, const gs_data_file *file, int least_dims) {
    uint8_t bytes[4 + 4 * MAX_IDX_DIMS] = {0};
    GS_TRY(
        gs_data_file_read(file, bytes, 0, file->bytes < sizeof bytes ? file->bytes : sizeof bytes));
    if (file->bytes >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B)
        return gs_error(GS_DATA_LOSS, "%s: compressed with gzip; unpack it first (gunzip)",
                        file->name);
    if (file->bytes < 8 || bytes[0] || bytes[1])
        return gs_error(GS_DATA_LOSS, "%s: not an IDX file", file->name);
    int num_dims = bytes[3];
    if (bytes[2] != TYPE_UINT8)
        return gs_error(GS_DATA_LOSS, "%s: element type 0x%02x, but only uint8 (0x08) is read",
                        file->name, bytes[2]);
    if (num_dims < least_dims || num_dims > MAX_IDX_DIMS)
        return gs_error(GS_DATA_LOSS, "%s: %d dimensions, wanted %d to %d", file->name, num_dims,
                        least_dims, least_dims == 1 ? 1 : MAX_IDX_DIMS);
    size_t header_bytes = 4 + 4 * (size_t)num_dims;
    if (file->bytes < header_bytes)
        return gs_error(GS_DATA_LOSS, "%s: ends inside its header", file->name);

    size_t items = 0, item_bytes = 1, data_bytes;
    for (int i = 0; i < num_dims; i++) {
        uint32_t size;
        memcpy(&size, bytes + 4 + 4 * i, sizeof size);
        if (i == 0)
            items = be32toh(size);
        else if (!gs_bytes_of(&item_bytes, item_bytes, be32toh(size)))
            return gs_error(GS_DATA_LOSS, "%s: sizes overflow", file->name);
    }
    if (!gs_bytes_of(&data_bytes, items, item_bytes) || data_bytes != file->bytes - header_bytes)
        return gs_error(GS_DATA_LOSS, "%s: %zu items of %zu bytes do not fill its %zu bytes",
                        file->name, items, item_bytes, file->bytes);
    if (items == 0 || item_bytes == 0) return gs_error(GS_DATA_LOSS, "%s: empty", file->name);
    *out = (idx_file){(int64_t)items, (int64_t)item_bytes, header_bytes};
    return gs_ok();
}

static gs_status check_labels(const idx_file *label, const gs_data_file *file, int64_t classes) {
    uint8_t labels[4096];
    for (int64_t first = 0; first < label->items; first += (int64_t)sizeof labels) {
        int64_t count = label->items - first;
        if (count > (int64_t)sizeof labels) count = (int64_t)sizeof labels;
        GS_TRY(gs_data_file_read(file, labels, label->header_bytes + (size_t)first, (size_t)count));
        for (int64_t i = 0; i < count; i++)
            if (labels[i] >= classes)
                return gs_error(GS_DATA_LOSS, "%s: label %lld is %u, the model has %lld classes",
                                file->name, (long long)(first + i), labels[i], (long long)classes);
    }
    return gs_ok();
}

static gs_status check_pair(const idx_set *set, const gs_dataset_options *options) {
    const char *image_name = set->images.files[0].name, *label_name = set->labels.files[0].name;
    if (set->label.item_bytes != 1)
        return gs_error(GS_DATA_LOSS, "%s: labels must have one dimension", label_name);
    if (set->image.items != set->label.items)
        return gs_error(GS_DATA_LOSS, "%s has %lld images, %s has %lld labels", image_name,
                        (long long)set->image.items, label_name, (long long)set->label.items);
    if (set->image.item_bytes != options->row_features)
        return gs_error(GS_INVALID_ARGUMENT, "%s: images have %lld pixels, the model takes %lld",
                        image_name, (long long)set->image.item_bytes,
                        (long long)options->row_features);
    return check_labels(&set->label, &set->labels.files[0], options->classes);
}

static gs_status open_one(gs_file_set *files, idx_file *file, const gs_dataset_options *options,
                          const char *what, int least_dims) {
    GS_TRY(gs_file_set_open(files, options));
    if (files->count != 1)
        return gs_error(GS_INVALID_ARGUMENT, "idx: the %s pattern names %zu files, wanted one",
                        what, files->count);
    return read_header(file, &files->files[0], least_dims);
}

static void close_set(void *dataset) {
    idx_set *set = dataset;
    if (!set) return;
    gs_file_set_close(&set->images);
    gs_file_set_close(&set->labels);
    free(set->pixels);
    free(set);
}

static gs_status open_set(void **out, const gs_dataset_options *options, gs_dataset_shape *shape) {
    if (!options->labels || !*options->labels)
        return gs_error(GS_INVALID_ARGUMENT, "idx: no label file named");
    idx_set *set = calloc(1, sizeof *set);
    if (!set) return gs_error(GS_RESOURCE_EXHAUSTED, "idx: out of memory");
    gs_dataset_options of_labels = *options;
    of_labels.patterns = &options->labels;
    of_labels.num_patterns = 1;
    gs_status status = open_one(&set->images, &set->image, options, "image", 2);
    if (!status.code) status = open_one(&set->labels, &set->label, &of_labels, "label", 1);
    if (!status.code) status = check_pair(set, options);
    gs_digest parts[2];
    if (!status.code) status = gs_file_set_digest(&parts[0], &set->images, 16);
    if (!status.code) status = gs_file_set_digest(&parts[1], &set->labels, 8);
    if (!status.code) {
        set->pixels = malloc((size_t)set->image.item_bytes);
        if (!set->pixels) status = gs_error(GS_RESOURCE_EXHAUSTED, "idx: out of memory");
    }
    if (status.code) {
        close_set(set);
        return status;
    }
    *shape = (gs_dataset_shape){.num_samples = set->image.items,
                                .positions = 1,
                                .row_features = set->image.item_bytes,
                                .digest = gs_digest_of(parts, sizeof parts)};
    *out = set;
    return gs_ok();
}

static gs_status fill_image(void *dataset, int64_t index, int32_t *tokens, float *features,
                            int32_t *targets) {
    (void)tokens;
    idx_set *set = dataset;
    const idx_file *image = &set->image;
    uint8_t label;
    GS_TRY(gs_data_file_read(&set->images.files[0], set->pixels,
                             image->header_bytes + (size_t)(index * image->item_bytes),
                             (size_t)image->item_bytes));
    GS_TRY(gs_data_file_read(&set->labels.files[0], &label, set->label.header_bytes + (size_t)index,
                             sizeof label));
    for (int64_t i = 0; i < image->item_bytes; i++) features[i] = (float)set->pixels[i] / 255.0f;
    targets[0] = label;
    return gs_ok();
}

const gs_dataset_ops gs_dataset_idx = {
    .name = "idx", .open = open_set, .fill = fill_image, .close = close_set};
