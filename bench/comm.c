// Collectives between processes of this host, in the manner of the common NCCL benchmark, beside
// their floor: the same kernel over the same number of bytes and streams in private memory; of an
// all-gather one copy there.
//
//   bench_comm [--ranks N] [--dtype fp32|bf16] [--wire fp16|bf16] [--op OP] [--rounds N]
//              [--least BYTES] [--most BYTES] [--outside] [--pin] [--helper]
//              [--backend shm|net]
//
// BENCH_HOSTS=NAME, with net: rank r is in the network namespace NAMEr, at 10.78.0.(r + 1) (bench/net.sh).
//
// Variants are interleaved round by round; what counts is the lower quartile over rounds. A burst's
// time is the median over its collectives of the time that the last arriver spent in one; where
// ranks outnumber cores that rank's time says nothing, and it is the loop's time less that of the
// loop without collectives. A burst in which a rank was preempted is repeated, where each has a
// core.
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "core/thread.h"
#include "gradsync/comm/comm.h"

#define MAX_RANKS 16
#define MAX_ROUNDS 64
#define MAX_REPEATS 8
#define EXCHANGE_BYTES 65536
#define RUN_SECONDS 60.0

typedef struct settings {
    int ranks, rounds;
    int cores; // before any pinning
    gs_dtype dtype, wire;
    gs_collective_kind kind;
    size_t least_bytes, most_bytes;
    bool outside, pin;
    gs_helper_thread helper;
    const char *backend;  // shm; net: over loopback, which tells what it costs a core, not what a network gives
} settings;

// Between the processes; made before they are.
typedef struct shared {
    pthread_barrier_t barrier;
    unsigned char exchanged[MAX_RANKS * EXCHANGE_BYTES];
    int64_t elapsed_ns[MAX_RANKS][MEASURE_MAX_ITERATIONS];
    int64_t loop_ns[MAX_RANKS];
    long preemptions[MAX_RANKS];
    size_t wrong[MAX_RANKS];
    bool failed;
} shared;

typedef struct bench {
    const settings *set;
    shared *shared;
    int rank;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    unsigned char *private_data;
    int discarded;
} bench;

static const struct {
    const char *name;
    gs_collective_kind kind;
} kinds[] = {{"allreduce", GS_ALLREDUCE},           {"reduce", GS_REDUCE},
             {"reduce_scatter", GS_REDUCE_SCATTER}, {"allgather", GS_ALLGATHER},
             {"broadcast", GS_BROADCAST},           {"barrier", GS_BARRIER}};

static gs_status exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                          const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    bench *self = ctx;
    (void)tag;
    (void)ranks;  // always all
    (void)num_ranks;
    (void)deadline;
    memcpy(self->shared->exchanged + (size_t)self->rank * bytes, mine, bytes);
    pthread_barrier_wait(&self->shared->barrier);
    memcpy(all, self->shared->exchanged, bytes * (size_t)self->set->ranks);
    pthread_barrier_wait(&self->shared->barrier);
    return gs_ok();
}

// `bytes` is that of the full buffer, as in the NCCL benchmark; everything in place.
static gs_collective make_collective(const bench *self, size_t bytes) {
    const settings *set = self->set;
    unsigned char *data = set->outside ? self->private_data : gs_arena_data(self->arena);
    size_t element_bytes = gs_dtype_bytes(set->dtype), parts = 1;
    if (set->kind == GS_REDUCE_SCATTER || set->kind == GS_ALLGATHER) parts = (size_t)set->ranks;
    size_t count = bytes / element_bytes / parts;
    size_t own = (size_t)self->rank * count * element_bytes;
    return (gs_collective){.kind = set->kind,
                           .send = data + (set->kind == GS_ALLGATHER ? own : 0),
                           .recv = data + (set->kind == GS_REDUCE_SCATTER ? own : 0),
                           .count = count,
                           .dtype = set->dtype,
                           .scale = set->wire ? 1 : 1.0 / set->ranks,
                           .bucket = -1,
                           .wire_dtype = set->wire,
                           .wire_scale = set->wire ? 1.0f / (float)set->ranks : 1};
}

