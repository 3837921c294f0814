// Settings from a JSON file (comments and trailing commas allowed): the reader for core/config.
#ifndef RPC_JSON_CONFIG_FILE_H
#define RPC_JSON_CONFIG_FILE_H

#include "core/status.h"

// Fits gs_config_program.read_file. Members are strings, numbers and booleans. INVALID_ARGUMENT
// names the file and the member or byte; NOT_FOUND: no such file.
GS_NODISCARD gs_status gs_config_file_read(const char *path,
                                           gs_status (*set)(void *set_ctx, const char *name,
                                                            const char *value),
                                           void *set_ctx);

#endif
