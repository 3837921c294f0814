#include "coordinator/store/files/marked_root.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/model/memory.h"
#include "coordinator/store/files/root_lock.h"
#include "core/directory.h"
#include "core/log.h"
#include "rpc/checkpoint/place_mark.h"
#include "rpc/json/sealed_json.h"

struct gs_marked_root {
    char file[1200];  // which one was marked
    char path[GS_ROOT_PATH_LEN], given[GS_ROOT_PATH_LEN], cluster[48];
    char data_dir[GS_ROOT_PATH_LEN];
    uint64_t life;
    int lock_fd;  // -1: none is held; of the thread that leaves marks
    atomic_bool was_marked;  // by a life of this cluster, and nobody says that it is a new one
    atomic_bool is_away;
    atomic_int claim;   // gs_root_claim
    gs_status refusal;  // written before the claim is OF_ANOTHER, and not again
};

static void file_in(char file[1200], const char *data_dir) { snprintf(file, 1200, "%s/marked-checkpoints.json", data_dir); }

// What cannot be read is not known.
static gs_json *read_marked(const char *file) {
    gs_json *marked = NULL;
    gs_status status = gs_sealed_json_read(&marked, file);
    if (status.code && status.code != GS_NOT_FOUND) gs_log_warn("not known which directory of checkpoints was marked", "reason=\"%s\"", status.message);
    return marked;
}

static bool is_text(const gs_json *object, const char *key, const char *wanted) {
    return strcmp(gs_json_string_or(object, key, ""), wanted) == 0;
}

bool gs_marked_root_recall(char path[GS_ROOT_PATH_LEN], const char *data_dir, const char *given) {
    char file[1200];
    file_in(file, data_dir);
    gs_json *marked = read_marked(file);
    bool is_known = marked && is_text(marked, "given", given);
    if (is_known) snprintf(path, GS_ROOT_PATH_LEN, "%s", gs_json_string_or(marked, "path", ""));
    gs_json_release(marked);
    return is_known && path[0] == '/';
}

gs_marked_root *gs_marked_root_create(const gs_marked_root_options *options) {
    gs_marked_root *root = gs_model_alloc(1, sizeof *root);
    file_in(root->file, options->data_dir);
    snprintf(root->path, sizeof root->path, "%s", options->path);
    snprintf(root->given, sizeof root->given, "%s", options->given ? options->given : options->path);
    snprintf(root->cluster, sizeof root->cluster, "%s", options->cluster);
    snprintf(root->data_dir, sizeof root->data_dir, "%s", options->data_dir);
    root->life = options->life;
    root->lock_fd = -1;
    gs_json *marked = read_marked(root->file);
    atomic_init(&root->was_marked, !options->is_new && is_text(marked, "path", root->path) && is_text(marked, "cluster", root->cluster));
    gs_json_release(marked);
    atomic_init(&root->claim, GS_ROOT_UNCLAIMED);
    return root;
}

void gs_marked_root_destroy(gs_marked_root *root) {
    if (root && root->lock_fd >= 0) close(root->lock_fd);
    free(root);
}

gs_root_claim gs_marked_root_claim(const gs_marked_root *root) { return (gs_root_claim)atomic_load(&root->claim); }

gs_status gs_marked_root_refused(const gs_marked_root *root) {
    return root && gs_marked_root_claim(root) == GS_ROOT_OF_ANOTHER ? root->refusal : gs_ok();
}

// Where nothing can be locked, nobody is kept out by it.
static gs_status claim(gs_marked_root *root) {
    if (gs_root_lock_holds(root->lock_fd, root->path, root->cluster)) return gs_ok();
    if (root->lock_fd >= 0) close(root->lock_fd);
    root->lock_fd = -1;
    gs_status status = gs_root_lock_take(&root->lock_fd, root->path, root->cluster, root->data_dir);
    if (status.code == GS_ALREADY_EXISTS) {
        root->refusal = status;
        atomic_store(&root->claim, GS_ROOT_OF_ANOTHER);
        return status;
    }
    if (status.code)
        gs_log_warn("no lock among the checkpoints: another coordinator on a copy of these data would not be noticed", "reason=\"%s\"", status.message);
    return gs_ok();
}

static gs_status look_for_mark(const gs_marked_root *root) {
    uint64_t life;
    gs_status status = gs_place_mark_read(&life, root->path, root->cluster);
    if (!status.code || status.code == GS_DATA_LOSS) return gs_ok();  // whose bytes are not what they were is there
    return gs_error(GS_UNAVAILABLE, "the mark of this cluster is not in %s, its disk may be away: %.300s", root->path, status.message);
}

static gs_status note_marked(gs_marked_root *root) {
    gs_json *marked = gs_json_new_object();
    uint64_t bytes;
    gs_digest digest;
    gs_json_set_string(marked, "cluster", root->cluster);
    gs_json_set_string(marked, "path", root->path);
    gs_json_set_string(marked, "given", root->given);
    return gs_sealed_json_write(marked, root->file, &bytes, &digest);
}

static gs_status leave(gs_marked_root *root) {
    bool was_marked = atomic_load(&root->was_marked);
    gs_status status = was_marked ? look_for_mark(root) : gs_directory_make(root->path, 0700);
    atomic_store(&root->is_away, was_marked && status.code);
    if (!status.code) status = claim(root);  // before the mark: that of one who lives stays
    if (!status.code) status = gs_place_mark_leave(root->path, root->cluster, root->life);
    if (status.code || was_marked) return status;
    GS_TRY(note_marked(root));
    atomic_store(&root->was_marked, true);
    return gs_ok();
}

gs_status gs_marked_root_leave(gs_marked_root *root) {
    gs_status status = leave(root);
    int unclaimed = GS_ROOT_UNCLAIMED;
    atomic_compare_exchange_strong(&root->claim, &unclaimed, GS_ROOT_TRIED);
    return status;
}

gs_status gs_marked_root_check(const gs_marked_root *root) {
    if (!root || !atomic_load(&root->is_away)) return gs_ok();
    return gs_error(GS_UNAVAILABLE,
                    "the directory of checkpoints is not the one that was marked, its disk may be away (a start with --new-checkpoints "
                    "takes it as it is): %.200s", root->path);
}

gs_status gs_marked_root_confirm(gs_marked_root *root) {
    GS_TRY(gs_marked_root_check(root));
    if (!root || !atomic_load(&root->was_marked)) return gs_ok();
    gs_status status = look_for_mark(root);
    if (status.code) atomic_store(&root->is_away, true);
    return status;
}
