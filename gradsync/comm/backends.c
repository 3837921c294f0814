#include "gradsync/comm/backends.h"

#include <stdio.h>

#define MOST_RANKS_SHOWN 16

void gs_backends_list_ranks(char *text, size_t text_bytes, const int *ranks, int count) {
    int shown = count <= MOST_RANKS_SHOWN ? count : MOST_RANKS_SHOWN;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < shown; i++) {
        const char *before = i == 0 ? "" : i == count - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", before, ranks[i]);
    }
    if (shown < count) snprintf(text + used, text_bytes - used, " and %d more", count - shown);
}
