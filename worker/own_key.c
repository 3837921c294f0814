#include "worker/own_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "rpc/client/rpc_client.h"
#include "rpc/keys/key_file.h"

#define ENROL_SECONDS 60.0
#define ENROL_TRIES 30
#define LOOK_NS GS_NS_PER_SEC

// Of a file that need not be there yet.
static gs_status make_absolute(char out[PATH_MAX], const char *path) {
    char directory[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!realpath(*directory ? directory : "/", real)) return gs_error_from_errno(errno, "key: %s", path);
    if (snprintf(out, PATH_MAX, "%s/%s", real, base) >= PATH_MAX) return gs_error(GS_INVALID_ARGUMENT, "key: the path is too long");
    return gs_ok();
}

static gs_status copy_key(void *ctx, gs_key_file *key) {
    *key = *(const gs_key_file *)ctx;
    return gs_ok();
}

static gs_status ask_to_enrol(gs_key_file *token, const gs_own_key_options *options, const char *name,
                              const gs_key_file *fresh, gs_json **reply) {
    char shown[GS_CURVE_KEY_TEXT_BYTES];
    gs_rpc_client *client = NULL;
    gs_rpc_client_options line = {.endpoint = options->coordinator, .source = {copy_key, token}};
    GS_TRY(gs_rpc_client_open(&client, options->context, &line));
    gs_json *request = gs_json_new_object();
    gs_curve_key_format(shown, &fresh->pair.shown);
    gs_json_set_string(request, "name", name);
    gs_json_set_string(request, "public", shown);
    gs_status status = gs_ok();
    gs_deadline deadline = gs_deadline_in_seconds(ENROL_SECONDS);
    for (;;) {
        gs_json_release(*reply);  // what came with a refusal
        *reply = NULL;
        status = gs_rpc_call(client, GS_ENROL, request, reply, gs_deadline_in_seconds(ENROL_SECONDS / ENROL_TRIES));
        bool refused = gs_rpc_client_refusal(client) == GS_RPC_KEY_REFUSED;
        if (status.code && refused)
            status = gs_error(GS_PERMISSION_DENIED, "the token has been used, has expired or was revoked");
        bool away = status.code == GS_DEADLINE_EXCEEDED || status.code == GS_UNAVAILABLE;
        if (!away || gs_deadline_passed(deadline)) break;
    }
    gs_json_release(request);
    gs_rpc_client_close(client);
    return gs_status_prefix(status, "enrol");
}

// A key that was made by an earlier try of this, of which nobody said that it is refused.
static bool recall(gs_key_file *fresh, const char *made, const gs_curve_key *server) {
    if (gs_key_file_read(fresh, NULL, made).code) return false;
    if (gs_curve_key_equal(&fresh->server, server)) return true;
    gs_key_file_wipe(fresh);
    return false;
}

// The coordinator heard it and will not have it. Whatever else went wrong may have done so behind its yes.
static bool is_refusal(gs_status status) {
    return status.code == GS_PERMISSION_DENIED || status.code == GS_INVALID_ARGUMENT || status.code == GS_ALREADY_EXISTS;
}

// It enrolled with an earlier try, whose answer was lost: then the token is used, and the key itself is what is shown. Of both
// answers the second counts.
static gs_status ask_with_either(gs_key_file *token, const gs_own_key_options *options, const char *name, gs_key_file *fresh,
                                 gs_json **reply) {
    gs_status status = ask_to_enrol(token, options, *options->name ? name : "", fresh, reply);
    if (status.code == GS_INVALID_ARGUMENT && !*options->name) status = ask_to_enrol(token, options, name, fresh, reply);
    return status.code == GS_PERMISSION_DENIED ? ask_to_enrol(fresh, options, name, fresh, reply) : status;
}

