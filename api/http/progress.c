#include "api/http/progress.h"

#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

// The kernel's own header: the C library's has no tcpi_bytes_acked, and the two do not go together.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>

uint64_t gs_http_taken_bytes(int fd) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
    return bytes >= offsetof(struct tcp_info, tcpi_bytes_received) ? info.tcpi_bytes_acked : 0;
}

bool gs_http_is_untaken(int fd) {
    int bytes = 0;
    return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void gs_http_drop_untaken(int fd) {
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}
