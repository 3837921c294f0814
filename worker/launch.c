#include "worker/launch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/boot_clock.h"
#include "core/clock.h"

#define PAGE_BYTES 4096
#define MAX_DOCUMENT_BYTES (4 * 1024 * 1024)

// Whoever has the page may have written anything into it.
const char *gs_member_state_name(gs_member_state state) {
    static const char *const names[] = {"booting", "waiting", "prepared", "connecting",
                                        "connected", "running", "aborting", "leaving"};
    return state <= GS_MEMBER_LEAVING ? names[state] : names[0];
}

static gs_status map_page(gs_launch_page **page, int fd) {
    void *memory = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return gs_error_from_errno(errno, "launch page");
    *page = memory;
    return gs_ok();
}

static_assert(sizeof(gs_launch_page) <= PAGE_BYTES, "one page");

void gs_launch_page_put_key(gs_launch_page *page, const gs_key_file *key) {
    atomic_fetch_add(&page->key_turn, 1);
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(&page->key, key, sizeof page->key);
    atomic_thread_fence(memory_order_seq_cst);
    atomic_fetch_add(&page->key_turn, 1);
}

gs_status gs_launch_page_get_key(gs_launch_page *page, gs_key_file *key) {
    unsigned turn = atomic_load(&page->key_turn);
    memcpy(key, &page->key, sizeof *key);
    atomic_thread_fence(memory_order_seq_cst);
    if (turn && turn % 2 == 0 && turn == atomic_load(&page->key_turn)) return gs_ok();
    gs_key_file_wipe(key);
    return gs_error(GS_UNAVAILABLE, turn ? "the key is being changed" : "this trainer has no key");
}

void gs_launch_page_put_cluster(gs_launch_page *page, const char *cluster) {
    atomic_fetch_add(&page->cluster_turn, 1);
    atomic_thread_fence(memory_order_seq_cst);
    snprintf(page->cluster, sizeof page->cluster, "%s", cluster);
    atomic_thread_fence(memory_order_seq_cst);
    atomic_fetch_add(&page->cluster_turn, 1);
}

bool gs_launch_page_get_cluster(gs_launch_page *page, char *cluster, size_t cluster_bytes, unsigned *turn) {
    unsigned seen = atomic_load(&page->cluster_turn);
    if (seen == *turn || seen % 2) return false;
    char copy[GS_CLUSTER_ID_LEN];
    memcpy(copy, page->cluster, sizeof copy);
    atomic_thread_fence(memory_order_seq_cst);
    if (seen != atomic_load(&page->cluster_turn)) return false;
    snprintf(cluster, cluster_bytes, "%.*s", (int)sizeof copy - 1, copy);
    *turn = seen;
    return true;
}

void gs_launch_unmap(gs_launch_page *page) {
    if (page) munmap(page, PAGE_BYTES);
}

static gs_status write_document(int fd, const char *text, size_t bytes) {
    if (ftruncate(fd, PAGE_BYTES) < 0) return gs_error_from_errno(errno, "launch document");
    for (size_t at = 0; at < bytes;) {
        ssize_t put = pwrite(fd, text + at, bytes - at, (off_t)(PAGE_BYTES + at));
        if (put < 0) return gs_error_from_errno(errno, "launch document");
        at += (size_t)put;
    }
    // The agent reads the page; a trainer that made the file shorter would end it.
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) return gs_error_from_errno(errno, "launch document: seal");
    return gs_ok();
}

