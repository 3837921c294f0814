#include "api/http/tls.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <gnutls/x509.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"

enum { MOST_CERTIFICATES = 16, LOOK_MS = 1000, KEPT_SECONDS = 60 };

// Immutable once it is shown.
typedef struct identity {
    struct identity *next;  // that was replaced before
    gnutls_pcert_st chain[MOST_CERTIFICATES];
    unsigned chain_count;
    gnutls_privkey_t key;
    int64_t replaced_ns, expires_ms;
} identity;

typedef struct file_mark {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec changed;
} file_mark;

typedef struct file_marks {
    file_mark cert, key;
} file_marks;

struct gs_tls {
    char cert_path[PATH_MAX], key_path[PATH_MAX];
    gs_thread *watcher;
    file_marks looked_at;  // what is shown was read from these; the watcher's, once it runs
    file_marks told;       // of files of which the log says that they could not be read, and why
    gs_code told_code;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    identity *shown;     // of handshakes that begin
    identity *replaced;  // newest first
};

static void release_identity(identity *it) {
    if (!it) return;
    for (unsigned i = 0; i < it->chain_count; i++) gnutls_pcert_deinit(&it->chain[i]);
    if (it->key) gnutls_privkey_deinit(it->key);
    free(it);
}

static file_mark mark_of(const char *path) {
    struct stat facts;
    if (stat(path, &facts) != 0) return (file_mark){0};
    return (file_mark){facts.st_dev, facts.st_ino, facts.st_size, facts.st_ctim};
}

