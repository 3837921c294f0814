#include "worker/trainer/startup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/below.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/model_import.h"
#include "worker/data/data_loader.h"

gs_status gs_startup_open_device(gs_device **out, const gs_job_spec *spec,
                                 const gs_startup_device *wanted) {
    const char *name = wanted->name ? wanted->name : "cpu";
    bool on_gpu = strcmp(name, "cpu") != 0;
    long long num_replicas = (long long)spec->world.replicas_per_process;
    if (on_gpu && num_replicas > 1)
        return gs_error(GS_FAILED_PRECONDITION,
                        "world.replicas_per_process %lld: a process on a GPU has one replica",
                        num_replicas);
    gs_device_options options = {.num_threads = wanted->num_threads,
                                 .tf32 = spec->model.precision == GS_PRECISION_TF32,
                                 .same_bits = spec->exact};
    gs_status status = gs_device_open(out, name, &options);
    bool is_missing = status.code == GS_UNAVAILABLE || status.code == GS_UNIMPLEMENTED;
    if (on_gpu && is_missing)
        return gs_error(GS_FAILED_PRECONDITION, "world.device cuda: %s: %s",
                        wanted->place ? wanted->place : "here", status.message);
    return status;
}

static gs_status read_imported(void *ctx, void *to, size_t first_byte, size_t num_bytes) {
    memcpy(to, (const char *)ctx + first_byte, num_bytes);
    return gs_ok();
}

// In the state buffers come last, behind what the optimizer has.
static gs_status take_imported(void *ctx, size_t tensor, const void *data) {
    gs_trainer_state *state = ctx;
    size_t first_buffer = state->num_model_tensors - state->num_buffers;
    size_t index = tensor < state->num_params ? tensor : first_buffer + tensor - state->num_params;
    return gs_trainer_state_take(state, index,
                                 &(gs_whole_tensor){read_imported, (void *)(uintptr_t)data});
}

static gs_status import_file(gs_trainer_state *state, const char *path) {
    GS_TRY(gs_model_import(&state->model, path, take_imported, state));
    gs_trainer_state_refresh(state);
    return gs_ok();
}

// The file, open, of a sharded state that is laid out later.
typedef struct import_source {
    int fd;
} import_source;

static void name_open_file(char path[64], int fd) {
    snprintf(path, 64, "/proc/self/fd/%d", fd);
}

static gs_status fill_from_import(void *ctx, gs_trainer_state *state) {
    const import_source *source = ctx;
    char path[64];
    name_open_file(path, source->fd);
    return gs_status_prefix(import_file(state, path), "model.init_from");
}

static void release_import(void *ctx) {
    import_source *source = ctx;
    close(source->fd);
    free(source);
}

// Takes the descriptor.
static gs_status give_import(gs_trainer_state *state, int fd) {
    import_source *source = malloc(sizeof *source);
    if (!source) {
        close(fd);
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    source->fd = fd;
    gs_trainer_state_give_source(state, &(gs_state_source){.ctx = source,
                                                           .is_drawn = true,
                                                           .fill = fill_from_import,
                                                           .release = release_import});
    return gs_ok();
}

static gs_status import_model(gs_trainer_state *state, const char *data_root, const char *name) {
    char path[64];
    int file_fd = -1, root_fd = open(data_root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) return gs_error_from_errno(errno, "%s", data_root);
    gs_status status = gs_open_below(&file_fd, root_fd, name, 0);
    close(root_fd);
    if (status.code) return gs_status_prefix(status, "model.init_from");
    if (state->is_sharded) return give_import(state, file_fd);
    // Opened by its descriptor, so that it is the file that was found below the root.
    name_open_file(path, file_fd);
    status = import_file(state, path);
    close(file_fd);
    return gs_status_prefix(status, "model.init_from: %s", name);
}

gs_status gs_startup_fill_state(gs_trainer_state *state, const gs_job_spec *spec,
                                const char *data_root, const char *resume) {
    if (resume && *resume) return gs_checkpoint_load(state, resume, spec);
    if (*spec->model.init_from) return import_model(state, data_root, spec->model.init_from);
    return gs_ok();
}

gs_status gs_startup_check_data(gs_digest *digest, const gs_job_spec *spec, const char *data_root,
                                int64_t consumed) {
    gs_data_loader_options options = {
        .spec = spec,
        .split = GS_TRAIN,
        .data_root = data_root,
        .shards = {.num_shards = (int)spec->logical_shards,
                   .world_size = spec->data.split == GS_SPLIT_BY_RANK ? (int)spec->world.max : 1},
        .consumed = consumed,
        .ring_batches = 1};
    gs_data_loader *loader;
    GS_TRY(gs_data_loader_open(&loader, &options));
    *digest = gs_data_loader_digest(loader);
    gs_data_loader_close(loader);
    return gs_ok();
}
