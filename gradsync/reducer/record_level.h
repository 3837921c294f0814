// How much a reducer says about its steps.
#ifndef GRADSYNC_REDUCER_RECORD_LEVEL_H
#define GRADSYNC_REDUCER_RECORD_LEVEL_H

#include <stdbool.h>

#include "core/abi.h"

GS_BEGIN_DECLS

typedef enum gs_record_level {
    GS_RECORD_UNSET = 0,  // what GRADSYNC_REDUCER_LOG says: off, info or detail; without it off
    GS_RECORD_OFF,
    GS_RECORD_INFO,
    GS_RECORD_DETAIL
} gs_record_level;
const char *gs_record_level_name(gs_record_level level);
// False when there is no such level.
bool gs_record_level_from_name(gs_record_level *level, const char *name);

GS_END_DECLS

#endif