static bool same_mark(const file_mark *a, const file_mark *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static gs_status load_file(gnutls_datum_t *out, const char *flag, const char *path) {
    int failed = gnutls_load_file(path, out);
    if (!failed) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%s: %s cannot be read: %s", flag, path, gnutls_strerror(failed));
}

static gs_status read_chain(identity *it, const char *path) {
    gnutls_datum_t pem;
    gnutls_x509_crt_t first;
    unsigned count = MOST_CERTIFICATES;
    GS_TRY(load_file(&pem, "--tls-cert", path));
    int failed = gnutls_pcert_list_import_x509_raw(it->chain, &count, &pem, GNUTLS_X509_FMT_PEM, 0);
    gnutls_free(pem.data);
    if (failed || count == 0)
        return gs_error(GS_INVALID_ARGUMENT, "--tls-cert: %s holds no certificates in PEM: %s", path, gnutls_strerror(failed));
    it->chain_count = count;
    if (gnutls_pcert_export_x509(&it->chain[0], &first) == 0) {
        it->expires_ms = (int64_t)gnutls_x509_crt_get_expiration_time(first) * 1000;
        gnutls_x509_crt_deinit(first);
    }
    return gs_ok();
}

static gs_status read_key(identity *it, const char *path) {
    struct stat facts;
    gnutls_datum_t pem;
    if (stat(path, &facts) != 0) return gs_error(GS_INVALID_ARGUMENT, "--tls-key: %s cannot be read: %s", path, strerror(errno));
    if (facts.st_mode & (S_IRWXO | S_IWGRP))
        return gs_error(GS_FAILED_PRECONDITION, "--tls-key: %s may be read by others; `chmod 600 %s` mends that", path, path);
    GS_TRY(load_file(&pem, "--tls-key", path));
    int failed = gnutls_privkey_init(&it->key);
    if (!failed) failed = gnutls_privkey_import_x509_raw(it->key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(pem.data, 0, pem.size);
    gnutls_free(pem.data);
    if (!failed) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "--tls-key: %s holds no private key in PEM without a password: %s", path, gnutls_strerror(failed));
}

static gs_status check_pair(const identity *it, const gs_tls *tls) {
    gnutls_pubkey_t public_key;
    uint8_t of_key[64], of_cert[64];
    size_t key_bytes = sizeof of_key, cert_bytes = sizeof of_cert;
    if (gnutls_pubkey_init(&public_key) != 0) return gs_error(GS_RESOURCE_EXHAUSTED, "--tls-key: out of memory");
    int failed = gnutls_pubkey_import_privkey(public_key, it->key, 0, 0);
    if (!failed) failed = gnutls_pubkey_get_key_id(public_key, GNUTLS_KEYID_USE_SHA256, of_key, &key_bytes);
    if (!failed) failed = gnutls_pubkey_get_key_id(it->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, of_cert, &cert_bytes);
    gnutls_pubkey_deinit(public_key);
    if (!failed && key_bytes == cert_bytes && memcmp(of_key, of_cert, key_bytes) == 0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "--tls-key: %s is not the key of the first certificate of %s", tls->key_path, tls->cert_path);
}

static gs_status read_identity(identity **out, const gs_tls *tls) {
    identity *it = calloc(1, sizeof *it);
    if (!it) return gs_error(GS_RESOURCE_EXHAUSTED, "--tls-cert: out of memory");
    gs_status status = read_chain(it, tls->cert_path);
    if (!status.code) status = read_key(it, tls->key_path);
    if (!status.code) status = check_pair(it, tls);
    if (status.code) release_identity(it);
    else *out = it;
    return status;
}

static void tell_of(const gs_tls *tls, const identity *it) {
    char at[GS_TIMESTAMP_LEN];
    gs_timestamp_format(at, it->expires_ms);
    if (it->expires_ms < gs_wall_ms()) gs_log_warn("tls certificate has expired", "path=%s at=%s", tls->cert_path, at);
    else gs_log_info("tls certificate", "path=%s expires=%s", tls->cert_path, at);
}

static void replace_shown(gs_tls *tls, identity *fresh) {
    int64_t now_ns = gs_now_ns();
    pthread_mutex_lock(&tls->lock);
    if (tls->shown) {
        tls->shown->replaced_ns = now_ns;
        tls->shown->next = tls->replaced;
        tls->replaced = tls->shown;
    }
    tls->shown = fresh;
    // No handshake has them any more.
    identity **end = &tls->replaced;
    while (*end && now_ns - (*end)->replaced_ns < KEPT_SECONDS * GS_NS_PER_SEC) end = &(*end)->next;
    identity *over = *end;
    *end = NULL;
    pthread_mutex_unlock(&tls->lock);
    while (over) {
        identity *next = over->next;
        release_identity(over);
        over = next;
    }
}

static void look_again(gs_tls *tls) {
    file_marks now = {mark_of(tls->cert_path), mark_of(tls->key_path)};
    if (same_mark(&now.cert, &tls->looked_at.cert) && same_mark(&now.key, &tls->looked_at.key)) return;
    identity *fresh = NULL;
    gs_status status = read_identity(&fresh, tls);
    if (status.code) {
        // Read again each second: what failed may have been the descriptor that was not free, and not the file.
        bool is_told = tls->told_code == status.code && same_mark(&now.cert, &tls->told.cert) && same_mark(&now.key, &tls->told.key);
        if (!is_told) gs_log_warn("tls certificate not replaced, the one before is shown", "reason=\"%s\"", status.message);
        tls->told = now;
        tls->told_code = status.code;
        return;
    }
    tls->looked_at = now;
    tls->told_code = GS_OK;
    tell_of(tls, fresh);
    replace_shown(tls, fresh);
}

static void watch_files(void *ctx, const atomic_bool *stopping) {
    gs_tls *tls = ctx;
    while (!atomic_load(stopping)) {
        look_again(tls);
        pthread_mutex_lock(&tls->lock);
        if (!atomic_load(stopping)) gs_cond_wait(&tls->changed, &tls->lock, gs_deadline_in_ms(LOOK_MS));
        pthread_mutex_unlock(&tls->lock);
    }
}

gs_status gs_tls_open(gs_tls **out, const char *cert_path, const char *key_path) {
    gs_tls *tls = calloc(1, sizeof *tls);
    if (!tls) return gs_error(GS_RESOURCE_EXHAUSTED, "--tls-cert: out of memory");
    pthread_mutex_init(&tls->lock, NULL);
    gs_cond_init(&tls->changed);
    snprintf(tls->cert_path, sizeof tls->cert_path, "%s", cert_path);
    snprintf(tls->key_path, sizeof tls->key_path, "%s", key_path);
    tls->looked_at = (file_marks){mark_of(cert_path), mark_of(key_path)};  // before they are read
    identity *first = NULL;
    gs_status status = read_identity(&first, tls);
    if (!status.code) {
        tell_of(tls, first);
        replace_shown(tls, first);
        status = gs_thread_start(&tls->watcher, "tls-files", watch_files, tls);
    }
    if (status.code) {
        gs_tls_close(tls);
        return status;
    }
    *out = tls;
    return gs_ok();
}

void gs_tls_close(gs_tls *tls) {
    if (!tls) return;
    if (tls->watcher) {
        pthread_mutex_lock(&tls->lock);
        gs_thread_ask_to_stop(tls->watcher);
        pthread_cond_broadcast(&tls->changed);
        pthread_mutex_unlock(&tls->lock);
        gs_thread_stop(tls->watcher);
    }
    release_identity(tls->shown);
    while (tls->replaced) {
        identity *next = tls->replaced->next;
        release_identity(tls->replaced);
        tls->replaced = next;
    }
    pthread_cond_destroy(&tls->changed);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

void gs_tls_show(gs_tls *tls, gnutls_pcert_st **chain, unsigned *chain_count, gnutls_privkey_t *key) {
    pthread_mutex_lock(&tls->lock);
    *chain = tls->shown->chain;
    *chain_count = tls->shown->chain_count;
    *key = tls->shown->key;
    pthread_mutex_unlock(&tls->lock);
}
