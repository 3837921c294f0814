// Two levels beside one: all-reduces between hosts that are network namespaces, with several ranks
// each, over both backends in one run, taking turns round by round.
//
//   bench_hosts [--ranks N] [--rounds N] [--least BYTES] [--most BYTES] HOST…
//
// A HOST is ADDRESS@NAMESPACE, "10.78.0.1@/run/netns/a"; bench/hosts.sh makes them, with links of a
// given rate. --ranks: of each host. A burst's time is the median over its collectives of the time
// that the last arriver spent in one; what counts is the median over rounds, and of the ratios of
// rounds.
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "core/thread.h"
#include "gradsync/comm/comm.h"

#define MAX_RANKS 16
#define MAX_ROUNDS 32
#define EXCHANGE_BYTES 65536
#define RUN_SECONDS 120.0
#define MOST_ITERATIONS 200
#define LEAST_BURST_BYTES ((size_t)8 << 20)

static const char *const backends[] = {"net", "hosts"};
#define NUM_BACKENDS 2

typedef struct settings {
    int ranks_each, ranks, rounds, num_hosts;
    char *const *hosts;
    size_t least_bytes, most_bytes;
} settings;

// Of one exchange at a time among some of the ranks: who enters, and what they say.
typedef struct meeting {
    char tag[64];
    int arrived, left;
    unsigned char said[MAX_RANKS * 1024];
} meeting;

typedef struct shared {
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    meeting meetings[64];
    int64_t elapsed_ns[MAX_RANKS][MOST_ITERATIONS];
} shared;

typedef struct bench {
    const settings *set;
    shared *shared;
    int rank;
    char address[48];
    gs_device *device;
    gs_arena *arena;
    gs_comm *comms[NUM_BACKENDS];
} bench;

static meeting *find_meeting(shared *area, const char *tag) {
    meeting *empty = NULL;
    for (size_t i = 0; i < 64; i++) {
        meeting *one = &area->meetings[i];
        if (strcmp(one->tag, tag) == 0) return one;
        if (!one->tag[0] && !empty) empty = one;
    }
    snprintf(empty->tag, sizeof empty->tag, "%s", tag);
    return empty;
}

static gs_status exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                          const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    bench *self = ctx;
    shared *area = self->shared;
    int place = self->rank;
    char name[64];
    (void)deadline;
    for (int i = 0; ranks && i < num_ranks; i++)
        if (ranks[i] == self->rank) place = i;
    // Groups of a tag may meet at once.
    snprintf(name, sizeof name, "%.50s %d", tag, ranks ? ranks[0] : 0);
    pthread_mutex_lock(&area->lock);
    meeting *one = find_meeting(area, name);
    memcpy(one->said + (size_t)place * bytes, mine, bytes);
    one->arrived++;
    pthread_cond_broadcast(&area->moved);
    while (one->arrived < num_ranks) pthread_cond_wait(&area->moved, &area->lock);
    memcpy(all, one->said, bytes * (size_t)num_ranks);
    if (++one->left == num_ranks) *one = (meeting){0};
    pthread_mutex_unlock(&area->lock);
    return gs_ok();
}

static gs_status run_burst(bench *self, int which, size_t bytes, int iterations) {
    float *data = gs_arena_data(self->arena);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = bytes / sizeof *data,
                         .dtype = GS_FP32,
                         .scale = 1.0 / self->set->ranks,
                         .bucket = -1};
    for (int i = 0; i < iterations; i++) {
        measure_produce(data, bytes, i);
        int64_t began_ns = measure_now_ns();
        GS_TRY(gs_comm_run(self->comms[which], &sum, gs_deadline_in_seconds(RUN_SECONDS)));
        self->shared->elapsed_ns[self->rank][i] = measure_now_ns() - began_ns;
        measure_consume(data, bytes);
    }
    return gs_ok();
}

static gs_status check_sum(bench *self, int which, size_t bytes) {
    float *data = gs_arena_data(self->arena);
    size_t count = bytes / sizeof *data;
    int ranks = self->set->ranks;
    for (size_t i = 0; i < count; i++) data[i] = (float)((int)(i % 7) + self->rank);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = count,
                         .dtype = GS_FP32,
                         .bucket = -1};
    GS_TRY(gs_comm_run(self->comms[which], &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    for (size_t i = 0; i < count; i++) {
        if (data[i] != (float)((int)(i % 7) * ranks + ranks * (ranks - 1) / 2))
            return gs_error(GS_DATA_LOSS, "%s: wrong at %zu of %zu", backends[which], i, count);
    }
    return gs_ok();
}

// In microseconds; the same on all ranks.
static gs_status time_burst(bench *self, int which, size_t bytes, double *micros) {
    double times[MOST_ITERATIONS];
    int iterations = (int)(LEAST_BURST_BYTES / bytes);
    if (iterations > MOST_ITERATIONS) iterations = MOST_ITERATIONS;
    if (iterations < 3) iterations = 3;
    GS_TRY(run_burst(self, which, bytes, 1));
    pthread_barrier_wait(&self->shared->barrier);
    GS_TRY(run_burst(self, which, bytes, iterations));
    pthread_barrier_wait(&self->shared->barrier);
    for (int i = 0; i < iterations; i++) {
        int64_t least = self->shared->elapsed_ns[0][i];
        for (int r = 1; r < self->set->ranks; r++)
            if (self->shared->elapsed_ns[r][i] < least) least = self->shared->elapsed_ns[r][i];
        times[i] = (double)least / 1000;
    }
    *micros = measure_quantile(times, iterations, 0.5);
    pthread_barrier_wait(&self->shared->barrier);
    return gs_ok();
}

static gs_status measure_size(bench *self, size_t bytes) {
    double times[NUM_BACKENDS][MAX_ROUNDS], ratios[MAX_ROUNDS];
    for (int which = 0; which < NUM_BACKENDS; which++) GS_TRY(check_sum(self, which, bytes));
    for (int round = 0; round < self->set->rounds; round++) {
        for (int which = 0; which < NUM_BACKENDS; which++)
            GS_TRY(time_burst(self, which, bytes, &times[which][round]));
        ratios[round] = times[0][round] / times[1][round];
    }
    if (self->rank != 0) return gs_ok();
    int rounds = self->set->rounds;
    printf("%12zu %12.1f %12.1f %8.2f\n", bytes, measure_quantile(times[0], rounds, 0.5),
           measure_quantile(times[1], rounds, 0.5), measure_quantile(ratios, rounds, 0.5));
    fflush(stdout);
    return gs_ok();
}

static gs_status enter_host(bench *self) {
    const char *host = self->set->hosts[self->rank / self->set->ranks_each];
    const char *at = strchr(host, '@');
    if (!at) return gs_error(GS_INVALID_ARGUMENT, "%s is no ADDRESS@NAMESPACE", host);
    snprintf(self->address, sizeof self->address, "%.*s", (int)(at - host), host);
    int fd = open(at + 1, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET))
        return gs_error(GS_UNAVAILABLE, "cannot enter network namespace %s", at + 1);
    close(fd);
    return gs_ok();
}

