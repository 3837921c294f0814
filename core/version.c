#include "core/version.h"

const char *gs_version(void) {
    return GRADSYNC_VERSION;
}

int gs_abi_version(void) {
    return GS_ABI_VERSION;
}