static size_t bytes_of_send(const bench *self, const gs_collective *c, size_t bytes) {
    return c->kind == GS_ALLGATHER ? bytes / (size_t)self->set->ranks : bytes;
}

static size_t bytes_of_result(const bench *self, const gs_collective *c, size_t bytes) {
    return c->kind == GS_REDUCE_SCATTER ? bytes / (size_t)self->set->ranks : bytes;
}

static void produce_input(const bench *self, const gs_collective *c, size_t bytes, int iteration) {
    measure_produce((void *)(uintptr_t)c->send, bytes_of_send(self, c, bytes), iteration);
}

static void consume_result(const bench *self, const gs_collective *c, size_t bytes) {
    const unsigned char *data = self->set->outside ? self->private_data : gs_arena_data(self->arena);
    bool scatters = c->kind == GS_REDUCE_SCATTER;
    measure_consume(scatters ? c->recv : data, bytes_of_result(self, c, bytes));
}

static gs_status run_burst(bench *self, const gs_collective *collective, size_t bytes,
                           int iterations) {
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    for (int i = 0; i < iterations; i++) {
        produce_input(self, collective, bytes, i);
        int64_t began_ns = measure_now_ns();
        GS_TRY(gs_comm_run(self->comm, collective, deadline));
        self->shared->elapsed_ns[self->rank][i] = measure_now_ns() - began_ns;
        consume_result(self, collective, bytes);
    }
    return gs_ok();
}

// The loop without collectives.
static gs_status run_empty_burst(bench *self, const gs_collective *collective, size_t bytes,
                                 int iterations) {
    for (int i = 0; i < iterations; i++) {
        produce_input(self, collective, bytes, i);
        consume_result(self, collective, bytes);
    }
    return gs_ok();
}

// What a gather has to move, behind what was produced.
static void copy_foreign_bytes(const bench *self, size_t bytes) {
    size_t own = bytes / (size_t)self->set->ranks;
    unsigned char *to = self->private_data + self->set->most_bytes;
    memcpy(to, self->private_data, bytes - own);
}

// The same slice kernel, all ranks at once, nothing shared.
static gs_status run_floor_burst(bench *self, const gs_collective *collective, size_t bytes,
                                 int iterations) {
    size_t each = bytes / (size_t)self->set->ranks / 256 * 256;
    bool gathers = collective->kind == GS_ALLGATHER;
    void *streams[MAX_RANKS];
    for (int i = 0; i < self->set->ranks; i++) streams[i] = self->private_data + (size_t)i * each;
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    for (int i = 0; i < iterations; i++) {
        measure_produce(self->private_data, bytes, i);
        GS_TRY(gs_comm_run(self->comm, &barrier, deadline));
        int64_t began_ns = measure_now_ns();
        if (gathers) copy_foreign_bytes(self, bytes);
        for (size_t at = 0; at < each && !gathers; at += 65536) {
            void *outputs[MAX_RANKS];
            size_t block = each - at < 65536 ? each - at : 65536;
            for (int k = 0; k < self->set->ranks; k++)
                outputs[k] = (unsigned char *)streams[k] + at;
            gs_reduction reduction = {.outputs = outputs,
                                      .inputs = (const void *const *)outputs,
                                      .num_outputs =
                                          collective->kind == GS_ALLREDUCE ? self->set->ranks : 1,
                                      .num_inputs = self->set->ranks,
                                      .dtype = collective->dtype,
                                      .scale = collective->scale,
                                      .count = block / gs_dtype_bytes(collective->dtype),
                                      .wire_dtype = collective->wire_dtype,
                                      .wire_scale = collective->wire_scale};
            gs_device_kernels(self->device)->reduce(gs_device_stream(self->device), &reduction);
        }
        self->shared->elapsed_ns[self->rank][i] = measure_now_ns() - began_ns;
        measure_consume(self->private_data + (gathers ? self->set->most_bytes : 0),
                        bytes_of_result(self, collective, bytes));
    }
    return gs_ok();
}

typedef gs_status (*burst)(bench *self, const gs_collective *collective, size_t bytes,
                           int iterations);

