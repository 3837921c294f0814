#include "gradsync/comm/shm/handshake.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/random.h"
#include "core/thread.h"
#include "gradsync/comm/interrupt.h"
#include "gradsync/comm/shm/layout.h"

#define MAX_FDS (2 * GS_SHM_MAX_RANKS + 1)
#define SOCKET_NAME_LEN 40
#define NAMED_RANKS 8

// What a rank says first. Other builds say it in the same bytes.
typedef struct introduction {
    gs_shm_layout layout;
    char boot_id[40];  // of the kernel it runs under; empty: it could not be read
} introduction;
static_assert(sizeof(introduction) == 232, "an introduction has the same size in every build");

// What a rank says next.
typedef struct host_info {
    char listener[SOCKET_NAME_LEN];  // rank 0's socket
    uint64_t nonce;                  // rank 0's, for this communicator
    cpu_set_t cores;                 // that the rank may run on
    int32_t usable_cores;            // after its quota
} host_info;
static_assert(sizeof(host_info) <= GS_STAGE_PAYLOAD_BYTES, "what a rank says is one round");

// From a rank to rank 0, with its control block and, if it has one, its arena.
typedef struct hello {
    uint64_t magic, nonce, arena_bytes;
    int32_t rank;
    uint32_t generation;
} hello;

// From rank 0 to every rank, with the common page, all control blocks, and the arenas that there
// are.
typedef struct welcome {
    uint64_t magic, nonce;
    uint64_t arena_bytes[GS_SHM_MAX_RANKS];  // 0: none
} welcome;

typedef struct handshake {
    const gs_comm_options *options;
    gs_stages *stages;
    gs_shm_segment *segment;
    gs_deadline deadline;
    host_info *hosts;  // of all ranks
    uint64_t nonce;
    int listener;                       // rank 0: listens
    int connections[GS_SHM_MAX_RANKS];  // rank 0: to each rank; else [0]
    int common_fd;
    int control_fds[GS_SHM_MAX_RANKS], arena_fds[GS_SHM_MAX_RANKS];  // the own arena's is borrowed
    uint64_t arena_bytes[GS_SHM_MAX_RANKS];
    const char *turned_away;  // rank 0: why the last connection was; NULL: none was
} handshake;

// Whatever keeps a rank from sharing memory, another backend may do without.
static gs_status cannot_share(gs_status status) {
    if (status.code) status.code = GS_UNAVAILABLE;
    return status;
}

static void read_boot_id(char boot_id[40]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (read(fd, boot_id, 36) != 36) boot_id[0] = '\0';
    close(fd);
}

// Of ranks under another kernel nothing is shared, however they would lay it out.
static gs_status compare_kernels(const introduction *all, int world_size) {
    for (int i = 0; i < world_size; i++) {
        if (!all[i].boot_id[0])
            return gs_error(GS_UNAVAILABLE, "rank %d cannot read its boot id", i);
    }
    for (int i = 1; i < world_size; i++) {
        if (memcmp(all[i].boot_id, all[0].boot_id, sizeof all[i].boot_id) != 0)
            return gs_error(GS_UNAVAILABLE, "rank %d runs on another host than rank 0", i);
    }
    return gs_ok();
}

static gs_status compare_layouts(const introduction *all, int world_size) {
    char first[96], what[96], others[48] = "";
    int first_rank = 0, num_others = 0;
    for (int i = 1; i < world_size; i++) {
        if (!gs_shm_layouts_differ(&all[i].layout, &all[0].layout, what, sizeof what)) continue;
        size_t used = strlen(others);
        if (!first_rank) {
            first_rank = i;
            memcpy(first, what, sizeof first);
        } else if (++num_others <= NAMED_RANKS) {
            snprintf(others + used, sizeof others - used, "%s%d", used ? ", " : "", i);
        }
    }
    if (!first_rank) return gs_ok();
    if (!num_others)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d cannot share memory with rank 0: there %s",
                        first_rank, first);
    return gs_error(GS_FAILED_PRECONDITION,
                    "rank %d cannot share memory with rank 0: there %s; nor can %s %s%s",
                    first_rank, first, num_others == 1 ? "rank" : "ranks", others,
                    num_others > NAMED_RANKS ? " and more" : "");
}

