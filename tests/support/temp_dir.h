// A directory of a test's own below $TMPDIR, removed with everything in it.
#ifndef TESTS_SUPPORT_TEMP_DIR_H
#define TESTS_SUPPORT_TEMP_DIR_H

char *gs_temp_dir_make(void);         // the path, malloc'd; aborts the test when it cannot
void gs_temp_dir_remove(char *path);  // recursively, and frees the path

#endif