// In microseconds: of the last arriver, or of the slowest rank (floor).
static double median_of_burst(const bench *self, int iterations, bool slowest) {
    double times[MEASURE_MAX_ITERATIONS];
    for (int i = 0; i < iterations; i++) {
        int64_t chosen = self->shared->elapsed_ns[0][i];
        for (int r = 1; r < self->set->ranks; r++) {
            int64_t one = self->shared->elapsed_ns[r][i];
            if (slowest ? one > chosen : one < chosen) chosen = one;
        }
        times[i] = (double)chosen / 1000;
    }
    return measure_quantile(times, iterations, 0.5);
}

// Returns on all ranks after the last one is through; *loop_ns is the same on all.
static gs_status time_loop(bench *self, int64_t *loop_ns, burst run, size_t bytes, int iterations) {
    gs_collective collective = make_collective(self, bytes);
    pthread_barrier_wait(&self->shared->barrier);
    long before = measure_preemptions();
    int64_t began_ns = measure_now_ns();
    GS_TRY(run(self, &collective, bytes, iterations));
    self->shared->loop_ns[self->rank] = measure_now_ns() - began_ns;
    self->shared->preemptions[self->rank] = measure_preemptions() - before;
    pthread_barrier_wait(&self->shared->barrier);
    *loop_ns = 0;
    for (int r = 0; r < self->set->ranks; r++) {
        if (self->shared->loop_ns[r] > *loop_ns) *loop_ns = self->shared->loop_ns[r];
    }
    return gs_ok();
}

static gs_status measure_burst(bench *self, double *micros, burst run, size_t bytes) {
    int iterations = measure_iterations(bytes);
    bool own_cores = self->set->ranks <= self->set->cores;
    int64_t loop_ns, empty_ns = 0;
    for (int repeat = 0;; repeat++) {
        GS_TRY(time_loop(self, &loop_ns, run, bytes, 3));
        GS_TRY(time_loop(self, &loop_ns, run, bytes, iterations));
        *micros = median_of_burst(self, iterations, run == run_floor_burst);
        long preemptions = 0;
        for (int r = 0; r < self->set->ranks; r++) preemptions += self->shared->preemptions[r];
        pthread_barrier_wait(&self->shared->barrier);
        if (!own_cores || preemptions == 0 || repeat == MAX_REPEATS) break;
        self->discarded++;
    }
    if (own_cores) return gs_ok();
    GS_TRY(time_loop(self, &empty_ns, run_empty_burst, bytes, iterations));
    *micros = (double)(loop_ns - empty_ns) / iterations / 1000;
    return gs_ok();
}

// Before any timing: integers that every dtype holds exactly.
static gs_status check_result(bench *self, size_t bytes, size_t *wrong) {
    gs_collective c = make_collective(self, bytes);
    size_t element_bytes = gs_dtype_bytes(c.dtype), num_wrong = 0;
    unsigned char *data = self->set->outside ? self->private_data : gs_arena_data(self->arena);
    bool bf16 = c.dtype == GS_BF16;
    *wrong = 0;
    if (c.kind != GS_ALLREDUCE) return gs_ok(); // the others' results are the tests' business
    int expected_sum = self->set->ranks * (self->set->ranks - 1) / 2;
    for (size_t i = 0; i < bytes / element_bytes; i++) {
        float value = (float)((int)(i % 7) + self->rank);
        if (bf16)
            ((uint16_t *)(void *)data)[i] = gs_fp32_to_bf16(value);
        else
            ((float *)(void *)data)[i] = value;
    }
    c.scale = c.wire_scale = 1;
    GS_TRY(gs_comm_run(self->comm, &c, gs_deadline_in_seconds(RUN_SECONDS)));
    for (size_t i = 0; i < bytes / element_bytes; i++) {
        float value =
            bf16 ? gs_bf16_to_fp32(((uint16_t *)(void *)data)[i]) : ((float *)(void *)data)[i];
        num_wrong += value != (float)((int)(i % 7) * self->set->ranks + expected_sum);
    }
    self->shared->wrong[self->rank] = num_wrong;
    pthread_barrier_wait(&self->shared->barrier);
    for (int r = 0; r < self->set->ranks; r++) *wrong += self->shared->wrong[r];
    pthread_barrier_wait(&self->shared->barrier);
    return gs_ok();
}

