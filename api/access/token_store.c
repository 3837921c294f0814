#include "api/access/token_store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/random.h"
#include "core/thread.h"
#include "rpc/json/sealed_json.h"

enum { LOOK_MS = 1000, LOCK_MS = 5000, LOCK_POLL_MS = 10, READ_TRIES = 3 };

struct gs_token_store {
    char path[PATH_MAX], admin_path[PATH_MAX], lock_path[PATH_MAX];
    bool is_ignored;
    atomic_bool is_behind;
    gs_thread *watcher;
    // One at a time in this process changes the file, or reads it to show what it holds: so what is shown is never older than
    // what was shown before. Held over the disk.
    pthread_mutex_t writing;
    pthread_mutex_t lock;     // what follows; never held over the disk
    pthread_cond_t changed;
    bool asks;
    gs_token_list list;
    gs_file_mark mark;  // of what the list was read from; {0}: no file
};

// NOT_FOUND: there is no file. A link that leads nowhere is one all the same: what it is to lead to may come yet.
static gs_status look_at_file(gs_file_mark *mark, const char *path) {
    struct stat facts;
    *mark = (gs_file_mark){0};
    if (lstat(path, &facts) != 0) return gs_error_from_errno(errno, "%s", path);
    if (!S_ISREG(facts.st_mode)) return gs_error(GS_FAILED_PRECONDITION, "%s is no regular file", path);
    if (facts.st_uid != geteuid() && facts.st_uid != 0)
        return gs_error(GS_FAILED_PRECONDITION, "%s belongs to user %u, who may write it", path, (unsigned)facts.st_uid);
    if (facts.st_mode & (S_IWGRP | S_IWOTH))
        return gs_error(GS_FAILED_PRECONDITION, "%s may be written by others than its owner; chmod 600 mends it", path);
    *mark = gs_file_mark_of(&facts);
    return gs_ok();
}

// What is read is the very file that was looked at, by its descriptor: whoever has put another one, or a link, into its place in
// between is read at the next try, by that one's own facts.
static gs_status read_file_looked_at(gs_json **file, gs_file_mark *mark, const char *path) {
    for (int i = 0; i < READ_TRIES; i++) {
        gs_file_mark read;
        GS_TRY(look_at_file(mark, path));
        GS_FAILPOINT("tokens.read");
        GS_TRY(gs_sealed_json_read_guarded(file, &read, path, S_IWGRP | S_IWOTH));
        if (gs_file_mark_equal(&read, mark)) return gs_ok();
        gs_json_release(*file);
        *file = NULL;
    }
    return gs_error(GS_UNAVAILABLE, "%s is another file each time it is read", path);
}

static gs_status read_list(gs_token_list *list, gs_file_mark *mark, const char *path) {
    gs_json *file = NULL;
    GS_TRY(read_file_looked_at(&file, mark, path));
    gs_status status = gs_token_list_decode(list, file);
    gs_json_release(file);
    if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
    return gs_status_prefix(status, "%s", path);
}

// Takes the list.
static void show_list(gs_token_store *store, gs_token_list list, const gs_file_mark *mark) {
    pthread_mutex_lock(&store->lock);
    gs_token_list before = store->list;
    store->list = list;
    store->mark = *mark;
    store->asks = true;
    pthread_mutex_unlock(&store->lock);
    gs_token_list_release(&before);
}

// Of which file the log says that it cannot be read, and why.
typedef struct telling {
    gs_file_mark mark;
    gs_code code;
} telling;

static void tell_unreadable(telling *told, const gs_file_mark *now, gs_status status) {
    if (told->code == status.code && gs_file_mark_equal(&told->mark, now)) return;
    *told = (telling){*now, status.code};
    gs_log_error("tokens cannot be read, those known before count", "reason=\"%s\"", status.message);
}

// Under `writing`. What failed once may succeed at the next look (no descriptor was free, a disk was away), and a revocation must
// not be lost by it: so a file is looked at until it was read, also one that is damaged.
static void look_again(gs_token_store *store, telling *told) {
    gs_file_mark now, shown;
    gs_status status = look_at_file(&now, store->path);
    pthread_mutex_lock(&store->lock);
    shown = store->mark;
    pthread_mutex_unlock(&store->lock);
    bool is_known = gs_file_mark_equal(&now, &shown) && (!status.code || status.code == GS_NOT_FOUND);
    gs_token_list list = {0};
    if (!is_known && !status.code) status = read_list(&list, &now, store->path);
    bool is_behind = !is_known && status.code;
    if (is_behind) tell_unreadable(told, &now, status);
    else told->code = GS_OK;
    if (is_known || is_behind) {
        atomic_store(&store->is_behind, is_behind && status.code != GS_NOT_FOUND);  // what is gone changes nothing
        return;
    }
    GS_FAILPOINT_VOID("tokens.look");
    gs_log_info("tokens read", "path=%s count=%zu", store->path, list.count);
    show_list(store, list, &now);
    atomic_store(&store->is_behind, false);
}

