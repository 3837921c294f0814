#include "rpc/checkpoint/place_mark.h"

#include <stdio.h>

#include "rpc/json/sealed_json.h"

static void name_of(char name[60], const char *cluster) { snprintf(name, 60, "PLACE-%.40s.json", cluster); }

gs_status gs_place_mark_leave(const char *directory, const char *cluster, uint64_t life) {
    gs_directory root;
    char name[60];
    name_of(name, cluster);
    GS_TRY(gs_directory_open(&root, directory, 0));
    gs_json *object = gs_json_new_object();
    gs_json_set_u64(object, "life", life);
    gs_status status = gs_sealed_json_put(object, (gs_file_place){&root, name});
    gs_directory_close(&root);
    return status;
}

gs_status gs_place_mark_read(uint64_t *life, const char *directory, const char *cluster) {
    char path[1300], name[60];
    gs_json *found = NULL;
    name_of(name, cluster);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    GS_TRY(gs_sealed_json_read(&found, path));
    gs_status status = gs_json_read_u64(life, found, "life");
    gs_json_release(found);
    return status;
}
