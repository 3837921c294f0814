#include "coordinator/observe/hosts/enrolment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "coordinator/observe/held.h"
#include "core/clock.h"
#include "core/log.h"
#include "rpc/keys/key_store.h"

typedef struct enrolment {
    gs_write base;
    gs_held held;
    gs_key_gate *gate;
    gs_rpc_call_handle *call;  // NULL: nobody waits for the answer
    char path[GS_KEY_PATH_BYTES], token[GS_KEY_ID_BYTES], name[GS_KEY_NAME_BYTES];
    gs_curve_key shown;
    gs_known_key made;
} enrolment;

static gs_status change(gs_key_list *list, void *ctx) {
    enrolment *it = ctx;
    return gs_key_list_enrol(list, it->token, it->name, &it->shown, gs_wall_ms(), &it->made);
}

static gs_status write_key(gs_write *base, gs_job_store *store) {
    (void)store;
    enrolment *it = (enrolment *)base;
    gs_status status = gs_key_store_change(it->path, change, it);
    if (!status.code) gs_key_gate_look(it->gate);  // who gets the answer comes with the key at once
    return status;
}

static void answer(gs_write *base, gs_status status) {
    enrolment *it = (enrolment *)base;
    char name[2 * GS_KEY_NAME_BYTES + 4], reason[2 * sizeof status.message];  // as somebody sent it, who is nobody yet
    if (status.code)
        gs_log_warn("not enrolled", "token=%s name=%s reason=%s", it->token, gs_log_quote(name, sizeof name, it->name),
                    gs_log_quote(reason, sizeof reason, status.message));
    else gs_log_info("enrolled", "token=%s id=%s name=%s pool=%d", it->token, it->made.id, it->made.name, (int)it->made.is_pool);
    if (it->call) {
        gs_json *reply = status.code ? NULL : gs_known_key_view(&it->made, gs_wall_ms());
        gs_rpc_call_set_data(it->call, NULL);
        gs_rpc_reply(it->call, status, reply);
    }
    free(it);
}

static void forget(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    ((enrolment *)owner)->call = NULL;
}

void gs_enrol(gs_observer *observer, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    const char *name = gs_json_string_or(request, "name", "");
    gs_curve_key shown;
    gs_status status = gs_ok();
    if (!peer->caller.is_known) status = gs_error(GS_FAILED_PRECONDITION, "nobody is asked for a key here");
    else if (strlen(name) >= GS_KEY_NAME_BYTES) status = gs_error(GS_INVALID_ARGUMENT, "the name is too long");
    else if (!gs_curve_key_parse(&shown, gs_json_string_or(request, "public", "")))
        status = gs_error(GS_INVALID_ARGUMENT, "public: 64 hexadecimal digits are a key");
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    enrolment *it = gs_model_alloc(1, sizeof *it);
    // It writes into the data directory: the disk of checkpoints may hang, and rows wait for nobody's look at a file of keys.
    *it = (enrolment){.base = {.run = write_key, .done = answer, .lane = GS_LANE_LOGS, .is_unnumbered = true},
                      .gate = observer->gate, .call = call, .shown = shown};
    gs_key_store_path(it->path, observer->data_dir);
    snprintf(it->name, sizeof it->name, "%s", name);
    memcpy(it->token, peer->caller.id, sizeof it->token);
    gs_held_keep(&it->held, call, forget, it);
    gs_writer_submit(observer->writer, &it->base);
}