static gs_status run(bench *self) {
    const settings *set = self->set;
    GS_TRY(enter_host(self));
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(gs_arena_create(&self->arena, set->most_bytes + 4096));
    for (int i = 0; i < NUM_BACKENDS; i++) {
        gs_comm_options options = {.backend = backends[i],
                                   .group = backends[i],
                                   .rank = self->rank,
                                   .world_size = set->ranks,
                                   .generation = 1,
                                   .exchange = exchange,
                                   .exchange_ctx = self,
                                   .arena = self->arena,
                                   .device = self->device,
                                   .data_address = self->address};
        GS_TRY(gs_comm_create(&self->comms[i], &options, gs_deadline_in_seconds(30)));
    }
    if (self->rank == 0)
        printf("# %s; one core of %d is there for each rank: %s\n%12s %12s %12s %8s\n",
               gs_comm_backend_reason(self->comms[1]), gs_usable_cores(),
               gs_usable_cores() >= set->ranks ? "yes" : "no", "# bytes", "net µs", "hosts µs",
               "ratio");
    for (size_t i = 0; i < MEASURE_NUM_SIZES; i++) {
        if (measure_sizes[i] < set->least_bytes || measure_sizes[i] > set->most_bytes) continue;
        GS_TRY(measure_size(self, measure_sizes[i]));
    }
    return gs_ok();
}

static int run_rank(const settings *set, shared *area, int rank) {
    bench self = {.set = set, .shared = area, .rank = rank};
    gs_status status = run(&self);
    if (status.code) fprintf(stderr, "rank %d: %s\n", rank, status.message);
    for (int i = 0; i < NUM_BACKENDS; i++) gs_comm_destroy(self.comms[i]);
    gs_arena_destroy(self.arena);
    gs_device_close(self.device);
    return status.code ? 1 : 0;
}

static bool parse_arguments(settings *set, int argc, char **argv) {
    static const struct option options[] = {{"ranks", required_argument, NULL, 'n'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"least", required_argument, NULL, 'l'},
                                            {"most", required_argument, NULL, 'm'},
                                            {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'n') set->ranks_each = atoi(optarg);
        if (option == 'r') set->rounds = atoi(optarg);
        if (option == 'l') set->least_bytes = strtoull(optarg, NULL, 10);
        if (option == 'm') set->most_bytes = strtoull(optarg, NULL, 10);
        if (option == '?') return false;
    }
    set->num_hosts = argc - optind;
    set->hosts = argv + optind;
    set->ranks = set->ranks_each * set->num_hosts;
    return set->num_hosts >= 2 && set->ranks_each >= 2 && set->ranks <= MAX_RANKS &&
           set->rounds >= 1 && set->rounds <= MAX_ROUNDS;
}

static void init_shared(shared *area, int ranks) {
    pthread_barrierattr_t barrier;
    pthread_mutexattr_t lock;
    pthread_condattr_t moved;
    pthread_barrierattr_init(&barrier);
    pthread_mutexattr_init(&lock);
    pthread_condattr_init(&moved);
    pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setpshared(&moved, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&area->barrier, &barrier, (unsigned)ranks);
    pthread_mutex_init(&area->lock, &lock);
    pthread_cond_init(&area->moved, &moved);
}

int main(int argc, char **argv) {
    settings set = {.ranks_each = 2, .rounds = 7, .most_bytes = 25u << 20};
    if (!parse_arguments(&set, argc, argv)) {
        fprintf(stderr,
                "usage: %s [--ranks N] [--rounds 1..%d] [--least BYTES] [--most BYTES] "
                "ADDRESS@NAMESPACE…\n",
                argv[0], MAX_ROUNDS);
        return 64;
    }
    shared *area =
        mmap(NULL, sizeof *area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) return 1;
    init_shared(area, set.ranks);
    for (int rank = 0; rank < set.ranks; rank++) {
        if (fork() == 0) return run_rank(&set, area, rank);
    }
    int failed = 0, how;
    while (wait(&how) > 0) failed |= how;
    return failed != 0;
}