// The file that is there already gets its name: on a full disk, too.
static gs_status put_in_place(const char *made, const char *path) {
    char directory[PATH_MAX];
    if (rename(made, path) != 0) return gs_error_from_errno(errno, "key: %s", path);
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash) slash[slash == directory] = '\0';
    int fd = open(slash ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "key: %s", directory);
    gs_status status = fsync(fd) == 0 ? gs_ok() : gs_error_from_errno(errno, "key: %s", directory);
    close(fd);
    return status;
}

// What the coordinator calls it may be another name than was asked for.
static gs_status keep(gs_key_file *fresh, const gs_json *reply, const char *name, const char *made, const char *path) {
    char given[GS_KEY_NAME_BYTES];
    bool is_pool = gs_json_bool_or(reply, "pool", false);
    snprintf(given, sizeof given, "%s", gs_json_string_or(reply, "name", name));
    if (strcmp(given, fresh->name) != 0 || is_pool != fresh->is_pool) {
        memcpy(fresh->name, given, sizeof fresh->name);
        fresh->is_pool = is_pool;
        GS_TRY(gs_key_file_write(fresh, made));
    }
    GS_TRY(put_in_place(made, path));
    gs_log_info("enrolled", "name=%s pool=%d key=%s", fresh->name, (int)fresh->is_pool, path);
    return gs_ok();
}

// The key is on the disk before it is known. Whoever ends between that and its name finds it here again: the token may have been
// used for it. It goes only where the coordinator has refused it.
static gs_status enrol(const char *path, const gs_own_key_options *options) {
    char made[PATH_MAX + 8];
    gs_key_file token, fresh = {0};
    gs_json *reply = NULL;
    snprintf(made, sizeof made, "%s.new", path);
    GS_TRY(gs_enrol_token_read(&token, options->enrol));
    const char *name = *options->name ? options->name : options->host;
    gs_status status = gs_ok();
    if (!recall(&fresh, made, &token.server)) {
        fresh.server = token.server;
        snprintf(fresh.name, sizeof fresh.name, "%s", name);
        status = gs_curve_pair_draw(&fresh.pair);
        if (!status.code) status = gs_key_file_write(&fresh, made);
    }
    if (!status.code) {
        status = ask_with_either(&token, options, name, &fresh, &reply);
        if (is_refusal(status)) unlink(made);
        if (!status.code) status = keep(&fresh, reply, name, made, path);
    }
    gs_json_release(reply);
    gs_key_file_wipe(&token);
    gs_key_file_wipe(&fresh);
    return status;
}

// To this worker: its real user may be that of its trainers, who see nothing there.
static bool is_missing(const char *path) {
    struct stat file;
    return stat(path, &file) != 0 && errno == ENOENT;
}

gs_status gs_own_key_settle(gs_own_key *own, const gs_own_key_options *options) {
    *own = (gs_own_key){0};
    snprintf(own->name, sizeof own->name, "%s", options->host);
    bool enrols = options->enrol && *options->enrol;
    if (!options->path || !*options->path)
        return enrols ? gs_error(GS_INVALID_ARGUMENT, "--enrol: --key FILE says where the key is to be kept") : gs_ok();
    GS_TRY(make_absolute(own->path, options->path));
    if (enrols && is_missing(own->path)) GS_TRY(enrol(own->path, options));
    GS_TRY(gs_status_prefix(gs_key_file_read(&own->key, NULL, own->path), "key"));
    if (own->key.is_pool) snprintf(own->name, sizeof own->name, "%.30s-%.32s", own->key.name, options->host);
    else snprintf(own->name, sizeof own->name, "%s", own->key.name);
    return gs_ok();
}

bool gs_own_key_has_changed(gs_own_key *own, int64_t now_ns) {
    if (!*own->path || now_ns - own->looked_ns < LOOK_NS) return false;
    own->looked_ns = now_ns;
    gs_key_file now;
    if (gs_key_file_read(&now, NULL, own->path).code) return false;  // it is being replaced, or gone: what was read counts
    bool changed = memcmp(&now, &own->key, sizeof now) != 0;
    own->key = now;
    gs_key_file_wipe(&now);
    return changed;
}
