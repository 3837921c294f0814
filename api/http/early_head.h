// A header of a request that has come and that nobody has read yet: what is known of a connection before a thread has its turn to
// serve it. No more than a look: whether the request is a sound one is for who reads it.
#ifndef API_HTTP_EARLY_HEAD_H
#define API_HTTP_EARLY_HEAD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gs_early_head {
    char text[4096];  // what has come of it; begins with the request's line
    size_t bytes;
} gs_early_head;

// What waits at the socket; nothing is taken. False: nothing does.
bool gs_early_head_look(gs_early_head *head, int fd);
// The value of the first header of this name whose line has come whole. False: there is none, or it is longer than `value`.
bool gs_early_head_find(const gs_early_head *head, char *value, size_t value_bytes, const char *name);

#endif
