#include "rpc/checkpoint/fence.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/failpoint.h"
#include "rpc/checkpoint/draft.h"
#include "rpc/json/sealed_json.h"

#define MOST_TRIES 4  // each time another cluster has put up its own at that moment

gs_fence gs_fence_of(const gs_json *manifest) {
    int64_t generation = gs_json_int_or(manifest, "generation", 0);
    return (gs_fence){.cluster = gs_json_string_or(manifest, "cluster", ""),
                      .generation = generation > 0 && generation <= UINT32_MAX ? (uint32_t)generation : 0};
}

bool gs_fence_is(const gs_fence *a, const gs_fence *b) {
    return a->generation && a->generation == b->generation && *a->cluster && !strcmp(a->cluster, b->cluster);
}

static gs_status compare(const gs_fence *there, const gs_fence *mine, bool takes_over) {
    if (!mine->generation || !there->generation) return gs_ok();
    bool same_cluster = strcmp(there->cluster, mine->cluster) == 0;
    if (same_cluster ? there->generation <= mine->generation : takes_over) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "generation %u of cluster %.23s has taken over from generation %u of cluster %.23s",
                    there->generation, *there->cluster ? there->cluster : "none", mine->generation,
                    *mine->cluster ? mine->cluster : "none");
}

static gs_file_place place_in(const gs_directory *job) { return (gs_file_place){job, "FENCE.json"}; }

