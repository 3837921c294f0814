// Gloo's all-reduce between processes in the loop of bench_comm, for the ratio; and what becomes of a rank whose peer
// dies, or whose connections are closed, while it waits. Nothing of gradsync is in it, nor it in gradsync:
//   c++ -O2 -I. -o bench_peer_gloo bench/peer_gloo.cc -lgloo -pthread
//
//   bench_peer_gloo RANKS ROUNDS LEAST_BYTES MOST_BYTES   bytes, lower quartile, median, least in µs
//   bench_peer_gloo --kills N    one of four ranks is killed amid sums: how long the others take to return
//   bench_peer_gloo --closes N   one of four is frozen, and the others close their connections: likewise
//
// BENCH_HOSTS=NAME: rank r is in the network namespace NAMEr, at 10.78.0.(r + 1).
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "bench/measure.h"
}

namespace {

constexpr int most_ranks = 16, most_rounds = 64;
constexpr auto patience = std::chrono::seconds(5);

struct shared {
    double elapsed[most_ranks][MEASURE_MAX_ITERATIONS], loop[most_ranks];
    int64_t struck_ns, returned_ns[most_ranks];
    int adding[most_ranks];
};

shared *area;

std::shared_ptr<gloo::rendezvous::Context> connect(int rank, int ranks, const std::string &folder) {
    gloo::transport::tcp::attr attr("127.0.0.1");
    if (const char *hosts = getenv("BENCH_HOSTS")) {
        int place = open(("/run/netns/" + std::string(hosts) + std::to_string(rank)).c_str(), O_RDONLY);
        if (place < 0 || setns(place, CLONE_NEWNET)) _exit(3);
        attr.hostname = "10.78.0." + std::to_string(rank + 1);
    }
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->setTimeout(patience);
    gloo::rendezvous::FileStore store(folder);
    context->connectFullMesh(store, device);
    return context;
}

void add(const std::shared_ptr<gloo::Context> &context, float *data, size_t count) {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data, count);
    options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

void meet(const std::shared_ptr<gloo::Context> &context) {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
}

// Of the slowest rank.
double run_loop(const std::shared_ptr<gloo::Context> &context, float *data, size_t bytes, int iterations, bool adds) {
    meet(context);
    int64_t loop_began_ns = measure_now_ns();
    for (int i = 0; i < iterations; i++) {
        measure_produce(data, bytes, i);
        int64_t began_ns = measure_now_ns();
        if (adds) add(context, data, bytes / sizeof *data);
        if (adds) area->elapsed[context->rank][i] = static_cast<double>(measure_now_ns() - began_ns) / 1000;
        measure_consume(data, bytes);
    }
    area->loop[context->rank] = static_cast<double>(measure_now_ns() - loop_began_ns) / 1000;
    meet(context);
    return *std::max_element(area->loop, area->loop + context->size);
}

// As in bench_comm: the last arriver's median, or, where ranks share cores, the loop's time.
double measure_burst(const std::shared_ptr<gloo::Context> &context, float *data, size_t bytes, bool own_cores) {
    int iterations = measure_iterations(bytes);
    run_loop(context, data, bytes, 3, true);
    double loop = run_loop(context, data, bytes, iterations, true);
    double least[MEASURE_MAX_ITERATIONS];
    for (int i = 0; i < iterations; i++) {
        least[i] = area->elapsed[0][i];
        for (int r = 1; r < context->size; r++) least[i] = std::min(least[i], area->elapsed[r][i]);
    }
    if (own_cores) return measure_quantile(least, iterations, 0.5);
    return (loop - run_loop(context, data, bytes, iterations, false)) / iterations;
}

void measure(int rank, int ranks, int rounds, size_t least, size_t most, const std::string &folder) {
    bool own_cores = ranks <= sysconf(_SC_NPROCESSORS_ONLN);
    measure_pin(rank);
    auto context = connect(rank, ranks, folder);
    std::vector<float> data(most / sizeof(float));
    for (size_t bytes : measure_sizes) {
        double times[most_rounds];
        if (bytes < least || bytes > most) continue;
        for (int round = 0; round < rounds; round++) 
            times[round] = measure_burst(context, data.data(), bytes, own_cores);
        double quartile = measure_quantile(times, rounds, 0.25), median = measure_quantile(times, rounds, 0.5);
        if (rank == 0) printf("%12zu %10.2f %10.2f %10.2f\n", bytes, quartile, median, times[0]);
        fflush(stdout);
    }
}

// Adds until it fails. With `closes` another thread closes all connections half a second after the strike.
void add_until_it_fails(int rank, int ranks, bool closes, const std::string &folder) {
    auto context = connect(rank, ranks, folder);
    std::vector<float> data(320000);
    std::thread([=] {
        while (closes && !__atomic_load_n(&area->struck_ns, __ATOMIC_ACQUIRE)) usleep(1000);
        if (!closes) return;
        usleep(500000);
        context->closeConnections();
    }).detach();
    try {
        for (;;) {
            add(context, data.data(), data.size());
            __atomic_store_n(&area->adding[rank], 1, __ATOMIC_RELEASE);
        }
    } catch (const std::exception &) {
        __atomic_store_n(&area->returned_ns[rank], measure_now_ns(), __ATOMIC_RELEASE);
    }
    _exit(0);
}

template <typename Body> std::vector<pid_t> start(int ranks, Body body) {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; rank++) {
        pid_t pid = fork();
        if (pid) {
            pids.push_back(pid);
            continue;
        }
        signal(SIGPIPE, SIG_IGN);
        try {
            body(rank);
        } catch (const std::exception &error) {
            fprintf(stderr, "rank %d: %s\n", rank, error.what());
            _exit(1);
        }
        _exit(0);
    }
    return pids;
}

