// Where HTTP is served: an address as people write it, and the socket that listens there.
#ifndef API_HTTP_LISTENER_H
#define API_HTTP_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/status.h"

#define GS_HTTP_ADDRESS_LEN 128

// "unix:/run/gradsync.sock": the path; NULL: it is another address.
const char *gs_http_unix_path(const char *address);
// Whether "127.0.0.1:8470", "[::1]:0", "localhost:8470" or a Unix socket is reached from this machine alone.
// INVALID_ARGUMENT when it is no address at all.
GS_NODISCARD gs_status gs_http_address_check(bool *on_loopback, const char *address);

// Who is at the other end of a connection: "10.0.0.3:51234", "[fe80::1]:9", "unix uid=1000 pid=77"; "?" when it has gone.
#define GS_HTTP_PEER_LEN 80
void gs_http_peer_format(char text[GS_HTTP_PEER_LEN], int fd);

// Whose connection it is, for limits: its address, of IPv6 the network, of 127.0.0.0/8 always the same. False: a Unix socket's.
typedef struct gs_http_neighbourhood {
    uint8_t bytes[16];
} gs_http_neighbourhood;
bool gs_http_neighbourhood_of(gs_http_neighbourhood *out, int fd);

// The same of such a text, without its port: "10.0.0.3", "2001:db8:1:2::/64"; "": a Unix socket's.
void gs_http_peer_neighbourhood(char text[GS_HTTP_PEER_LEN], const char *peer);

// Which file a Unix socket is: {0} is none.
typedef struct gs_socket_mark {
    dev_t device;
    ino_t inode;
} gs_socket_mark;
gs_socket_mark gs_socket_mark_of(const char *path);
// Unless it was replaced: then it is somebody else's.
void gs_socket_remove(const char *path, gs_socket_mark mark);

// *fd is the caller's; `bound` is the address with its real port. UNAVAILABLE: in use. A Unix socket is for its
// owner alone; one that nobody listens at any more is replaced.
GS_NODISCARD gs_status gs_listener_open(int *fd, char bound[GS_HTTP_ADDRESS_LEN],
                                        const char *address);

#endif
