// What comes in at a server: frames are checked, counted or refused, and become calls and their
// handlers' runs. Internal to the server; one thread.
#ifndef RPC_SERVER_RPC_INTAKE_H
#define RPC_SERVER_RPC_INTAKE_H

#include "rpc/server/rpc_calls.h"

#define GS_RPC_MAX_ENDPOINTS 4

struct gs_rpc_server {
    gs_rpc_server_options options;
    char endpoints[GS_RPC_MAX_ENDPOINTS][128];  // bound
    gs_zmq_socket socket;
    gs_rpc_peers peers;
    gs_rpc_calls calls;
    gs_rpc_server_stats stats;
    int64_t now_ns, turned_ns, housekept_ns, warned_ns;
};

// Takes what the socket has, control messages at once, API requests into the queue; bounded. True
// when input was left for the next turn.
bool gs_rpc_intake_receive(gs_rpc_server *server);
// Runs the handlers of API requests that wait; bounded.
void gs_rpc_intake_serve_api(gs_rpc_server *server);

// Of rpc_server.c. 0, or the error of the send; a peer that is gone is marked lost.
int gs_rpc_server_send(gs_rpc_server *server, gs_rpc_connection *connection, gs_frame frame,
                       const char *body, size_t body_bytes);
// An answer that does not get through is asked for again by the client.
void gs_rpc_server_send_answer(gs_rpc_server *server, const gs_rpc_call_handle *call);
// Drops the call; its handler, if it knows of it, is told to forget it.
void gs_rpc_server_lose_call(gs_rpc_server *server, gs_rpc_call_handle *call);

#endif