// Stage 1: one kernel, and one notion of what is to be shared.
static gs_status compare_introductions(handshake *hs) {
    const gs_comm_options *options = hs->options;
    introduction mine = {.layout = gs_shm_layout_here()};
    introduction *all = calloc((size_t)options->world_size, sizeof *all);
    if (!all) return gs_error(GS_RESOURCE_EXHAUSTED, "handshake: out of memory");
    read_boot_id(mine.boot_id);
    gs_status status = gs_stages_meet(hs->stages, "shm", gs_ok(), all, &mine, sizeof mine);
    if (!status.code) status = compare_kernels(all, options->world_size);
    if (!status.code) status = compare_layouts(all, options->world_size);
    free(all);
    return gs_stages_conclude(hs->stages, status);
}

static struct sockaddr_un listener_address(const char *name, socklen_t *bytes) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strnlen(name, SOCKET_NAME_LEN);
    memcpy(address.sun_path + 1, name, len);  // abstract: a NUL before the name
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
    return address;
}

static gs_status open_listener(handshake *hs, host_info *info) {
    snprintf(info->listener, sizeof info->listener, "gradsync-%016llx",
             (unsigned long long)gs_random_from_system());
    info->nonce = gs_random_from_system();
    GS_TRY(gs_status_prefix(gs_shm_make_common(&hs->common_fd, hs->segment, info->nonce),
                            "cannot share memory"));
    hs->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (hs->listener < 0) return gs_error_from_errno(errno, "cannot make a Unix socket");
    socklen_t bytes;
    struct sockaddr_un address = listener_address(info->listener, &bytes);
    if (bind(hs->listener, (struct sockaddr *)&address, bytes) || listen(hs->listener, 256))
        return gs_error_from_errno(errno, "cannot listen on a Unix socket");
    return gs_ok();
}

static gs_status make_own_part(handshake *hs, host_info *info) {
    const gs_comm_options *options = hs->options;
    const char *device = gs_device_name(options->device);
    if (strncmp(device, "cpu", 3) != 0)
        return gs_error(GS_UNAVAILABLE, "keeps its gradients on %s", device);
    GS_TRY(gs_status_prefix(gs_shm_make_control(&hs->control_fds[options->rank], hs->segment),
                            "cannot share memory"));
    if (options->arena) {
        hs->arena_fds[options->rank] = gs_arena_fd(options->arena);
        hs->arena_bytes[options->rank] = gs_arena_bytes(options->arena);
        hs->segment->arenas[options->rank] = gs_arena_data(options->arena);
        hs->segment->arena_bytes[options->rank] = gs_arena_bytes(options->arena);
    }
    return options->rank == 0 ? open_listener(hs, info) : gs_ok();
}

// How many cores all ranks have together. A launcher may have given each a mask of its own; a quota
// is taken to be one for all, since spinning uses it up either way.
static int count_cores(const handshake *hs) {
    cpu_set_t all;
    CPU_ZERO(&all);
    int most_usable = 0;
    bool has_quota = false;
    for (int i = 0; i < hs->options->world_size; i++) {
        const host_info *info = &hs->hosts[i];
        CPU_OR(&all, &all, &info->cores);
        has_quota |= info->usable_cores < CPU_COUNT(&info->cores);
        if (info->usable_cores > most_usable) most_usable = info->usable_cores;
    }
    return has_quota ? most_usable : CPU_COUNT(&all);
}

// Flat needs one synchronisation and direct two, but with two ranks direct moves half of the bytes.
// Where ranks share cores, a synchronisation costs more than any copy.
static size_t choose_flat_bytes(const gs_shm_segment *segment) {
    bool own_cores = segment->num_cores >= segment->world_size;
    return segment->world_size == 2 && own_cores ? 2048 : GS_SHM_FLAT_BYTES;
}

