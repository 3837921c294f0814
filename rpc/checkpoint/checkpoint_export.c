#include "rpc/checkpoint/checkpoint_export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "rpc/checkpoint/checkpoint_reader.h"
#include "rpc/checkpoint/safetensors.h"

typedef struct export_work {
    const gs_checkpoint_reader *reader;
    gs_safetensors_entry *entries;  // owned
    size_t *tensors;                // owned; of each entry, in the layout
    size_t num_entries;
} export_work;

static bool begins_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

// Everything else is a parameter's name, or a buffer's.
static bool is_of_model(const char *name) {
    return !begins_with(name, "optimizer.") && !begins_with(name, "hook/");
}

static gs_status list_entries(export_work *work, const gs_checkpoint_export_options *options) {
    const gs_checkpoint_layout *layout = gs_checkpoint_reader_layout(work->reader);
    work->entries = calloc(layout->num_tensors + 1, sizeof *work->entries);
    work->tensors = calloc(layout->num_tensors + 1, sizeof *work->tensors);
    if (!work->entries || !work->tensors)
        return gs_error(GS_RESOURCE_EXHAUSTED, "export: out of memory");
    for (size_t i = 0; i < layout->num_tensors; i++) {
        const gs_checkpoint_tensor *tensor = &layout->tensors[i];
        if (options->model_alone && !is_of_model(tensor->name)) continue;
        gs_safetensors_entry *entry = &work->entries[work->num_entries];
        *entry = (gs_safetensors_entry){
            .name = tensor->name, .dtype = tensor->dtype, .num_dims = tensor->num_dims};
        memcpy(entry->shape, tensor->shape, sizeof entry->shape);
        work->tensors[work->num_entries++] = i;
    }
    return gs_ok();
}

static gs_status read_entry(void *ctx, size_t entry, void *to, size_t begin, size_t bytes) {
    const export_work *work = ctx;
    return gs_checkpoint_reader_read(work->reader, work->tensors[entry], to, begin, bytes);
}

static gs_status write_file(gs_checkpoint_export *out, const char *file, export_work *work) {
    const gs_json *manifest = gs_checkpoint_reader_manifest(work->reader);
    char step[32];
    snprintf(step, sizeof step, "%lld", (long long)out->step);
    // "pt" says to readers of safetensors that rows come first, as PyTorch has them.
    const gs_safetensors_metadata_entry metadata[] = {
        {"format", "pt"},
        {"job", gs_json_string_or(manifest, "job", "")},
        {"checkpoint", gs_json_string_or(manifest, "id", "")},
        {"step", step}};
    const gs_safetensors_source source = {.entries = work->entries,
                                          .num_entries = work->num_entries,
                                          .metadata = metadata,
                                          .num_metadata = sizeof metadata / sizeof *metadata,
                                          .ctx = work,
                                          .read = read_entry};
    return gs_safetensors_create(file, &source, &out->bytes);
}

gs_status gs_checkpoint_export_write(gs_checkpoint_export *out, const char *file, const char *path,
                                     const gs_checkpoint_export_options *options) {
    gs_checkpoint_reader *reader;
    struct stat other;
    // Said before everything is read; a file that comes meanwhile is seen at the end.
    if (lstat(file, &other) == 0)
        return gs_error(GS_ALREADY_EXISTS, "%s: it is there already", file);
    GS_TRY(gs_checkpoint_reader_open(&reader, path, 0));
    const gs_json *manifest = gs_checkpoint_reader_manifest(reader);
    export_work work = {.reader = reader};
    gs_status status = list_entries(&work, options);
    *out = (gs_checkpoint_export){
        .step = gs_json_int_or(gs_json_get(manifest, "position"), "step", 0),
        .num_parts = gs_checkpoint_reader_layout(reader)->num_parts,
        .num_tensors = work.num_entries};
    if (!status.code) status = write_file(out, file, &work);
    free(work.entries);
    free(work.tensors);
    gs_checkpoint_reader_close(reader);
    return status;
}
