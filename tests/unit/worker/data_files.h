// Files for tests of data sets: a directory of its own, and one call for each thing written into
// it.
#ifndef TESTS_UNIT_WORKER_DATA_FILES_H
#define TESTS_UNIT_WORKER_DATA_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/status.h"
#include "tests/support/temp_dir.h"

static inline int make_dir(void **state) {
    *state = gs_temp_dir_make();
    return 0;
}

static inline int remove_dir(void **state) {
    gs_temp_dir_remove(*state);
    return 0;
}

static inline void write_file(const char *dir, const char *name, const void *data, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (bytes) assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

// As somebody does who writes the file anew while it is read.
static inline void cut_file(const char *dir, const char *name, off_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(truncate(path, bytes), 0);
}

static inline void assert_names(gs_status status, const char *name) {
    assert_int_equal(status.code, GS_DATA_LOSS);
    if (!strstr(status.message, name)) fail_msg("'%s' is not in: %s", name, status.message);
}

static inline void make_subdir(const char *dir, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

#endif
