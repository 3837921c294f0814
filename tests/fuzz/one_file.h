// For targets whose parser wants a path: a directory with one file in it, rewritten for every
// input.
#ifndef TESTS_FUZZ_ONE_FILE_H
#define TESTS_FUZZ_ONE_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Made at the first call, in memory where that can be had; left to the system's cleaning otherwise.
static inline const char *fuzz_dir(void) {
    static char path[64];
    if (!path[0]) {
        snprintf(path, sizeof path, "%s/gradsync-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(path)) abort();
    }
    return path;
}

static inline void fuzz_write(const char *name, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) abort();
}

static inline void fuzz_remove(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    unlink(path);
    rmdir(fuzz_dir());
}

#endif
