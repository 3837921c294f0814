#include "tests/support/own_block.h"

#include <stdio.h>
#include <string.h>

unsigned char *own_block_find(void) {
    char line[512];
    void *begin = NULL;
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "gradsync-control") || !strstr(line, " rw-s ")) continue;
        found++;
        sscanf(line, "%p-", &begin);
    }
    if (maps) fclose(maps);
    return found == 1 ? begin : NULL;
}