static double bus_factor(const settings *set) {
    double n = set->ranks;
    if (set->kind == GS_ALLREDUCE) return 2 * (n - 1) / n;
    if (set->kind == GS_REDUCE_SCATTER || set->kind == GS_ALLGATHER) return (n - 1) / n;
    return 1;
}

static gs_status measure_size(bench *self, size_t bytes) {
    double times[MAX_ROUNDS], floors[MAX_ROUNDS];
    size_t wrong;
    const settings *set = self->set;
    bool has_floor = (set->kind == GS_ALLREDUCE || set->kind == GS_REDUCE_SCATTER ||
                      set->kind == GS_ALLGATHER) &&
                     bytes >= (size_t)set->ranks * 256;
    self->discarded = 0;
    GS_TRY(check_result(self, bytes, &wrong));
    for (int round = -1; round < set->rounds; round++) { // the first one warms up
        int at = round < 0 ? 0 : round;
        floors[at] = 0;
        GS_TRY(measure_burst(self, &times[at], run_burst, bytes));
        if (has_floor) GS_TRY(measure_burst(self, &floors[at], run_floor_burst, bytes));
    }
    if (self->rank != 0) return gs_ok();
    gs_collective collective = make_collective(self, bytes);
    double median = measure_quantile(times, set->rounds, 0.5);
    double quartile = measure_quantile(times, set->rounds, 0.25);
    double floor = measure_quantile(floors, set->rounds, 0.25);
    double algbw = (double)bytes / quartile / 1000;
    printf("%12zu %10.2f %10.2f %10.2f %8.2f %8.2f %10.2f %7.2f %6zu %5d  %s\n", bytes, quartile,
           median, times[0], algbw, algbw * bus_factor(set), floor,
           floor > 0 ? quartile / floor : 0, wrong, self->discarded,
           gs_comm_algorithm(self->comm, &collective));
    fflush(stdout);
    return gs_ok();
}

static gs_status measure_barrier(bench *self) {
    enum { BARRIERS = 2000 };
    double times[MAX_ROUNDS];
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    for (int round = -1; round < self->set->rounds; round++) {
        int64_t began_ns = measure_now_ns();
        for (int i = 0; i < BARRIERS; i++) GS_TRY(gs_comm_run(self->comm, &barrier, deadline));
        times[round < 0 ? 0 : round] = (double)(measure_now_ns() - began_ns) / BARRIERS / 1000;
    }
    double median = measure_quantile(times, self->set->rounds, 0.5);
    double quartile = measure_quantile(times, self->set->rounds, 0.25);
    if (self->rank == 0)
        printf("%12s %10.2f %10.2f %10.2f\n", "barrier", quartile, median, times[0]);
    return gs_ok();
}

static gs_status measure_all(bench *self) {
    const settings *set = self->set;
    if (self->rank == 0 && set->kind != GS_BARRIER)
        printf("%12s %10s %10s %10s %8s %8s %10s %7s %6s %5s\n", "# bytes", "time µs", "median µs",
               "least µs", "algbw", "busbw", "floor µs", "/floor", "wrong", "redo");
    if (set->kind == GS_BARRIER) return measure_barrier(self);
    for (size_t i = 0; i < MEASURE_NUM_SIZES; i++) {
        if (measure_sizes[i] < set->least_bytes || measure_sizes[i] > set->most_bytes) continue;
        GS_TRY(measure_size(self, measure_sizes[i]));
    }
    return gs_ok();
}

static gs_status enter_host(int rank) {
    char path[128];
    const char *hosts = getenv("BENCH_HOSTS");
    if (!hosts) return gs_ok();
    snprintf(path, sizeof path, "/run/netns/%s%d", hosts, rank);
    int place = open(path, O_RDONLY | O_CLOEXEC);
    if (place < 0 || setns(place, CLONE_NEWNET)) return gs_error(GS_UNAVAILABLE, "no %s", path);
    close(place);
    return gs_ok();
}

