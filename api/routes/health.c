#include "api/routes/health.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/clock.h"

enum { PATIENCE_MS = 2000, KEPT_MS = 200 };

struct gs_health {
    pthread_mutex_t lock;  // held while one asks, which ends by PATIENCE_MS, so that the others find his answer
    int64_t at_ns;         // 0: nobody has asked
    gs_status status;
    gs_json *answer;
};

gs_health *gs_health_create(void) {
    gs_health *health = calloc(1, sizeof *health);
    if (health) pthread_mutex_init(&health->lock, NULL);
    return health;
}

void gs_health_destroy(gs_health *health) {
    if (!health) return;
    gs_json_release(health->answer);
    pthread_mutex_destroy(&health->lock);
    free(health);
}

gs_status gs_health_ask(gs_json **out, gs_rpc_client *client) {
    int64_t patience_ms = gs_rpc_client_connected(client) ? PATIENCE_MS : PATIENCE_MS / 4;
    return gs_rpc_call(client, GS_GET_HEALTH, NULL, out, gs_deadline_in_ms(patience_ms));
}

gs_status gs_health_recall(gs_health *health, gs_json **out, gs_rpc_client *client) {
    pthread_mutex_lock(&health->lock);
    if (!health->at_ns || gs_now_ns() - health->at_ns > KEPT_MS * GS_NS_PER_MS) {
        gs_json_release(health->answer);
        health->answer = NULL;
        health->status = gs_health_ask(&health->answer, client);
        health->at_ns = gs_now_ns();
    }
    gs_status status = health->status;
    *out = gs_json_copy(health->answer);
    pthread_mutex_unlock(&health->lock);
    return status;
}
