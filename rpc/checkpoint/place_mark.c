#include "rpc/checkpoint/place_mark.h"

#include <stdio.h>

#include "rpc/json/sealed_json.h"

static void path_in(char path[1300], const char *directory, const char *cluster) {
    snprintf(path, 1300, "%s/PLACE-%.40s.json", directory, cluster);
}

gs_status gs_place_mark_leave(const char *directory, const char *cluster, uint64_t life) {
    char path[1300];
    path_in(path, directory, cluster);
    gs_json *object = gs_json_new_object();
    gs_json_set_u64(object, "life", life);
    return gs_sealed_json_put(object, path);
}

gs_status gs_place_mark_read(uint64_t *life, const char *directory, const char *cluster) {
    char path[1300];
    gs_json *found = NULL;
    path_in(path, directory, cluster);
    GS_TRY(gs_sealed_json_read(&found, path));
    gs_status status = gs_json_read_u64(life, found, "life");
    gs_json_release(found);
    return status;
}
