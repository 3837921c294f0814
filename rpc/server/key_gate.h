// Asks for keys: a handler of ZeroMQ's authentication protocol (ZAP, RFC 27) on a thread of its own, which knows the keys of
// a file and looks each second whether it has changed. Sockets that gs_key_gate_guard has prepared let in nobody whom this
// handler does not know; when it is not there, nobody at all.
#ifndef RPC_SERVER_KEY_GATE_H
#define RPC_SERVER_KEY_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/keys/audit.h"
#include "rpc/keys/key_store.h"
#include "rpc/keys/life_proof.h"
#include "rpc/server/rank_keys.h"
#include "rpc/server/rpc_caller.h"
#include "rpc/wire/rpc_context.h"
#include "rpc/wire/zmq_socket.h"

typedef struct gs_key_gate gs_key_gate;

// One for each context. It has been tried with a key that is known and with one that is not when this returns: INTERNAL,
// when it did not tell them apart. DATA_LOSS: the file is damaged.
GS_NODISCARD gs_status gs_key_gate_open(gs_key_gate **out, gs_rpc_context *context, const gs_curve_pair *server,
                                        const char *keys_path);
void gs_key_gate_close(gs_key_gate *gate);  // NULL is fine

// Connections that are refused have lines there from now on; borrowed until close. Before the port is opened.
void gs_key_gate_audit(gs_key_gate *gate, gs_audit *audit);
// Before bind.
GS_NODISCARD gs_status gs_key_gate_guard(const gs_key_gate *gate, gs_zmq_socket *socket);
// Who has this user id, as the handler gave it to a connection; false: nobody, or not any more. Any thread.
bool gs_key_gate_find(gs_key_gate *gate, const char *user, gs_rpc_caller *caller);
// The key of a rank that somebody with the key `owner` has started: `key` has its public half, incarnation and worker. It is let in
// from now on, until it is dropped or that key counts no longer. False: it is not taken. Any thread, and so the next three.
GS_NODISCARD bool gs_key_gate_add_rank(gs_key_gate *gate, const gs_rank_key *key);
void gs_key_gate_drop_rank(gs_key_gate *gate, uint64_t incarnation, const gs_rpc_caller *by);  // its worker; else nothing happens
// There may be many of ranks that are gone: those that are not there are dropped.
bool gs_key_gate_ranks_are_many(gs_key_gate *gate);
void gs_key_gate_sweep_ranks(gs_key_gate *gate, bool (*is_there)(void *ctx, uint64_t incarnation), void *ctx);
// Has the file looked at now, and waits until it was, for two seconds at most. Any thread but the loop's.
void gs_key_gate_look(gs_key_gate *gate);
// Grows with each change of the file that was taken. Any thread.
unsigned gs_key_gate_changes(const gs_key_gate *gate);

// By the server's own key (rpc/keys/life_proof.h). Any thread. Of no gate (NULL) the proof is "".
void gs_key_gate_prove(const gs_key_gate *gate, char text[GS_LIFE_PROOF_BYTES], const gs_told_life *told);
bool gs_key_gate_has_proven(const gs_key_gate *gate, const char *text, const gs_told_life *told);

typedef struct gs_key_gate_stats {
    bool is_alive;  // the handler's thread has looked at its socket of late
    bool is_behind;  // the file is another one than what counts, and could not be read yet
    uint64_t admitted, refused_unknown, refused_ended;
} gs_key_gate_stats;
void gs_key_gate_get_stats(const gs_key_gate *gate, gs_key_gate_stats *stats);

#endif