static void watch_file(void *ctx, const atomic_bool *stopping) {
    gs_token_store *store = ctx;
    telling told = {0};
    while (!atomic_load(stopping)) {
        pthread_mutex_lock(&store->writing);
        look_again(store, &told);
        pthread_mutex_unlock(&store->writing);
        pthread_mutex_lock(&store->lock);
        if (!atomic_load(stopping)) gs_cond_wait(&store->changed, &store->lock, gs_deadline_in_ms(LOOK_MS));
        pthread_mutex_unlock(&store->lock);
    }
}

// Among processes that change the same file. *fd is the caller's.
static gs_status lock_file(int *fd, const char *path) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return gs_error_from_errno(errno, "%s", path);
    gs_deadline deadline = gs_deadline_in_ms(LOCK_MS);
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            gs_status status = gs_error_from_errno(errno, "%s", path);
            close(*fd);
            return status;
        }
        if (gs_deadline_passed(deadline)) {
            close(*fd);
            return gs_error(GS_UNAVAILABLE, "%s: another process has held it for %d s", path, LOCK_MS / 1000);
        }
        gs_sleep_ns(LOCK_POLL_MS * GS_NS_PER_MS);
    }
    return gs_ok();
}

static gs_status write_list(const gs_token_list *list, const char *path) {
    gs_json *file = gs_token_list_encode(list);
    if (!file) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    uint64_t bytes;
    gs_digest digest;
    return gs_status_prefix(gs_sealed_json_write(file, path, &bytes, &digest), "tokens");
}

static gs_status write_secret(const char *path, const char *secret) {
    char fresh[PATH_MAX + 16];
    snprintf(fresh, sizeof fresh, "%s.%08x", path, (unsigned)gs_random_from_system());
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return gs_error_from_errno(errno, "%s", fresh);
    bool is_there = dprintf(fd, "%s\n", secret) > 0 && fsync(fd) == 0;
    gs_status status = is_there ? gs_ok() : gs_error_from_errno(errno, "%s", fresh);
    close(fd);
    if (!status.code && rename(fresh, path) != 0) status = gs_error_from_errno(errno, "%s", path);
    if (status.code) unlink(fresh);
    return status;
}

static gs_status add_token(gs_token_list *list, gs_token *made, char secret[GS_SECRET_TEXT_BYTES], int64_t now_ms) {
    GS_TRY(gs_secret_draw(secret));
    if (!gs_secret_hash_of(&made->hash, secret, strlen(secret))) return gs_error(GS_INTERNAL, "token: no hash");
    made->created_ms = now_ms;
    return gs_token_list_add(list, made, now_ms);
}

// The secret is on the disk before the list says that it counts: after a crash in between there is no
// administrator, and the next start makes another one.
static gs_status ensure_admin(gs_token_store *store, gs_token_list *list, int64_t now_ms) {
    if (gs_token_list_has_admin(list, now_ms)) return gs_ok();
    gs_token admin = {.role = GS_ROLE_ADMIN};
    char secret[GS_SECRET_TEXT_BYTES];
    snprintf(admin.name, sizeof admin.name, "first-%08x", (unsigned)gs_random_from_system());
    GS_TRY(add_token(list, &admin, secret, now_ms));
    gs_status status = write_secret(store->admin_path, secret);
    explicit_bzero(secret, sizeof secret);
    if (!status.code) gs_log_info("a token for an administrator", "id=%s path=%s", admin.id, store->admin_path);
    return status;
}

typedef gs_status (*list_change)(gs_token_store *store, gs_token_list *list, void *ctx);

// Reads what is there, changes it, writes it, and shows it when it is durable.
static gs_status change_list(gs_token_store *store, list_change change, void *ctx) {
    int fd = -1;
    gs_token_list list = {0};
    gs_file_mark mark;
    pthread_mutex_lock(&store->writing);
    gs_status status = lock_file(&fd, store->lock_path);
    bool is_locked = !status.code;
    if (is_locked) status = read_list(&list, &mark, store->path);
    if (status.code == GS_NOT_FOUND) status = gs_ok();
    if (!status.code) status = change(store, &list, ctx);
    if (!status.code) status = write_list(&list, store->path);
    if (!status.code) status = look_at_file(&mark, store->path);
    if (status.code) gs_token_list_release(&list);
    else show_list(store, list, &mark);
    if (is_locked) close(fd);
    pthread_mutex_unlock(&store->writing);
    return status;
}

