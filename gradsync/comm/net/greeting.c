#include "gradsync/comm/net/greeting.h"

#include <string.h>

enum { BY_ANSWERER = 1, BY_CONNECTOR };  // a proof of the one is none of the other

static gs_net_secret prove(const gs_net_greeting *greeting, const gs_net_secret *key,
                           uint64_t who) {
    struct {
        uint64_t who;
        gs_net_hello hello;
        gs_net_secret nonce;
    } said = {who, greeting->hello, greeting->answer.nonce};
    return gs_net_secret_prove(key, &said, sizeof said);
}

gs_status gs_net_greeting_answer(gs_net_greeting *greeting, const gs_net_secret *key) {
    greeting->answer.version = GS_NET_VERSION;
    GS_TRY(gs_net_secret_draw(&greeting->answer.nonce));
    greeting->answer.proof = prove(greeting, key, BY_ANSWERER);
    return gs_ok();
}

bool gs_net_greeting_conclude(gs_net_greeting *greeting, const gs_net_secret *key) {
    gs_net_secret expected = prove(greeting, key, BY_ANSWERER);
    if (greeting->answer.version != GS_NET_VERSION ||
        gs_net_secret_differs(&expected, &greeting->answer.proof))
        return false;
    greeting->last = prove(greeting, key, BY_CONNECTOR);
    return true;
}

bool gs_net_greeting_is_proven(const gs_net_greeting *greeting, const gs_net_secret *key) {
    gs_net_secret expected = prove(greeting, key, BY_CONNECTOR);
    return !gs_net_secret_differs(&expected, &greeting->last);
}
