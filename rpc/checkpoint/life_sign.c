#include "rpc/checkpoint/life_sign.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rpc/json/sealed_json.h"

static gs_status path_of(char path[PATH_MAX], const char *directory) {
    if (snprintf(path, PATH_MAX, "%s/ALIVE.json", directory) < PATH_MAX) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
}

gs_status gs_life_sign_leave(const char *directory, const gs_fence *mine, int64_t number) {
    char path[PATH_MAX];
    GS_TRY(path_of(path, directory));
    gs_json *file = gs_json_new_object();
    gs_json_set_string(file, "cluster", mine->cluster);
    gs_json_set_int(file, "generation", mine->generation);
    gs_json_set_int(file, "number", number);
    return gs_sealed_json_show(file, path);
}

gs_status gs_life_sign_read(int64_t *number, const char *directory, const gs_fence *theirs) {
    char path[PATH_MAX];
    gs_json *file = NULL;
    *number = 0;
    GS_TRY(path_of(path, directory));
    if (access(path, F_OK) != 0 && errno == ENOENT) return gs_ok();
    gs_status status = gs_sealed_json_read(&file, path);
    if (status.code == GS_DATA_LOSS) return gs_ok();  // as a loss of power has left it
    if (status.code) return status;
    const gs_fence left_by = gs_fence_of(file);
    if (gs_fence_is(&left_by, theirs)) *number = gs_json_int_or(file, "number", 0);
    gs_json_release(file);
    return gs_ok();
}
