#include "gradsync/comm/comm_backend.h"

#include <string.h>

gs_status gs_comm_backend_check(const gs_comm_backend *backend) {
    size_t name_len = backend->name ? strlen(backend->name) : 0;
    if (name_len < 1 || name_len > GS_COMM_BACKEND_NAME_LEN)
        return gs_error(GS_INVALID_ARGUMENT, "a backend of one's own needs a name of 1 to %d characters",
                        GS_COMM_BACKEND_NAME_LEN);
    const struct {
        const char *name;
        bool filled;
    } slots[] = {{"create", backend->create},       {"post", backend->post},
                 {"wait", backend->wait},           {"abort", backend->abort},
                 {"destroy", backend->destroy},     {"finished", backend->finished},
                 {"times", backend->times},         {"algorithm", backend->algorithm},
                 {"explain", backend->explain},     {"wait_ended", backend->wait_ended}};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        if (!slots[i].filled)
            return gs_error(GS_INVALID_ARGUMENT, "backend %s lacks %s", backend->name,
                            slots[i].name);
    }
    return gs_ok();
}
