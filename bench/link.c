// What compression and plans give on a link between two hosts; run by bench/link.sh, which makes the link.
//
//   bench_link ROUNDS ADDRESS@NAMESPACE ADDRESS@NAMESPACE
//
// Two ranks, each in a network namespace, over the net backend. One bucket of 25 MiB as fp32, 16 bits and 8 bits; then a backward
// pass that is only waited for, of 24 gradients of 2 MiB, with PyTorch's caps and with the plan for what the link was measured to
// take. Variants take turns, so that a busy machine disturbs them alike; a time is that of the slower rank, from the first gradient
// to the end of finish. Medians, and medians of what is paired in a round.
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/measure.h"
#include "core/plan_policy.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"
#include "worker/telemetry/link_watch.h"

#define MAX_ROUNDS 64
#define WAIT_SECONDS 120.0
#define NUM_GRADS 24
#define GRAD_COUNT ((int64_t)1 << 19)
#define BACKWARD_SECONDS 0.3

typedef struct variant {
    const char *name, *hook;
    gs_dtype wire;
    bool is_planned, is_whole;  // one bucket
} variant;

static const variant variants[] = {{"fp32", NULL, GS_DTYPE_UNSET, false, true},
                                   {"bf16", NULL, GS_BF16, false, true},
                                   {"fp16", NULL, GS_FP16, false, true},
                                   {"int8", "int8", GS_DTYPE_UNSET, false, true},
                                   {"caps", NULL, GS_DTYPE_UNSET, false, false},
                                   {"planned", NULL, GS_DTYPE_UNSET, true, false}};
#define NUM_VARIANTS (sizeof variants / sizeof variants[0])

typedef struct bench_rank {
    const gs_rank_env *env;
    const char *address;
    gs_param_spec params[NUM_GRADS];
    size_t num_params, order[NUM_GRADS];
    double ready[NUM_GRADS];
    gs_bucket_plan plan;
    gs_hook_choice hook;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    int64_t step;
} bench_rank;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_link: %s\n", status.message);
    exit(1);
}

static gs_link_request request_of(const bench_rank *rank) {
    return (gs_link_request){.params = rank->params, .num_params = rank->num_params, .order = rank->order, .ready_seconds = rank->ready};
}

static void make_plan(bench_rank *rank, const variant *kind, const gs_link_model *link) {
    rank->num_params = kind->is_whole ? 1 : NUM_GRADS;
    for (size_t i = 0; i < rank->num_params; i++) {
        int64_t count = kind->is_whole ? (int64_t)25 << 18 : GRAD_COUNT;
        rank->params[i] = gs_param_spec_make(GS_FP32, count, 0, "p%zu", i);
        rank->order[i] = rank->num_params - 1 - i;
        rank->ready[rank->order[i]] = BACKWARD_SECONDS * (double)(i + 1) / (double)rank->num_params;
    }
    gs_link_request request = request_of(rank);
    gs_plan_policy caps = {.first_bytes = kind->is_whole ? 0 : GS_FIRST_BUCKET_BYTES};
    if (kind->is_planned) must(gs_link_plan_make(&rank->plan, &request, link));
    else must(gs_plan_policy_apply(&rank->plan, &caps, rank->params, rank->num_params, rank->order));
}

static void open_rank(bench_rank *rank, size_t number, const gs_link_model *link) {
    const variant *kind = &variants[number];
    gs_deadline deadline = gs_deadline_in_seconds(WAIT_SECONDS);
    make_plan(rank, kind, link);
    rank->hook = (gs_hook_choice){.hook = kind->hook ? gs_comm_hook_find(kind->hook) : NULL};
    gs_reducer_options options = {.params = rank->params,
                                  .num_params = rank->num_params,
                                  .plan = &rank->plan,
                                  .wire_dtype = kind->wire,
                                  .hooks = kind->hook ? &rank->hook : NULL,
                                  .num_hooks = kind->hook ? 1 : 0,
                                  .shards = {.num_shards = 2, .world_size = 2, .rank = rank->env->rank}};
    gs_comm_options comm = {.backend = "net",
                            .rank = rank->env->rank,
                            .world_size = 2,
                            .generation = 1 + (uint32_t)number,
                            .exchange = gs_rank_exchange,
                            .exchange_ctx = rank->env->exchange,
                            .data_address = rank->address};
    size_t bytes;
    must(gs_reducer_arena_bytes(&bytes, &options));
    must(gs_device_open(&rank->device, "cpu", &(gs_device_options){.num_threads = 1}));
    must(gs_arena_create(&rank->arena, bytes));
    comm.arena = options.arena = rank->arena;
    comm.device = options.device = rank->device;
    must(gs_reducer_lanes(&comm.num_lanes, &options));
    must(gs_comm_create(&rank->comm, &comm, deadline));
    must(gs_reducer_create(&rank->reducer, &options, rank->comm, deadline));
}

