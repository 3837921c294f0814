// What a backend that is made of others asks of this one beside its slots (comm_backend.h): `net`
// is what gs_comm_net.create made.
#ifndef GRADSYNC_COMM_NET_NET_H
#define GRADSYNC_COMM_NET_NET_H

#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/net/message.h"

// Of what is posted from here on each rank owns as much as its number says; all equal: equal slices.
// All ranks say the same between the same collectives of each lane. Who posts.
GS_NODISCARD gs_status gs_net_share(void *net, const uint16_t *shares);
// Ends it on all ranks with these words, unless it has ended. Any thread.
void gs_net_abort_because(void *net, gs_status status, const gs_comm_failure *failure);
// Tells all peers, each time; of several calls in a row the last. Any thread; never blocks.
void gs_net_say_here(void *net, int lane, uint64_t sequence, uint32_t word);
gs_net_presence gs_net_was_here(const void *net, int rank, int lane);

#endif
