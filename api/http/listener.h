// Where HTTP is served: an address as people write it, and the socket that listens there.
#ifndef API_HTTP_LISTENER_H
#define API_HTTP_LISTENER_H

#include <stdbool.h>

#include "core/status.h"

#define GS_HTTP_ADDRESS_LEN 64

// Whether "127.0.0.1:8470", "[::1]:0" or "localhost:8470" is a loopback address. INVALID_ARGUMENT
// when it is no address at all.
GS_NODISCARD gs_status gs_http_address_check(bool *on_loopback, const char *address);

// *fd is the caller's; `bound` is the address with its real port. FAILED_PRECONDITION: in use.
GS_NODISCARD gs_status gs_listener_open(int *fd, char bound[GS_HTTP_ADDRESS_LEN],
                                        const char *address);

#endif