gs_status gs_launch_write(int *fd, gs_launch_page **page, const gs_json *document, const gs_key_file *key) {
    char *text;
    size_t bytes;
    GS_TRY(gs_json_encode(&text, &bytes, document, false));
    *fd = memfd_create("gradsync-launch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    gs_status status = *fd < 0 ? gs_error_from_errno(errno, "launch document") : gs_ok();
    if (!status.code) status = write_document(*fd, text, bytes);
    if (!status.code) status = map_page(page, *fd);
    free(text);
    if (status.code) {
        if (*fd >= 0) close(*fd);
        return status;
    }
    atomic_store(&(*page)->rank, (int)gs_json_int_or(document, "rank_hint", 0));
    atomic_store(&(*page)->pulse_ns, gs_boot_ns());
    if (key) gs_launch_page_put_key(*page, key);
    return gs_ok();
}

static gs_status read_document(gs_json **document, int fd) {
    struct stat facts;
    if (fstat(fd, &facts) < 0) return gs_error_from_errno(errno, "launch document");
    if (facts.st_size <= PAGE_BYTES || facts.st_size > MAX_DOCUMENT_BYTES) {
        return gs_error(GS_INVALID_ARGUMENT, "launch document: has %lld bytes",
                        (long long)facts.st_size);
    }
    size_t bytes = (size_t)facts.st_size - PAGE_BYTES;
    char *text = malloc(bytes);
    if (!text) return gs_error(GS_RESOURCE_EXHAUSTED, "launch document: out of memory");
    gs_status status = gs_ok();
    if (pread(fd, text, bytes, PAGE_BYTES) != (ssize_t)bytes) {
        status = gs_error(GS_DATA_LOSS, "launch document: short read");
    }
    if (!status.code) status = gs_json_parse(document, text, bytes);
    free(text);
    return gs_status_prefix(status, "launch document");
}

static gs_status take_spec(gs_launch *launch, const gs_json *document) {
    gs_field_errors errors = {0};
    gs_status status =
        gs_job_spec_decode(&launch->spec, gs_json_get(document, "spec"), &errors);
    if (!status.code || errors.count == 0) return status;
    return gs_error(GS_INVALID_ARGUMENT, "spec%s: %s", errors.items[0].pointer,
                    errors.items[0].message);
}

static gs_status take_members(gs_launch *launch, const gs_json *document) {
    const struct {
        char **member;
        const char *name;
    } texts[] = {
        {&launch->job, "job"},
        {&launch->job_name, "job_name"},
        {&launch->launch_token, "launch_token"},
        {&launch->coordinator, "coordinator"},
        {&launch->worker, "worker"},
        {&launch->host, "host"},
        {&launch->boot_id, "boot_id"},
        {&launch->data_root, "data_root"},
        {&launch->data_address, "data_address"},
        {&launch->checkpoints_dir, "checkpoints_dir"},
        {&launch->resume, "resume"},
        {&launch->log_level, "log_level"},
        {&launch->cluster, "cluster"},
        {&launch->device, "device"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        *texts[i].member = strdup(gs_json_string_or(document, texts[i].name, ""));
        if (!*texts[i].member) return gs_error(GS_RESOURCE_EXHAUSTED, "launch: out of memory");
    }
    launch->slot = (int)gs_json_int_or(document, "slot", 0);
    launch->rank_hint = (int)gs_json_int_or(document, "rank_hint", 0);
    launch->is_apart = gs_json_bool_or(document, "apart", false);
    launch->num_devices = (int)gs_json_int_or(document, "num_devices", 0);
    launch->threads = (int)gs_json_int_or(document, "threads", 1);
    GS_TRY(gs_json_read_u64(&launch->incarnation, document, "incarnation"));
    if (!gs_job_number(&launch->job_number, launch->job)) {
        return gs_error(GS_INVALID_ARGUMENT, "job: \"%s\" is no job id", launch->job);
    }
    return take_spec(launch, document);
}

gs_status gs_launch_read(gs_launch *launch, int fd) {
    *launch = (gs_launch){0};
    gs_json *document = NULL;
    gs_status status = read_document(&document, fd);
    if (!status.code) status = take_members(launch, document);
    if (!status.code) status = map_page(&launch->page, fd);
    gs_json_release(document);
    close(fd);
    if (status.code) gs_launch_release(launch);
    return status;
}

void gs_launch_release(gs_launch *launch) {
    free(launch->job);
    free(launch->job_name);
    free(launch->launch_token);
    free(launch->coordinator);
    free(launch->worker);
    free(launch->host);
    free(launch->boot_id);
    free(launch->data_root);
    free(launch->data_address);
    free(launch->checkpoints_dir);
    free(launch->resume);
    free(launch->log_level);
    free(launch->cluster);
    free(launch->device);
    gs_launch_unmap(launch->page);
    *launch = (gs_launch){0};
}

bool gs_job_number(uint64_t *number, const char *job) {
    // Crockford's base32: twelve digits of five bits behind "j-".
    static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";
    if (strlen(job) != 14 || strncmp(job, "j-", 2) != 0) return false;
    *number = 0;
    for (const char *at = job + 2; *at; at++) {
        const char *digit = strchr(digits, *at);
        if (!digit) return false;
        *number = *number << 5 | (uint64_t)(digit - digits);
    }
    return true;
}
