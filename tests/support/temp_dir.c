#include "tests/support/temp_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

char *gs_temp_dir_make(void) {
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/gradsync-test-XXXXXX", base ? base : "/tmp") < 0) abort();
    if (!mkdtemp(path)) {
        perror(path);
        abort();
    }
    return path;
}

void gs_temp_dir_remove(char *path) {
    if (!path) return;
    nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS);
    free(path);
}
