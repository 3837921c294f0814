#include "api/cli/key_audit.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "rpc/json/sealed_file.h"

static void write_line(const gs_cli_key_audit *it, const char *result, const char *made) {
    char name[32], from[64];
    snprintf(name, sizeof name, "uid-%u", (unsigned)getuid());
    snprintf(from, sizeof from, "here uid=%u pid=%d", (unsigned)getuid(), (int)getpid());
    const gs_audit_line line = {.kind = result ? GS_AUDIT_ANSWERED : GS_AUDIT_ASKED, .request_id = "", .method = "COMMAND",
                                .route = it->what, .path = it->target, .token = "", .name = name, .role = "", .from = from,
                                .result = result, .made = made, .seconds = gs_seconds_since(it->begin_ns)};
    gs_audit_write(it->audit, &line);
}

// What root makes where the coordinator's user has its data is that user's, who writes there next.
static void give_to_owner(const char *path, const char *data_dir) {
    struct stat owner, facts;
    if (geteuid() != 0 || stat(data_dir, &owner) != 0 || owner.st_uid == 0) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    bool is_ours = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == 0 && facts.st_nlink == 1;
    if (is_ours && fchown(fd, owner.st_uid, owner.st_gid) != 0) fprintf(stderr, "gradsync: %s stays root's\n", path);
    close(fd);
}

static gs_status open_files(gs_cli_key_audit *it, const char *data_dir) {
    static const char *const endings[] = {"", ".lock", ".refused"};
    char path[1100], whole[1120];
    snprintf(path, sizeof path, "%s/keys-audit.jsonl", data_dir);
    GS_TRY(gs_file_lock(&it->lock_fd, path));
    GS_TRY(gs_audit_open(&it->audit, &(gs_audit_options){.path = path}));
    for (int i = 0; i < 3; i++) {
        snprintf(whole, sizeof whole, "%s%s", path, endings[i]);
        give_to_owner(whole, data_dir);
    }
    return gs_ok();
}

void gs_cli_key_audit_begin(gs_cli_key_audit *it, const char *data_dir, const char *what, const char *target) {
    *it = (gs_cli_key_audit){.lock_fd = -1, .what = what, .target = target, .begin_ns = gs_now_ns()};
    gs_status status = open_files(it, data_dir);
    if (status.code) fprintf(stderr, "gradsync: no line of this is in the audit: %s\n", status.message);
    write_line(it, NULL, NULL);
}

void gs_cli_key_audit_end(gs_cli_key_audit *it, gs_status status, const char *made) {
    write_line(it, gs_code_name(status.code), made);
    gs_audit_close(it->audit);
    if (it->lock_fd >= 0) close(it->lock_fd);
    *it = (gs_cli_key_audit){.lock_fd = -1};
}
