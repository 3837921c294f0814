// What ranks tell each other beside their collectives: for whom they have waited for long, and what
// their drivers have come to. And what the owner is told of it: how it stands with each lane.
#ifndef GRADSYNC_COMM_NET_WORDS_H
#define GRADSYNC_COMM_NET_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/net/debts.h"
#include "gradsync/comm/net/lane.h"
#include "gradsync/comm/net/message.h"
#include "gradsync/comm/net/transport.h"

typedef struct gs_net_words gs_net_words;

// How it stands with the first collective of a lane that is not finished, as the moving thread saw
// it when it last came to rest: a few milliseconds ago, unless it is held up.
typedef struct gs_net_standing {
    uint64_t sequence;         // 0: none was taken
    gs_collective collective;  // what it borrows is not to be looked at
    bool has_arrived;          // those who are blamed have come to it
    gs_net_ranks blamed;       // who holds it up
} gs_net_standing;

GS_NODISCARD gs_status gs_net_words_create(gs_net_words **out, int rank, int world_size,
                                           int num_lanes);
void gs_net_words_destroy(gs_net_words *words);

// Of the moving thread:
// As gs_net_receiver. False: not one of these words.
bool gs_net_words_place(gs_net_words *words, int peer, const gs_net_header *header, void **body);
void gs_net_words_came(gs_net_words *words, int peer, const gs_net_header *header);
// To the owner, and to the peers what is new to them.
GS_NODISCARD gs_status gs_net_words_publish(gs_net_words *words, gs_net_transport *transport,
                                            gs_net_lane *lanes, int64_t now_ns);
GS_NODISCARD gs_status gs_net_words_tell_here(gs_net_words *words, gs_net_transport *transport);
bool gs_net_words_has_here_to_tell(const gs_net_words *words);
// A collective waits: in how long it is to be published at the latest. 0: whenever.
int64_t gs_net_words_due_ns(const gs_net_words *words);
int64_t gs_net_words_waited_ns(const gs_net_words *words, int peer);

// Of any thread:
gs_net_standing gs_net_words_standing(gs_net_words *words, int lane);
void gs_net_words_say_here(gs_net_words *words, int lane, gs_net_presence here);
gs_net_presence gs_net_words_was_here(gs_net_words *words, int rank, int lane);

#endif
