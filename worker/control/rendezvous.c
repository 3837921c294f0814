#include "worker/control/rendezvous.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/json/json.h"

static gs_status take_all(void *all, size_t bytes, const int *ranks, const gs_json *items) {
    for (size_t i = 0; i < gs_json_count(items); i++) {
        gs_json *holder = gs_json_new_object();
        gs_json_set(holder, "bytes", gs_json_copy(gs_json_at(items, i)));
        void *data = NULL;
        size_t data_bytes = 0;
        gs_status status = gs_json_read_bytes(&data, &data_bytes, holder, "bytes");
        gs_json_release(holder);
        if (!status.code && data_bytes == bytes) memcpy((char *)all + i * bytes, data, bytes);
        free(data);
        if (status.code) return status;
        if (data_bytes != bytes) {
            return gs_error(GS_FAILED_PRECONDITION, "rank %d sent %zu bytes instead of %zu",
                            ranks ? ranks[i] : (int)i, data_bytes, bytes);
        }
    }
    return gs_ok();
}

gs_status gs_rendezvous_exchange(gs_rpc_client *client, const gs_place *place, const char *tag,
                                 const int *ranks, int num_ranks, const void *mine, size_t bytes,
                                 void *all, gs_deadline deadline) {
    gs_json *request = gs_json_new_object(), *reply = NULL;
    gs_json_set_int(request, "generation", place->generation);
    gs_json_set_string(request, "tag", tag);
    gs_json_set_int(request, "rank", place->rank);
    gs_json_set_bytes(request, "bytes", mine, bytes);
    if (ranks) {
        gs_json *list = gs_json_new_array();
        for (int i = 0; i < num_ranks; i++) gs_json_push(list, gs_json_new_int(ranks[i]));
        gs_json_set(request, "ranks", list);
    }
    gs_status status = gs_rpc_call(client, GS_EXCHANGE, request, &reply, deadline);
    if (!status.code) {
        const gs_json *items = gs_json_get(reply, "all");
        status = gs_json_count(items) == (size_t)num_ranks
                     ? take_all(all, bytes, ranks, items)
                     : gs_error(GS_INTERNAL, "%zu answers for %d ranks", gs_json_count(items),
                                num_ranks);
    }
    gs_json_release(request);
    gs_json_release(reply);
    return gs_status_prefix(status, "exchange %s", tag);
}