// Stage 2: everybody is able, and how many cores there are.
static gs_status compare_hosts(handshake *hs) {
    host_info mine = {0};
    gs_status able = cannot_share(make_own_part(hs, &mine));
    if (sched_getaffinity(0, sizeof mine.cores, &mine.cores)) CPU_ZERO(&mine.cores);
    mine.usable_cores = gs_usable_cores();
    GS_TRY(gs_stages_meet(hs->stages, "shm", able, hs->hosts, &mine, sizeof mine));
    hs->nonce = hs->hosts[0].nonce;
    hs->segment->num_cores = count_cores(hs);
    hs->segment->flat_bytes = choose_flat_bytes(hs->segment);
    return gs_ok();
}

static gs_status send_fds(int to, const void *data, size_t bytes, const int *fds, int num_fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec piece = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)num_fds * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)num_fds * sizeof(int));
    memcpy(CMSG_DATA(header), fds, (size_t)num_fds * sizeof(int));
    ssize_t sent;
    do sent = sendmsg(to, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? gs_error_from_errno(errno, "cannot pass its memory") : gs_ok();
}

static void close_fds(int *fds, int num_fds) {
    for (int i = 0; i < num_fds; i++) close(fds[i]);
}

// One message with its descriptors; *num_fds of at most MAX_FDS.
static gs_status receive_fds(int from, void *data, size_t bytes, int *fds, int *num_fds,
                             gs_deadline deadline) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             // Not its size: the rounding has room for one descriptor more.
                             .msg_controllen = CMSG_LEN(MAX_FDS * sizeof(int))};
    *num_fds = 0;
    struct pollfd wait = {.fd = from, .events = POLLIN};
    int ready;
    do ready = poll(&wait, 1, gs_deadline_left_ms(deadline));
    while (ready < 0 && errno == EINTR);
    if (ready == 0) return gs_error(GS_DEADLINE_EXCEEDED, "got no memory from rank 0 in time");
    ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) return gs_error_from_errno(errno, "cannot receive memory");
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *num_fds = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), (size_t)*num_fds * sizeof(int));
    }
    if ((size_t)got == bytes && !(message.msg_flags & MSG_CTRUNC)) return gs_ok();
    close_fds(fds, *num_fds);
    *num_fds = 0;
    return gs_error(GS_UNAVAILABLE, got ? "received half a message" : "was turned away by rank 0");
}

// Stage 3: connect to rank 0's socket. The connection waits in its queue until it looks.
static gs_status connect_to_listener(handshake *hs) {
    int rank = hs->options->rank;
    if (rank == 0) return gs_ok();
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0) return gs_error_from_errno(errno, "cannot make a Unix socket");
    hs->connections[0] = connection;
    int64_t left_ms = gs_deadline_left_ms(hs->deadline);
    struct timeval timeout = {.tv_sec = left_ms / 1000, .tv_usec = left_ms % 1000 * 1000 + 1};
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    socklen_t bytes;
    struct sockaddr_un address = listener_address(hs->hosts[0].listener, &bytes);
    int failed;
    do failed = connect(connection, (struct sockaddr *)&address, bytes);
    while (failed && errno == EINTR);
    if (failed)
        return gs_error_from_errno(errno,
                                   "runs in another container than rank 0: abstract Unix socket %s",
                                   hs->hosts[0].listener);
    hello mine = {.magic = GS_SHM_MAGIC,
                  .nonce = hs->nonce,
                  .arena_bytes = hs->arena_bytes[rank],
                  .rank = rank,
                  .generation = hs->options->generation};
    int fds[2] = {hs->control_fds[rank], hs->arena_fds[rank]};
    return send_fds(connection, &mine, sizeof mine, fds, hs->arena_bytes[rank] ? 2 : 1);
}

static bool is_same_user(int connection) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
           peer.uid == geteuid();
}

// Why whoever said this is none of the ranks that are still missing; NULL: it is one.
static const char *judge_hello(const handshake *hs, const hello *theirs, int num_fds) {
    if (theirs->magic != GS_SHM_MAGIC) return "it speaks another protocol";
    if (theirs->nonce != hs->nonce || theirs->generation != hs->options->generation)
        return "it wants another communicator";
    if (theirs->rank <= 0 || theirs->rank >= hs->options->world_size ||
        hs->connections[theirs->rank] >= 0)
        return "its rank is not missing";
    if (num_fds != (theirs->arena_bytes ? 2 : 1)) return "it came without its memory";
    return NULL;
}

