#include "rpc/checkpoint/life_sign.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "rpc/json/sealed_json.h"

#define NAME "ALIVE.json"

gs_status gs_life_sign_leave(const char *directory, const gs_fence *mine, int64_t number) {
    gs_directory job;
    GS_TRY(gs_directory_open(&job, directory, 1));
    gs_json *file = gs_json_new_object();
    gs_json_set_string(file, "cluster", mine->cluster);
    gs_json_set_int(file, "generation", mine->generation);
    gs_json_set_int(file, "number", number);
    gs_status status = gs_sealed_json_show(file, (gs_file_place){&job, NAME});
    gs_directory_close(&job);
    return status;
}

static gs_status read_number(int64_t *number, const gs_directory *job, const gs_fence *theirs) {
    gs_json *file = NULL;
    if (faccessat(job->fd, NAME, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT) return gs_ok();
    gs_status status = gs_sealed_json_read_at(&file, (gs_file_place){job, NAME});
    if (status.code == GS_DATA_LOSS) return gs_ok();  // as a loss of power has left it
    if (status.code) return status;
    const gs_fence left_by = gs_fence_of(file);
    if (gs_fence_is(&left_by, theirs)) *number = gs_json_int_or(file, "number", 0);
    gs_json_release(file);
    return gs_ok();
}

gs_status gs_life_sign_read(int64_t *number, const char *directory, const gs_fence *theirs) {
    gs_directory job;
    *number = 0;
    gs_status status = gs_directory_open(&job, directory, 1);
    if (status.code) return status.code == GS_NOT_FOUND ? gs_ok() : status;
    status = read_number(number, &job, theirs);
    gs_directory_close(&job);
    return status;
}