static gs_status change_nothing_else(gs_token_store *store, gs_token_list *list, void *ctx) {
    (void)ctx;
    return ensure_admin(store, list, gs_wall_ms());
}

static gs_status open_list(gs_token_store *store, bool is_required) {
    gs_token_list list = {0};
    gs_file_mark mark;
    gs_status status = read_list(&list, &mark, store->path);
    bool is_there = status.code != GS_NOT_FOUND;
    if (is_there && status.code) return status;
    bool has_admin = gs_token_list_has_admin(&list, gs_wall_ms());
    if (is_there) show_list(store, list, &mark);
    if (has_admin || (!is_there && !is_required)) return gs_ok();
    return change_list(store, change_nothing_else, NULL);
}

static gs_status choose_paths(gs_token_store *store, const char *path) {
    const char *slash = strrchr(path, '/');
    int dir_len = slash ? (int)(slash - path) : 1;
    const char *dir = slash ? path : ".";
    if (strlen(path) + 32 >= PATH_MAX) return gs_error(GS_INVALID_ARGUMENT, "tokens: the path is too long");
    snprintf(store->path, sizeof store->path, "%.*s/%s", dir_len, dir, slash ? slash + 1 : path);
    snprintf(store->admin_path, sizeof store->admin_path, "%.*s/admin.token", dir_len, dir);
    snprintf(store->lock_path, sizeof store->lock_path, "%s.lock", path);
    return gs_ok();
}

gs_status gs_token_store_open(gs_token_store **out, const gs_token_store_options *options) {
    gs_token_store *store = calloc(1, sizeof *store);
    if (!store) return gs_error(GS_RESOURCE_EXHAUSTED, "tokens: out of memory");
    pthread_mutex_init(&store->writing, NULL);
    pthread_mutex_init(&store->lock, NULL);
    gs_cond_init(&store->changed);
    store->is_ignored = options->is_ignored || !options->path;
    store->asks = options->is_required && !store->is_ignored;
    gs_status status = gs_ok();
    if (!store->is_ignored) status = choose_paths(store, options->path);
    if (!store->is_ignored && !status.code) status = open_list(store, store->asks);
    if (!store->is_ignored && !status.code) status = gs_thread_start(&store->watcher, "tokens", watch_file, store);
    if (status.code) {
        gs_token_store_close(store);
        return status;
    }
    *out = store;
    return gs_ok();
}

void gs_token_store_close(gs_token_store *store) {
    if (!store) return;
    if (store->watcher) {
        pthread_mutex_lock(&store->lock);
        gs_thread_ask_to_stop(store->watcher);
        pthread_cond_broadcast(&store->changed);
        pthread_mutex_unlock(&store->lock);
        gs_thread_stop(store->watcher);
    }
    gs_token_list_release(&store->list);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    pthread_mutex_destroy(&store->writing);
    free(store);
}

bool gs_token_store_asks(gs_token_store *store) {
    pthread_mutex_lock(&store->lock);
    bool asks = store->asks;
    pthread_mutex_unlock(&store->lock);
    return asks;
}

bool gs_token_store_is_behind(const gs_token_store *store) {
    return atomic_load(&store->is_behind);
}

const char *gs_token_store_admin_path(const gs_token_store *store) {
    return store->admin_path;
}

static gs_status refuse_ended(const gs_token *token) {
    char at[GS_TIMESTAMP_LEN];
    gs_timestamp_format(at, token->revoked_ms ? token->revoked_ms : token->expires_ms);
    return gs_error(GS_UNAUTHENTICATED, "token %s (%s) %s %s", token->id, token->name,
                    token->revoked_ms ? "was revoked at" : "expired at", at);
}

static gs_status admit_known(gs_caller *caller, const gs_token *token) {
    if (!gs_token_counts(token, gs_wall_ms())) return refuse_ended(token);
    memcpy(caller->id, token->id, sizeof caller->id);
    memcpy(caller->name, token->name, sizeof caller->name);
    caller->role = token->role;
    caller->expires_ms = token->expires_ms;
    return gs_ok();
}

void gs_caller_format(char text[GS_PRINCIPAL_BYTES], const gs_caller *caller) {
    snprintf(text, GS_PRINCIPAL_BYTES, *caller->id ? "%s (%s)" : "%s", caller->name, caller->id);
}

