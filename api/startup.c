#include "api/startup.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "core/log.h"

void gs_startup_raise_file_limit(unsigned num_wanted) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    rlim_t before = files.rlim_cur;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) files.rlim_cur = before;
    if (files.rlim_cur < num_wanted)
        gs_log_warn("few files may be open", "limit=%llu wanted=%u",
                    (unsigned long long)files.rlim_cur, num_wanted);
}

void gs_startup_guard_memory(void) {
    if (prctl(PR_SET_DUMPABLE, 0) != 0) gs_log_warn("memory not guarded from processes of this user", "reason=\"%s\"", strerror(errno));
}

gs_status gs_startup_write_port_file(const char *path, const char *http, const char *readonly, const char *control) {
    char temporary[PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.new", path) >= sizeof temporary)
        return gs_error(GS_INVALID_ARGUMENT, "--port-file: the path is too long");
    FILE *file = fopen(temporary, "we");
    if (!file) return gs_error_from_errno(errno, "--port-file: %s", temporary);
    fprintf(file, "{\"http\":\"%s\"", http);
    if (readonly) fprintf(file, ",\"http_readonly\":\"%s\"", readonly);
    if (control) fprintf(file, ",\"control\":\"%s\"", control);
    fputs("}\n", file);
    if (fclose(file) != 0 || rename(temporary, path) != 0)
        return gs_error_from_errno(errno, "--port-file: %s", path);
    return gs_ok();
}
