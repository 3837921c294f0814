// Who comes to the control port by TCP, and how many never say anything: for operators, who see nothing else of a crowd of strangers.
// Internal to the server; one thread.
#ifndef RPC_SERVER_PORT_WATCH_H
#define RPC_SERVER_PORT_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"

// More connections than these that have said nothing, all of five seconds long, are no start of workers; nor are more handshakes in a
// minute that came to nothing.
#define GS_MANY_SILENT 1024
#define GS_MANY_SILENT_NS (5 * GS_NS_PER_SEC)
#define GS_MANY_FAILED 3000

typedef struct gs_port_watch {
    uint64_t num_accepted, num_failed;  // connections; handshakes that came to nothing
    int64_t crowded_ns;                 // since when too many say nothing; 0: they do not
    int64_t minute_ns, warned_ns;       // 0: never
    uint64_t minute_failed;             // at the begin of that minute
} gs_port_watch;

// What the monitor of a socket has said. That a key was not let in is its keeper's to count.
void gs_port_watch_note(gs_port_watch *watch, int event);
// Now and then. Warns, once a minute at most: true.
//   num_heard  of those that are open, who have said something that counts
bool gs_port_watch_look(gs_port_watch *watch, size_t num_open, size_t num_heard, int64_t now_ns);

#endif