static gs_status check_role(const gs_caller *caller, gs_role needed) {
    if (caller->role >= needed) return gs_ok();
    return gs_error(GS_PERMISSION_DENIED, "token %s (%s) has the role %s, and this needs %s", caller->id, caller->name,
                    gs_token_role_name(caller->role), gs_token_role_name(needed));
}

gs_status gs_token_store_admit_session(gs_token_store *store, gs_caller *caller, const char *token_id, gs_role needed) {
    *caller = (gs_caller){0};
    pthread_mutex_lock(&store->lock);
    const gs_token *token = gs_token_list_find_id(&store->list, token_id);
    gs_status status = token ? admit_known(caller, token)
                             : gs_error(GS_UNAUTHENTICATED, "this session has ended, or is not one of this server: POST /v1/session begins another");
    pthread_mutex_unlock(&store->lock);
    caller->is_session = !status.code;
    return status.code ? status : check_role(caller, needed);
}

gs_status gs_token_store_admit(gs_token_store *store, gs_caller *caller, const char *header, gs_role needed) {
    *caller = (gs_caller){.role = GS_ROLE_ADMIN};
    if (needed == GS_ROLE_ANYBODY || !gs_token_store_asks(store)) return gs_ok();
    *caller = (gs_caller){0};
    gs_secret_hash hash;
    if (!header)
        return gs_error(GS_UNAUTHENTICATED, "this server asks for a token, and the request has none");
    if (!gs_secret_hash_of_header(&hash, header))
        return gs_error(GS_UNAUTHENTICATED, "Authorization is not \"Bearer \" and a token of this server (gs_ and 43 characters)");
    pthread_mutex_lock(&store->lock);
    const gs_token *token = gs_token_list_find(&store->list, &hash);
    gs_status status = token ? admit_known(caller, token) : gs_error(GS_UNAUTHENTICATED, "this server did not give out this token");
    pthread_mutex_unlock(&store->lock);
    return status.code ? status : check_role(caller, needed);
}

bool gs_token_store_admits_still(gs_token_store *store, gs_sessions *sessions, const gs_caller *caller) {
    if (caller->is_exempt) return true;
    pthread_mutex_lock(&store->lock);
    const gs_token *token = gs_token_list_find_id(&store->list, caller->id);
    bool is_admitted = !store->asks || (token && gs_token_counts(token, gs_wall_ms()));
    pthread_mutex_unlock(&store->lock);
    return is_admitted && (!caller->is_session || gs_sessions_has(sessions, caller->session, gs_now_ns()));
}

typedef struct token_order {
    gs_token *made;
    char *secret;
} token_order;

static gs_status add_ordered(gs_token_store *store, gs_token_list *list, void *ctx) {
    token_order *order = ctx;
    int64_t now_ms = gs_wall_ms();
    GS_TRY(add_token(list, order->made, order->secret, now_ms));
    return ensure_admin(store, list, now_ms);
}

gs_status gs_token_store_make(gs_token_store *store, gs_token *made, char secret[GS_SECRET_TEXT_BYTES],
                              const char *name, gs_role role, double life_seconds) {
    if (store->is_ignored)
        return gs_error(GS_FAILED_PRECONDITION, "nobody is asked for a token here (--insecure-no-auth), so none is made");
    *made = (gs_token){.role = role};
    snprintf(made->name, sizeof made->name, "%s", name);
    if (life_seconds > 0) made->expires_ms = gs_wall_ms() + (int64_t)(life_seconds * 1000);
    token_order order = {made, secret};
    return change_list(store, add_ordered, &order);
}

static gs_status revoke_named(gs_token_store *store, gs_token_list *list, void *ctx) {
    (void)store;
    return gs_token_list_revoke(list, ctx, gs_wall_ms());
}

gs_status gs_token_store_revoke(gs_token_store *store, const char *which) {
    if (store->is_ignored) return gs_error(GS_NOT_FOUND, "nobody is asked for a token here, so there is none");
    char copy[128];
    snprintf(copy, sizeof copy, "%s", which);
    return change_list(store, revoke_named, copy);
}

gs_json *gs_token_store_view(gs_token_store *store) {
    gs_json *view = gs_json_new_object(), *items = gs_json_new_array();
    int64_t now_ms = gs_wall_ms();
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->list.count; i++) gs_json_push(items, gs_token_view(&store->list.items[i], now_ms));
    pthread_mutex_unlock(&store->lock);
    gs_json_set(view, "items", items);
    return view;
}
