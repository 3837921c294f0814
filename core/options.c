#include "core/options.h"

#include <string.h>

#include "core/version.h"

gs_status gs_options_take(void *mine, size_t mine_bytes, const void *theirs, size_t theirs_bytes,
                          const char *name) {
    const unsigned char *bytes = theirs;
    size_t known = theirs_bytes < mine_bytes ? theirs_bytes : mine_bytes;
    memset(mine, 0, mine_bytes);
    memcpy(mine, theirs, known);
    for (size_t i = known; i < theirs_bytes; i++) {
        if (bytes[i])
            return gs_error(GS_INVALID_ARGUMENT,
                            "%s: an option is set that gradsync %s (ABI %d) does not have: the "
                            "program was compiled for a newer one (%zu bytes of options, %zu here)",
                            name, gs_version(), gs_abi_version(), theirs_bytes, mine_bytes);
    }
    return gs_ok();
}
