// A new file that holds a secret: for its owner alone from the moment it is there, whatever the umask, and in the place of nothing
// else. It is made before the secret is, so that none is made that nobody could keep.
#ifndef API_CLI_SECRET_FILE_H
#define API_CLI_SECRET_FILE_H

#include "core/status.h"

typedef struct gs_cli_secret_file {
    const char *path;  // borrowed until it is finished; NULL: standard output
    int fd;
} gs_cli_secret_file;

// ALREADY_EXISTS: something is at `path`, be it a link that leads nowhere.
GS_NODISCARD gs_status gs_cli_secret_file_begin(gs_cli_secret_file *file, const char *path);
// Writes `text` and the end of its line; the file is on the disk then.
GS_NODISCARD gs_status gs_cli_secret_file_finish(gs_cli_secret_file *file, const char *text);
// There is no secret: nor is there a file.
void gs_cli_secret_file_abandon(gs_cli_secret_file *file);

#endif