// Who knocks has already spoken, unless it is a stranger. NULL: it is a rank, and kept.
static const char *admit_rank(handshake *hs, int connection) {
    hello theirs;
    int fds[MAX_FDS], num_fds = 0;
    if (!is_same_user(connection)) return "it runs as another user";
    gs_deadline patience = gs_deadline_min(gs_deadline_in_ms(100), hs->deadline);
    if (receive_fds(connection, &theirs, sizeof theirs, fds, &num_fds, patience).code)
        return "it did not say who it is";
    const char *refusal = judge_hello(hs, &theirs, num_fds);
    if (refusal) {
        close_fds(fds, num_fds);
        return refusal;
    }
    hs->connections[theirs.rank] = connection;
    hs->control_fds[theirs.rank] = fds[0];
    hs->arena_bytes[theirs.rank] = theirs.arena_bytes;
    if (num_fds == 2) hs->arena_fds[theirs.rank] = fds[1];
    return NULL;
}

// Stage 4, rank 0: all have knocked, so nobody is waited for.
static gs_status admit_ranks(handshake *hs) {
    for (;;) {
        int connection = accept4(hs->listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            break;
        }
        const char *refusal = admit_rank(hs, connection);
        if (!refusal) continue;
        close(connection);
        hs->turned_away = refusal;
    }
    for (int i = 1; i < hs->options->world_size; i++) {
        if (hs->connections[i] >= 0) continue;
        return gs_error(GS_UNAVAILABLE, "had to turn rank %d away: %s", i,
                        hs->turned_away ? hs->turned_away : "it did not knock");
    }
    return gs_ok();
}

// Whoever waits for a welcome that will not come sees the end of its connection.
static void close_connections(handshake *hs) {
    for (int i = 0; i < GS_SHM_MAX_RANKS; i++) {
        if (hs->connections[i] >= 0) close(hs->connections[i]);
        hs->connections[i] = -1;
    }
}

static gs_status send_welcomes(handshake *hs) {
    int fds[MAX_FDS], num_fds = 0, world_size = hs->options->world_size;
    welcome all = {.magic = GS_SHM_MAGIC, .nonce = hs->nonce};
    fds[num_fds++] = hs->common_fd;
    for (int i = 0; i < world_size; i++) fds[num_fds++] = hs->control_fds[i];
    for (int i = 0; i < world_size; i++) {
        all.arena_bytes[i] = hs->arena_bytes[i];
        if (hs->arena_bytes[i]) fds[num_fds++] = hs->arena_fds[i];
    }
    for (int i = 1; i < world_size; i++)
        GS_TRY(send_fds(hs->connections[i], &all, sizeof all, fds, num_fds));
    return gs_ok();
}

// Until rank 0 has something to say, or is gone; asks meanwhile whether anybody still wants that.
static gs_status await_welcome(const handshake *hs) {
    const gs_comm_options *options = hs->options;
    struct pollfd wait = {.fd = hs->connections[0], .events = POLLIN};
    while (options->rank != 0 && !gs_deadline_passed(hs->deadline)) {
        gs_deadline turn = gs_deadline_min(gs_deadline_in_ns(GS_INTERRUPT_NS), hs->deadline);
        if (poll(&wait, 1, gs_deadline_left_ms(turn)) > 0) break;
        if (options->check) GS_TRY(options->check(options->check_ctx));
    }
    return gs_ok();
}

static gs_status receive_welcome(handshake *hs) {
    welcome all;
    int fds[MAX_FDS], num_fds, next = 0, world_size = hs->options->world_size;
    int rank = hs->options->rank;
    GS_TRY(receive_fds(hs->connections[0], &all, sizeof all, fds, &num_fds, hs->deadline));
    int wanted = 1 + world_size;
    for (int i = 0; i < world_size; i++) wanted += all.arena_bytes[i] != 0;
    if (all.magic != GS_SHM_MAGIC || all.nonce != hs->nonce || num_fds != wanted) {
        close_fds(fds, num_fds);
        return gs_error(GS_UNAVAILABLE, "was sent the memory of another communicator");
    }
    hs->common_fd = fds[next++];
    for (int i = 0; i < world_size; i++, next++) {
        if (i == rank)
            close(fds[next]);
        else
            hs->control_fds[i] = fds[next];
    }
    for (int i = 0; i < world_size; i++) {
        if (!all.arena_bytes[i]) continue;
        if (i == rank)
            close(fds[next]);
        else
            hs->arena_fds[i] = fds[next];
        hs->arena_bytes[i] = all.arena_bytes[i];
        next++;
    }
    return gs_ok();
}

