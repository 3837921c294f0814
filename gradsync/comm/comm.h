// A communicator: N ranks that run the same collectives, those of a lane in the same order.
//
// Between lanes there is no order: ranks may post to several in different orders, and no collective waits
// for one of another lane. So a phase that follows another phase, whenever that happens to be done, takes a
// lane of its own.
//
// A collective is a value (collective.h); a backend is five functions (comm_backend.h). A communicator is born from one
// callback, `exchange`, through which every rank's bytes reach all others: the coordinator implements it
// as an RPC, tests as sockets, an embedder by whatever there is. Every wait has a deadline, and the error of
// one that passed names the ranks that did not come.
//
// Threads: one at a time makes all calls, its owner; it may be another from call to call, when the next call
// begins behind the end of the last. gs_comm_abort alone may come from anywhere between create and destroy. The thread that called create must live until destroy, since without a helper thread
// its end is taken for the rank's; destroy itself may be another's, once nobody is inside a call. (shm without
// a helper then keeps a page of some KiB mapped: the kernel still has to find the rank's life in it.)
//
// Sums run in rank order 0..N-1, whoever does the work, and the same bits are stored everywhere. (hosts:
// plain all-reduces inside each host in that order, then the hosts' sums by their lowest ranks. nccl: in an order of
// the library's, the same on all ranks.)
//
// With a GPU buffers are device memory, or host memory, which the backend carries over and back itself: for
// the small things that ranks agree on. A collective of device memory starts behind the compute stream's
// point at its post; when a wait has returned, its result is there for the host and for all work that is
// launched later, on any stream. A collective's buffers are of the same kind on all ranks.
#ifndef GRADSYNC_COMM_COMM_H
#define GRADSYNC_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/comm_options.h"
#include "gradsync/comm/futex_event.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_comm gs_comm;

// How a process ends that cannot leave a communicator of GPUs: kernels that do not end hold its memory and
// its peers', and nothing but the end of the process frees them. A supervisor starts a new one.
#define GS_COMM_EXIT_ABORT_HUNG 76