static gs_status open_bench(bench *self) {
    const settings *set = self->set;
    char address[32];
    snprintf(address, sizeof address, "10.78.0.%d", self->rank + 1);
    GS_TRY(enter_host(self->rank));
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(gs_arena_create(&self->arena, set->most_bytes));
    GS_TRY(gs_device_alloc(self->device, (void **)&self->private_data, 2 * set->most_bytes));
    gs_comm_options options = {.backend = set->backend,
                               .rank = self->rank,
                               .world_size = set->ranks,
                               .generation = 1,
                               .exchange = exchange,
                               .exchange_ctx = self,
                               .ranks_on_host = set->ranks,
                               .data_address = getenv("BENCH_HOSTS") ? address : NULL,
                               .arena = self->arena,
                               .device = self->device,
                               .helper = set->helper};
    return gs_comm_create(&self->comm, &options, gs_deadline_in_seconds(RUN_SECONDS));
}

static int run_rank(const settings *set, shared *area, int rank) {
    bench self = {.set = set, .shared = area, .rank = rank};
    if (set->pin) measure_pin(rank);
    gs_status status = open_bench(&self);
    if (!status.code) status = measure_all(&self);
    if (status.code) fprintf(stderr, "rank %d: %s\n", rank, status.message);
    gs_comm_destroy(self.comm);
    if (self.device) gs_device_free(self.device, self.private_data);
    gs_arena_destroy(self.arena);
    gs_device_close(self.device);
    return status.code != GS_OK;
}

static bool parse_arguments(settings *set, int argc, char **argv) {
    static const struct option options[] = {
        {"ranks", required_argument, NULL, 'n'}, {"rounds", required_argument, NULL, 'r'},
        {"dtype", required_argument, NULL, 'd'}, {"op", required_argument, NULL, 'o'},
        {"wire", required_argument, NULL, 'w'},
        {"least", required_argument, NULL, 'l'}, {"most", required_argument, NULL, 'm'},
        {"outside", no_argument, NULL, 'x'},     {"pin", no_argument, NULL, 'p'},
        {"helper", no_argument, NULL, 'h'},      {"backend", required_argument, NULL, 'b'},
        {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'n':
            set->ranks = atoi(optarg);
            break;
        case 'r':
            set->rounds = atoi(optarg);
            break;
        case 'd':
            set->dtype = gs_dtype_from_name(optarg);
            break;
        case 'w':
            set->wire = gs_dtype_from_name(optarg);
            break;
        case 'l':
            set->least_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'm':
            set->most_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'x':
            set->outside = true;
            break;
        case 'p':
            set->pin = true;
            break;
        case 'h':
            set->helper = GS_HELPER_ON;
            break;
        case 'b':
            set->backend = optarg;
            break;
        case 'o':
            set->kind = GS_COLLECTIVE_UNSET;
            for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
                if (strcmp(kinds[i].name, optarg) == 0) set->kind = kinds[i].kind;
            break;
        default:
            return false;
        }
    }
    return set->ranks >= 2 && set->ranks <= MAX_RANKS && set->rounds >= 1 &&
           set->rounds <= MAX_ROUNDS && set->kind != GS_COLLECTIVE_UNSET &&
           (set->dtype == GS_FP32 || set->dtype == GS_BF16) &&
           (!set->wire || (set->dtype == GS_FP32 && set->kind == GS_ALLREDUCE));
}

int main(int argc, char **argv) {
    settings set = {.ranks = 2,
                    .rounds = 5,
                    .dtype = GS_FP32,
                    .kind = GS_ALLREDUCE,
                    .most_bytes = 100u << 20,
                    .cores = gs_usable_cores(),
                    .helper = GS_HELPER_OFF,
                    .backend = "shm"};
    if (!parse_arguments(&set, argc, argv)) {
        fprintf(stderr,
                "usage: %s [--ranks 2..%d] [--rounds 1..%d] [--dtype fp32|bf16] "
                "[--wire fp16|bf16] [--op NAME] [--least BYTES] [--most BYTES] [--outside] [--pin] [--helper] [--backend shm|net]\n",
                argv[0], MAX_RANKS, MAX_ROUNDS);
        return 64;
    }
    shared *area =
        mmap(NULL, sizeof *area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) return 1;
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&area->barrier, &attributes, (unsigned)set.ranks);
    for (int rank = 0; rank < set.ranks; rank++) {
        if (fork() == 0) return run_rank(&set, area, rank);
    }
    int failed = 0, how;
    while (wait(&how) > 0) failed |= how;
    return failed != 0;
}