// NULL: there is none.
static gs_status read_there(gs_json **file, const gs_directory *job) {
    *file = NULL;
    const gs_file_place place = place_in(job);
    if (faccessat(job->fd, place.name, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT) return gs_ok();
    return gs_sealed_json_read_at(file, place);
}

static gs_status look(const gs_directory *job, const gs_fence *mine, bool takes_over) {
    gs_json *file;
    GS_TRY(read_there(&file, job));
    if (!file) return gs_ok();
    const gs_fence there = gs_fence_of(file);
    gs_status status = compare(&there, mine, takes_over);
    gs_json_release(file);
    return status;
}

gs_status gs_fence_check_in(const gs_directory *job, const gs_fence *mine) { return look(job, mine, false); }

static gs_json *describe(const gs_fence *mine, bool closes) {
    gs_json *file = gs_json_new_object();
    gs_json_set_string(file, "cluster", mine->cluster);
    gs_json_set_int(file, "generation", mine->generation);
    gs_json_set_bool(file, closes ? "closed" : "watched", true);
    return file;
}

// A fence, too, is only put up by whom no other has overtaken meanwhile: it would lower it.
static gs_status put_once(const gs_directory *job, const gs_fence *mine, bool closes) {
    gs_draft draft;
    GS_TRY(gs_draft_write(&draft, describe(mine, closes), job, mine->cluster, mine->generation));
    gs_status status = look(job, mine, true);
    if (!status.code) return gs_draft_publish(&draft, place_in(job));
    gs_draft_drop(&draft);
    return status;
}

static gs_status put(const gs_directory *job, const gs_fence *mine, bool closes) {
    gs_status status;
    GS_TRY(look(job, mine, true));
    int tries = 0;
    do status = put_once(job, mine, closes);
    while (status.code == GS_ABORTED && ++tries < MOST_TRIES);
    GS_TRY(status);
    GS_FAILPOINT("fence.raised");
    return gs_draft_remove_refused(job, mine->cluster, mine->generation);
}

gs_status gs_fence_raise_in(const gs_directory *job, const gs_fence *mine) { return put(job, mine, false); }

gs_status gs_fence_publish(gs_json *object, gs_file_place place, const gs_directory *job, const gs_fence *mine, gs_fenced_file *file) {
    gs_draft draft;
    GS_TRY(gs_draft_write(&draft, object, job, mine->cluster, mine->generation));
    gs_status status = look(job, mine, false);
    if (status.code) {
        gs_draft_drop(&draft);
        return status;
    }
    status = gs_draft_publish(&draft, place);
    if (!status.code) *file = (gs_fenced_file){draft.bytes, draft.digest};
    if (status.code != GS_ABORTED) return status;
    GS_TRY(look(job, mine, false));
    status.code = GS_UNAVAILABLE;
    return status;
}

gs_status gs_fence_stands_in(bool *stands, const gs_directory *job, const gs_fence *mine) {
    gs_json *file;
    *stands = false;
    GS_TRY(read_there(&file, job));
    if (!file) return gs_ok();
    const gs_fence there = gs_fence_of(file);
    *stands = gs_fence_is(&there, mine) && gs_json_bool_or(file, "watched", false);
    gs_json_release(file);
    return gs_ok();
}

// By its name: the job's own is no link. Where it is not there nobody has been, and *is_there is false.
static gs_status open_job(gs_directory *job, bool *is_there, const char *directory) {
    gs_status status = gs_directory_open(job, directory, 1);
    *is_there = !status.code;
    return status.code == GS_NOT_FOUND ? gs_ok() : status;
}

gs_status gs_fence_check(const char *directory, const gs_fence *mine) {
    gs_directory job;
    bool is_there;
    GS_TRY(open_job(&job, &is_there, directory));
    if (!is_there) return gs_ok();
    gs_status status = gs_fence_check_in(&job, mine);
    gs_directory_close(&job);
    return status;
}

static gs_status put_by_name(const char *directory, const gs_fence *mine, bool closes) {
    gs_directory job;
    GS_TRY(gs_directory_open(&job, directory, 1));
    gs_status status = put(&job, mine, closes);
    gs_directory_close(&job);
    return status;
}

gs_status gs_fence_raise(const char *directory, const gs_fence *mine) { return put_by_name(directory, mine, false); }

gs_status gs_fence_close(const char *directory, const gs_fence *theirs) {
    const gs_fence above = {theirs->cluster, theirs->generation + 1};
    return put_by_name(directory, &above, true);
}

gs_status gs_fence_stands(bool *stands, const char *directory, const gs_fence *mine) {
    gs_directory job;
    bool is_there;
    *stands = false;
    GS_TRY(open_job(&job, &is_there, directory));
    if (!is_there) return gs_ok();
    gs_status status = gs_fence_stands_in(stands, &job, mine);
    gs_directory_close(&job);
    return status;
}

gs_status gs_fence_finish(const char *directory) {
    gs_directory job;
    gs_json *file;
    bool is_there;
    GS_TRY(open_job(&job, &is_there, directory));
    if (!is_there) return gs_ok();
    gs_status status = read_there(&file, &job);
    if (!status.code && file) {
        const gs_fence there = gs_fence_of(file);
        status = gs_draft_remove_refused(&job, there.cluster, there.generation);
        gs_json_release(file);
    }
    gs_directory_close(&job);
    return status;
}

// NULL: there is none.
static gs_status read_by_name(gs_json **file, const char *directory) {
    gs_directory job;
    bool is_there;
    *file = NULL;
    GS_TRY(open_job(&job, &is_there, directory));
    if (!is_there) return gs_ok();
    gs_status status = read_there(file, &job);
    gs_directory_close(&job);
    return status;
}

gs_status gs_fence_is_above(bool *is_above, const char *directory, const gs_fence *theirs) {
    gs_json *file;
    *is_above = false;
    GS_TRY(read_by_name(&file, directory));
    if (!file) return gs_ok();
    const gs_fence there = gs_fence_of(file);
    *is_above = theirs->generation && there.generation > theirs->generation && !strcmp(there.cluster, theirs->cluster);
    gs_json_release(file);
    return gs_ok();
}

gs_status gs_fence_last(uint32_t *generation, const char *directory, const char *cluster) {
    gs_json *file;
    *generation = 0;
    GS_TRY(read_by_name(&file, directory));
    if (!file) return gs_ok();
    const gs_fence there = gs_fence_of(file);
    // A coordinator has closed it to those before: whether there will be one of that number it did not know.
    bool is_closed = gs_json_bool_or(file, "closed", false);
    if (there.generation && !strcmp(there.cluster, cluster)) *generation = there.generation - is_closed;
    gs_json_release(file);
    return gs_ok();
}
