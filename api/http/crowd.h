// The connections of a server, as far as somebody has to give way: what each of them does, whose it is, and which of them others
// can do without. Looks at nothing but what is noted here and at their kernels; whoever asks holds the server's lock.
#ifndef API_HTTP_CROWD_H
#define API_HTTP_CROWD_H

#include <stdbool.h>
#include <stdint.h>

#include "api/http/listener.h"

typedef enum gs_http_phase {
    GS_HTTP_WAITING = 0,  // for a request, or for the rest of it
    GS_HTTP_ANSWERING,    // the handler runs or the answer is on its way
    GS_HTTP_STREAMING
} gs_http_phase;

// They lie in their list by age, the youngest first; since it is known whose one is, by how long that is.
typedef struct gs_http_connection {
    struct gs_http_server *server;
    struct gs_http_connection *next, **link;
    int fd;
    gs_http_neighbourhood from;
    bool has_neighbours;  // false: it came by a Unix socket
    gs_http_phase phase;
    int64_t cut_at_ns;
    bool cut;
    uint64_t whose;    // 0: a stranger's
    int64_t begin_ns;  // of the connection
    int64_t phase_ns;  // since when it is in its phase; of a request that has begun, since its first line
    int64_t idle_ns;   // since when nothing is asked; 0: something is, or was never
    uint64_t taken_bytes;  // of answers, when they were looked at last
    int64_t moved_ns;      // since when no more of its answer was taken
} gs_http_connection;

bool gs_crowd_is_neighbour(const gs_http_connection *one, const gs_http_connection *other);
void gs_crowd_note_progress(gs_http_connection *it, int64_t now_ns);
// Of an answer that is there for him nothing was taken for two seconds.
bool gs_crowd_is_stuck(gs_http_connection *it, int64_t now_ns);
// Who gives way to `fresh`, the first of the list; that may be he himself.
//   of_neighbours  only one who comes from where he does
//   num_places     that there are, for these or for all: those who hold most of them, of the known, give way before others do
gs_http_connection *gs_crowd_choose(gs_http_connection *fresh, bool of_neighbours, unsigned num_places);

#endif
