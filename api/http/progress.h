// How far the other end of a connection has come in reading.
#ifndef API_HTTP_PROGRESS_H
#define API_HTTP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

// What the other end's kernel has taken so far of all that was sent. Beyond its window it takes nothing from us until its program
// reads, so a count that stands still while an answer waits is of somebody who does not. 0 where the kernel cannot say: no TCP.
uint64_t gs_http_taken_bytes(int fd);
// Whether something that was sent waits to be taken.
bool gs_http_is_untaken(int fd);
// What waits is thrown away when the connection is closed. Else the kernel would keep it, up to some megabytes, for minutes.
void gs_http_drop_untaken(int fd);

#endif