// UNAVAILABLE says why ranks cannot share memory; FAILED_PRECONDITION names the rank that differs.
GS_NODISCARD gs_status gs_comm_create_sized(gs_comm **out, const gs_comm_options *options,
                                            size_t options_bytes, gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_comm_create(gs_comm **out, const gs_comm_options *options,
                                                    gs_deadline deadline) {
    return gs_comm_create_sized(out, options, sizeof *options, deadline);
}
void gs_comm_destroy(gs_comm *comm);

int gs_comm_rank(const gs_comm *comm);
int gs_comm_world_size(const gs_comm *comm);
// Of one of its ranks, in the world that `ranks` of the options speaks of; -1: there is no such rank.
int gs_comm_world_rank(const gs_comm *comm, int rank);
int gs_comm_num_lanes(const gs_comm *comm);
uint32_t gs_comm_generation(const gs_comm *comm);
gs_device *gs_comm_device(const gs_comm *comm);
const char *gs_comm_backend_name(const gs_comm *comm);
const char *gs_comm_backend_reason(const gs_comm *comm);  // why `auto` took it, one sentence
// The stream on which collectives run, for work that belongs right before one: what is enqueued there
// comes before all collectives posted later, without waiting for the compute stream. NULL where posting
// moves the data: the compute stream is as good.
gs_stream *gs_comm_stream(const gs_comm *comm);
// Whether collectives move while the owner computes, by a thread or a stream of the communicator's own; else only in
// the owner's calls, and who computes long between two of them keeps other ranks waiting. From create to destroy;
// ranks of a communicator may differ.
bool gs_comm_moves_alone(const gs_comm *comm);
// The algorithm that a collective of these bytes would take: "flat", "direct", "pipeline", "none"; of net "flat",
// "owners"; of hosts these, and "leaders", "levels"; "nccl", "nccl-staged" through the host, "nccl-tree".
const char *gs_comm_algorithm(const gs_comm *comm, const gs_collective *collective);

// Starts a collective; never blocks for other ranks, but makes progress on earlier ones. Buffers must
// stay until it is done. Up to 1024 may be in flight in a lane.
GS_NODISCARD gs_status gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
// Waits until `work` and all before it in its lane are done; all lanes move meanwhile. ABORTED after an
// abort, with its reason;
// DEADLINE_EXCEEDED names the ranks that did not arrive, and bucket and step.
GS_NODISCARD gs_status gs_comm_wait(gs_comm *comm, gs_work work, gs_deadline deadline);
bool gs_comm_done(const gs_comm *comm, gs_work work);  // without waiting or progress
// Moves what can be moved now; for points where a gradient became ready but nothing was posted.
GS_NODISCARD gs_status gs_comm_progress(gs_comm *comm);
// The one wake-up of who drives several communicators, such as a backend made of others: moves what can be
// moved on all; when since the last return a collective of any has ended, at once, else when one does. The
// caller looks for itself then. DEADLINE_EXCEEDED: nothing has; CANCELLED: the interrupt of one ends this wait;
// an error of one that failed. All are of this thread.
GS_NODISCARD gs_status gs_comm_wait_moved(gs_comm *const *comms, int num_comms,
                                          gs_deadline deadline);
// For a backend's slot `events`, of those inside it: stores at most `max`, returns how many there are.
int gs_comm_events(gs_comm *comm, gs_futex_event **events, int max);
// Of one of the last 1024 collectives of its lane.
bool gs_comm_times(const gs_comm *comm, gs_work work, gs_work_times *times);

// A part of a communicator: those of its ranks that say the same colour, in their order.
typedef struct gs_comm_split_options {
    int color;            // at least 0; GS_COMM_NO_COLOR: this rank is in no part
    bool by_host;         // of a colour, those of one host alone
    int num_lanes;        // 0: 1
    int reserved_number;  // 0
    const char
        *name;  // for messages, at most 24 characters as of gs_comm_options.group; NULL: "part"
    void *reserved[2];
} gs_comm_split_options;
#define GS_COMM_NO_COLOR (-1)

// Makes them. Collective: all ranks of `comm` call it, and nothing but `comm` is needed: what they
// have to say travels through its lane 0. Made for all or for none, with the words of the first
// rank that failed; *out is NULL where there is no colour. After an error of `comm` itself, a
// deadline that passed too, that is aborted.
//
// A part has device, arena, backend and interrupt of `comm`, and a helper thread only where that
// was GS_HELPER_ON; its arena may serve both at the same time. The end of one is the end of both:
// whatever fails or is aborted, waits end on all of them. It is destroyed by itself, before or
// behind `comm`; gs_comm_wait_ended and destroy of `comm` leave it, and it is only good for destroy
// then. Two communicators of GPUs share their multiprocessors: ranks post to them in one order.
GS_NODISCARD gs_status gs_comm_split(gs_comm **out, gs_comm *comm,
                                     const gs_comm_split_options *options, gs_deadline deadline);

// post and wait in one. After any error, that of a wrong argument too, the communicator is aborted, for
// the other ranks wait; and the buffers are the caller's.
GS_NODISCARD gs_status gs_comm_run(gs_comm *comm, const gs_collective *collective,
                                   gs_deadline deadline);

// Of the last wait whose deadline passed here, unless it was done after all; else why the communicator came
// to its end, here or on the rank of this host that ended it; else its kind is none. The owner's thread,
// after an error and before destroy.
void gs_comm_explain(gs_comm *comm, gs_comm_failure *out);

// Ends every wait on this communicator, here and on its other ranks (nccl: here; the others
// see a closed connection at best, or their deadline), with ABORTED and
// `reason`; the first reason wins. Any thread, any number of times. What buffers hold afterwards means
// nothing; but of net's and hosts' collectives, whatever ended them, the own inputs of one that is not done are as they were, and
// what it was to store in their place is not there. The communicator is only good for destroy then.
void gs_comm_abort(gs_comm *comm, const char *reason);
// Aborts, and returns when nothing here moves bytes of what was posted: its buffers are the caller's again.
// The owner's thread.
void gs_comm_let_go(gs_comm *comm, const char *reason);

// Leaves the communicator (as gs_comm_let_go where something is in flight, or was aborted) and waits until every
// other rank has: by this call, by destroy, or by its end. From then on nobody writes into this rank's arena or
// buffers: a next communicator may have the arena, which is refused to it before. DEADLINE_EXCEEDED names the
// ranks that have not left, as values too (gs_comm_explain): one that is frozen would go on where it was when it
// wakes up. It may be asked again; or the arena is given up. An arena whose communicator was destroyed, aborted
// or with something in flight, before its ranks had ended serves no other one. CANCELLED: an interrupt. The owner's thread; the communicator is only good for destroy
// then.
//
// shm: by lives that the kernel ends with a thread, whatever its process was doing. self: nobody else is there.
// net, hosts: nobody but this rank writes into its memory; the others have been told, or do not listen.
// nccl: this rank has left the library's communicator; it does not tell when others have. Those that make the next one
// with this rank have before it is made; whoever does not has to be ended by its supervisor.
GS_NODISCARD gs_status gs_comm_wait_ended(gs_comm *comm, gs_deadline deadline);

// The arena of another rank as this one sees it; NULL: it gave none, or the two do not share memory. It stays until
// destroy, through an abort and the end of that rank. For reading, of what is known to stand still, and for writing,
// of what all ranks have agreed is the writer's.
void *gs_comm_peer_arena(const gs_comm *comm, int rank, size_t *bytes);

// "2.28.9", of the NCCL library that communicators on GPUs would use; false with the reason in `text` where
// there is none. Any thread.
bool gs_nccl_version(char *text, size_t text_bytes);

GS_END_DECLS

// Of the library's own processes:
// As gs_comm_create; its end is that of `whole`.
GS_NODISCARD gs_status gs_comm_create_part(gs_comm **out, gs_comm *whole,
                                           const gs_comm_options *options, gs_deadline deadline);
// The way to a peer. Any thread between create and destroy. False: the backend has no connections, or that rank is this one.
bool gs_comm_peer_link(const gs_comm *comm, int peer, gs_comm_link *out);
// How much of a bucket that is cut each rank adds for all, of what is posted from here on: a number for each rank, not all 0; all
// equal, as at the beginning: equal parts. Between two ranks that have little, little travels, and no bit of a sum turns on it. All
// ranks say the same between the same collectives of each lane. UNIMPLEMENTED: ranks of this backend have no parts (gs_comm_shares).
GS_NODISCARD gs_status gs_comm_share(gs_comm *comm, const uint16_t *shares);
bool gs_comm_shares(const gs_comm *comm);
const gs_comm_options *gs_comm_made_with(const gs_comm *comm);  // nothing of what was for the call

#endif