std::string make_folder() {
    std::string folder = "/tmp/bench_peer_gloo.XXXXXX";
    if (!mkdtemp(&folder[0])) exit(1);
    return folder;
}

void strike(int count, bool closes) {
    const int ranks = 4;
    int soon = 0, late = 0;
    double most_soon_ms = 0, most_late_ms = 0;
    for (int i = 0; i < count; i++) {
        memset(area, 0, sizeof *area);
        std::string folder = make_folder();
        auto pids = start(ranks, [&](int rank) { add_until_it_fails(rank, ranks, closes, folder); });
        int victim = i % ranks;
        while (!__atomic_load_n(&area->adding[victim], __ATOMIC_ACQUIRE)) usleep(1000);
        usleep(static_cast<useconds_t>(i * 137 % 5000));
        kill(pids[static_cast<size_t>(victim)], closes ? SIGSTOP : SIGKILL);
        __atomic_store_n(&area->struck_ns, measure_now_ns(), __ATOMIC_RELEASE);
        for (int r = 0; r < ranks; r++)
            if (r != victim) waitpid(pids[static_cast<size_t>(r)], nullptr, 0);
        kill(pids[static_cast<size_t>(victim)], SIGKILL);
        waitpid(pids[static_cast<size_t>(victim)], nullptr, 0);
        std::filesystem::remove_all(folder);
        for (int r = 0; r < ranks; r++) {
            if (r == victim) continue;
            double ms = static_cast<double>(area->returned_ns[r] - area->struck_ns) / 1e6 - (closes ? 500 : 0);
            bool is_late = ms > 1000;
            (is_late ? late : soon)++;
            double &most = is_late ? most_late_ms : most_soon_ms;
            if (ms > most) most = ms;
        }
    }
    printf("%d survivors returned within %.1f ms, %d not within 1 s (%.1f ms)\n", soon, most_soon_ms, late, most_late_ms);
}

}  // namespace

int main(int argc, char **argv) {
    area = static_cast<shared *>(
        mmap(nullptr, sizeof *area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (area == MAP_FAILED) return 1;
    std::string first = argc > 1 ? argv[1] : "";
    if (argc == 3 && (first == "--kills" || first == "--closes")) {
        strike(atoi(argv[2]), first == "--closes");
        return 0;
    }
    int ranks = argc == 5 ? atoi(argv[1]) : 0, rounds = argc == 5 ? atoi(argv[2]) : 0;
    if (ranks < 2 || ranks > most_ranks || rounds < 1 || rounds > most_rounds) {
        fprintf(stderr, "usage: %s RANKS ROUNDS LEAST_BYTES MOST_BYTES | --kills N | --closes N\n", argv[0]);
        return 64;
    }
    size_t least = strtoull(argv[3], nullptr, 10), most = strtoull(argv[4], nullptr, 10);
    std::string folder = make_folder();
    start(ranks, [&](int rank) { measure(rank, ranks, rounds, least, most, folder); });
    int failed = 0, how;
    while (wait(&how) > 0) failed |= how;
    std::filesystem::remove_all(folder);
    return failed != 0;
}
