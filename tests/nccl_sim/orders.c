#include "tests/nccl_sim/orders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fits(char *entry, const char *name, uint64_t count, long *value) {
    char *equals = strchr(entry, '=');
    if (equals) *equals = '\0';
    char *at = strchr(entry, '@');
    if (at) *at = '\0';
    char *rank = strchr(entry, '#');
    if (rank) *rank = '\0';
    const char *own = getenv("RANK");
    if (strcmp(entry, name) != 0) return false;
    if (rank && (!own || strtol(rank + 1, NULL, 10) != strtol(own, NULL, 10))) return false;
    if (at && strtoull(at + 1, NULL, 10) != count) return false;
    if (value) *value = equals ? strtol(equals + 1, NULL, 10) : 0;
    return true;
}

static bool search(const char *text, const char *name, uint64_t count, long *value) {
    char copy[1024], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *entry = strsep(&rest, ",\n"); entry; entry = strsep(&rest, ",\n")) {
        if (fits(entry, name, count, value)) return true;
    }
    return false;
}

bool nccl_sim_ordered(const char *name, uint64_t count, long *value) {
    const char *text = getenv("NCCL_SIM_ORDERS"), *path = getenv("NCCL_SIM_ORDERS_FILE");
    if (text && search(text, name, count, value)) return true;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file) return false;
    char content[1024];
    content[fread(content, 1, sizeof content - 1, file)] = '\0';
    fclose(file);
    return search(content, name, count, value);
}