static gs_status map_peers(handshake *hs) {
    int rank = hs->options->rank;
    if (rank != 0) GS_TRY(gs_shm_map_common(hs->segment, hs->common_fd, hs->nonce));
    for (int i = 0; i < hs->options->world_size; i++) {
        if (i == rank) continue;
        GS_TRY(gs_shm_map_control(hs->segment, i, hs->control_fds[i]));
        if (hs->arena_bytes[i])
            GS_TRY(gs_shm_map_arena(hs->segment, i, hs->arena_fds[i], hs->arena_bytes[i]));
    }
    atomic_store(&hs->segment->own->proof, hs->nonce + (uint64_t)rank);
    return gs_ok();
}

static gs_status map_all(handshake *hs) {
    if (hs->options->rank == 0) {
        gs_status status = admit_ranks(hs);
        if (!status.code) status = send_welcomes(hs);
        if (status.code) close_connections(hs);
        GS_TRY(status);
    } else {
        GS_TRY(receive_welcome(hs));
    }
    return gs_status_prefix(map_peers(hs), "cannot share memory");
}

// Stage 5: what each peer wrote can be read here.
static gs_status read_proofs(handshake *hs) {
    for (int i = 0; i < hs->options->world_size; i++) {
        const gs_shm_control *control = hs->segment->controls[i];
        if (atomic_load(&control->proof) != hs->nonce + (uint64_t)i || control->rank != i ||
            control->generation != hs->options->generation)
            return gs_error(GS_UNAVAILABLE, "does not see what rank %d wrote into its memory", i);
    }
    return gs_ok();
}

static gs_status run_stages(handshake *hs) {
    GS_TRY(compare_introductions(hs));
    GS_TRY(compare_hosts(hs));
    gs_status connected = cannot_share(connect_to_listener(hs));
    GS_TRY(gs_stages_meet(hs->stages, "shm", connected, NULL, NULL, 0));
    gs_status mapped = await_welcome(hs);
    if (!mapped.code) mapped = cannot_share(map_all(hs));
    GS_TRY(gs_stages_meet(hs->stages, "shm", mapped, NULL, NULL, 0));
    return read_proofs(hs);
}

static void close_all(handshake *hs) {
    close_connections(hs);
    for (int i = 0; i < GS_SHM_MAX_RANKS; i++) {
        if (hs->control_fds[i] >= 0) close(hs->control_fds[i]);
        if (hs->arena_fds[i] >= 0 && i != hs->options->rank) close(hs->arena_fds[i]);
    }
    if (hs->listener >= 0) close(hs->listener);
    if (hs->common_fd >= 0) close(hs->common_fd);
    free(hs->hosts);
}

gs_status gs_shm_handshake(gs_shm_segment *segment, const gs_comm_options *options,
                           gs_stages *stages, gs_deadline deadline) {
    if (options->world_size > GS_SHM_MAX_RANKS)
        return gs_error(GS_UNAVAILABLE, "shared memory serves at most %d ranks", GS_SHM_MAX_RANKS);
    handshake hs = {.options = options,
                    .stages = stages,
                    .segment = segment,
                    .deadline = deadline,
                    .listener = -1,
                    .common_fd = -1,
                    .hosts = calloc((size_t)options->world_size, sizeof *hs.hosts)};
    for (int i = 0; i < GS_SHM_MAX_RANKS; i++)
        hs.connections[i] = hs.control_fds[i] = hs.arena_fds[i] = -1;
    *segment = (gs_shm_segment){.rank = options->rank,
                                .world_size = options->world_size,
                                .num_lanes = options->num_lanes,
                                .generation = options->generation};
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "handshake: out of memory");
    if (hs.hosts) status = run_stages(&hs);
    close_all(&hs);
    return status;
}
