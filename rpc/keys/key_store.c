#include "rpc/keys/key_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "rpc/json/sealed_json.h"

void gs_key_store_path(char path[GS_KEY_PATH_BYTES], const char *data_dir) {
    snprintf(path, GS_KEY_PATH_BYTES, "%s/keys.json", data_dir);
}

// What root makes where the coordinator's user has its data is that user's: it could not read who was revoked else. Nobody
// else's file is given away: a name in that directory may be anything by now.
static gs_status give_to_owner(int fd, const char *path) {
    char directory[GS_KEY_PATH_BYTES];
    struct stat facts, owner;
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash) slash[slash == directory] = '\0';
    if (geteuid() != 0 || stat(slash ? directory : ".", &owner) != 0 || owner.st_uid == 0) return gs_ok();
    if (fstat(fd, &facts) != 0) return gs_error_from_errno(errno, "%s", path);
    if (facts.st_uid != 0 || facts.st_nlink != 1 || !S_ISREG(facts.st_mode)) return gs_ok();
    return fchown(fd, owner.st_uid, owner.st_gid) == 0 ? gs_ok() : gs_error_from_errno(errno, "%s", path);
}

static gs_status give_written(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    gs_status status = give_to_owner(fd, path);
    close(fd);
    return status;
}

static gs_status lock(int *fd, const char *path) {
    GS_TRY(gs_file_lock(fd, path));
    gs_status status = give_to_owner(*fd, path);
    if (status.code) close(*fd);
    return status;
}

static gs_status draw_server(gs_key_file *key, const char *path) {
    *key = (gs_key_file){.name = "coordinator"};
    GS_TRY(gs_curve_pair_draw(&key->pair));
    key->server = key->pair.shown;
    GS_TRY(gs_key_file_write(key, path));
    return give_written(path);
}

gs_status gs_key_store_server(gs_key_file *key, const char *data_dir, bool *made) {
    char path[GS_KEY_PATH_BYTES];
    int fd;
    if (made) *made = false;
    snprintf(path, sizeof path, "%s/control.key", data_dir);
    gs_status status = gs_key_file_read(key, NULL, path);
    if (status.code != GS_NOT_FOUND) return status;
    GS_TRY(lock(&fd, path));
    status = gs_key_file_read(key, NULL, path);  // somebody else may have made it meanwhile
    if (status.code == GS_NOT_FOUND) {
        status = draw_server(key, path);
        if (made) *made = !status.code;
    }
    close(fd);
    return status;
}

gs_status gs_key_store_read(gs_key_list *list, gs_file_mark *mark, const char *path) {
    gs_json *file = NULL;
    gs_status status = gs_sealed_json_read_guarded(&file, mark, path, S_IWGRP | S_IWOTH);
    if (status.code == GS_NOT_FOUND) return gs_ok();
    GS_TRY(status);
    status = gs_key_list_decode(list, file);
    gs_json_release(file);
    if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
    return gs_status_prefix(status, "%s", path);
}

static gs_status encode(char **text, const gs_key_list *list) {
    gs_json *file = gs_key_list_encode(list);
    gs_status status = file ? gs_json_encode(text, NULL, file, false) : gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    gs_json_release(file);
    return status;
}

static gs_status write_list(const gs_key_list *list, const char *path) {
    gs_json *file = gs_key_list_encode(list);
    uint64_t bytes;
    gs_digest digest;
    if (!file) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    GS_TRY(gs_sealed_json_write(file, path, &bytes, &digest));
    return give_written(path);
}

gs_status gs_key_store_change(const char *path, gs_key_change change, void *ctx) {
    int fd;
    gs_key_list list = {0};
    gs_file_mark mark;
    GS_TRY(lock(&fd, path));
    char *before = NULL, *after = NULL;
    gs_status status = gs_key_store_read(&list, &mark, path);
    if (!status.code) status = encode(&before, &list);
    if (!status.code) status = change(&list, ctx);
    if (!status.code) status = encode(&after, &list);
    if (!status.code && strcmp(before, after) != 0) status = write_list(&list, path);
    free(before);
    free(after);
    gs_key_list_release(&list);
    close(fd);
    return status;
}

static gs_status add_made(gs_key_list *list, void *ctx) {
    gs_known_key *made = ctx;
    made->created_ms = gs_wall_ms();
    return gs_key_list_add(list, made, made->created_ms);
}

gs_status gs_key_store_make(const char *path, gs_known_key *made, gs_key_file *file) {
    *file = (gs_key_file){.is_pool = made->is_pool};
    memcpy(file->name, made->name, sizeof file->name);
    GS_TRY(gs_curve_pair_draw(&file->pair));
    made->shown = file->pair.shown;
    return gs_key_store_change(path, add_made, made);
}
