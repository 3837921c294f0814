#include "gradsync/reducer/record_options.h"

#include <string.h>

static const char *const level_names[] = {"unset", "off", "info", "detail"};

const char *gs_record_level_name(gs_record_level level) {
    return (unsigned)level <= GS_RECORD_DETAIL ? level_names[level] : "unset";
}

bool gs_record_level_from_name(gs_record_level *level, const char *name) {
    for (unsigned i = GS_RECORD_OFF; i <= GS_RECORD_DETAIL; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *level = (gs_record_level)i;
        return true;
    }
    return false;
}