static void take_slower(bench_rank *rank, double *seconds) {
    must(gs_comm_run(rank->comm,
                     &(gs_collective){.kind = GS_ALLREDUCE, .send = seconds, .recv = seconds, .count = 1, .dtype = GS_FP64, .op = GS_OP_MAX, .bucket = -1},
                     gs_deadline_in_seconds(WAIT_SECONDS)));
}

static double run_step(bench_rank *rank) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    must(gs_reducer_begin(rank->reducer, rank->step++));
    must(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    must(gs_comm_run(rank->comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, gs_deadline_in_seconds(WAIT_SECONDS)));
    int64_t begin_ns = gs_now_ns();
    for (size_t i = 0; i < rank->num_params; i++) {
        size_t param = rank->order[i];
        int64_t left_ns = begin_ns + (int64_t)(1e9 * rank->ready[param]) - gs_now_ns();
        if (rank->num_params > 1 && left_ns > 0) gs_sleep_ns(left_ns);
        gs_reducer_ready_callback(rank->reducer, param);
    }
    must(gs_reducer_end_pass(rank->reducer));
    must(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(WAIT_SECONDS)));
    double seconds = gs_seconds_since(begin_ns);
    take_slower(rank, &seconds);
    return seconds;
}

static void tell_plan(const bench_rank *rank, const char *name, const gs_link_model *link) {
    gs_link_request request = request_of(rank);
    double forecast, bound;
    must(gs_link_plan_forecast(&forecast, &rank->plan, &request, &link->cost, 1));
    must(gs_link_plan_bound(&bound, &request, &link->cost, 1));
    printf("# %s: %zu buckets, forecast %.1f ms, bound %.1f ms\n", name, rank->plan.num_buckets, 1e3 * forecast, 1e3 * bound);
}

// arg: "ROUNDS ADDRESS@NAMESPACE ADDRESS@NAMESPACE"
static gs_status body_link(const gs_rank_env *env) {
    static bench_rank ranks[NUM_VARIANTS];
    static double seconds[NUM_VARIANTS][MAX_ROUNDS], ratios[MAX_ROUNDS];
    char places[2][128], *at;
    int num_rounds;
    if (sscanf(env->arg, "%d %127s %127s", &num_rounds, places[0], places[1]) != 3 || !(at = strchr(places[env->rank], '@')))
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    *at = 0;
    int fd = open(at + 1, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) return gs_error(GS_UNAVAILABLE, "no network namespace %s", at + 1);
    close(fd);
    gs_link_model link = {0};
    for (size_t v = 0; v < NUM_VARIANTS; v++) {
        ranks[v].env = env;
        ranks[v].address = places[env->rank];
        open_rank(&ranks[v], v, &link);
        if (v) continue;
        gs_link_watch watch;
        must(gs_link_watch_begin(&watch, ranks[0].comm, 1, WAIT_SECONDS));
        link = gs_link_fit_model(&watch.fit);
        gs_link_watch_end(&watch);
        double numbers[2] = {link.cost.start_seconds, link.cost.byte_seconds};
        take_slower(&ranks[0], &numbers[0]);
        take_slower(&ranks[0], &numbers[1]);
        link.cost = (gs_link_cost){numbers[0], numbers[1]};  // both ranks plan alike
        if (env->rank == 0) printf("# a collective takes %.0f µs and a second for %.1f MB\n", 1e6 * link.cost.start_seconds, 1e-6 / link.cost.byte_seconds);
    }
    for (int round = -1; round < num_rounds; round++) {
        for (size_t v = 0; v < NUM_VARIANTS; v++) {
            double took = run_step(&ranks[v]);
            if (round >= 0) seconds[v][round] = took;
        }
    }
    for (size_t v = 0; v < NUM_VARIANTS && env->rank == 0; v++) {
        size_t base = variants[v].is_whole ? 0 : 4;
        for (int i = 0; i < num_rounds; i++) ratios[i] = seconds[base][i] / seconds[v][i];
        if (!variants[v].is_whole) tell_plan(&ranks[v], variants[v].name, &link);
        double ratio = measure_quantile(ratios, num_rounds, 0.5);
        printf("%-8s %9.1f ms  %5.2f × %s\n", variants[v].name, 1e3 * measure_quantile(seconds[v], num_rounds, 0.5), ratio, variants[base].name);
    }
    fflush(stdout);
    for (size_t v = 0; v < NUM_VARIANTS; v++) {
        gs_reducer_destroy(ranks[v].reducer);
        gs_comm_destroy(ranks[v].comm);
        gs_arena_destroy(ranks[v].arena);
        gs_device_close(ranks[v].device);
        gs_bucket_plan_release(&ranks[v].plan);
    }
    return gs_ok();
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"link", body_link}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    int num_rounds = argc == 4 ? atoi(argv[1]) : 0;
    char arg[400];
    if (num_rounds < 1 || num_rounds > MAX_ROUNDS) return 2;
    snprintf(arg, sizeof arg, "%d %s %s", num_rounds, argv[2], argv[3]);
    must(gs_ranks_run("link", 2, arg, gs_deadline_in_seconds(900)));
    return 0;
}
