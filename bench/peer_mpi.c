// MPI's all-reduce in the same loop as bench_comm, for the ratio; run under mpiexec.
//   mpiexec -n 2 -bind-to core bench_peer_mpi [ROUNDS [LEAST_BYTES [MOST_BYTES]]]
#include <mpi.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/measure.h"

#define MAX_ROUNDS 64

static double run_loop(float *data, size_t bytes, int iterations, double *elapsed) {
    int64_t loop_began_ns = measure_now_ns();
    for (int i = 0; i < iterations; i++) {
        measure_produce(data, bytes, i);
        int64_t began_ns = measure_now_ns();
        if (elapsed)
            MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / sizeof *data), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
        if (elapsed) elapsed[i] = (double)(measure_now_ns() - began_ns) / 1000;
        measure_consume(data, bytes);
    }
    double loop = (double)(measure_now_ns() - loop_began_ns) / 1000, most;
    MPI_Allreduce(&loop, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

// As in bench_comm: the last arriver's median, or, where ranks share cores, the loop's time.
static double measure_burst(float *data, size_t bytes, int iterations, bool own_cores) {
    static double elapsed[MEASURE_MAX_ITERATIONS], least[MEASURE_MAX_ITERATIONS];
    run_loop(data, bytes, 3, elapsed);
    double loop = run_loop(data, bytes, iterations, elapsed);
    MPI_Reduce(elapsed, least, iterations, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    if (own_cores) return measure_quantile(least, iterations, 0.5);
    return (loop - run_loop(data, bytes, iterations, NULL)) / iterations;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, num_ranks, rounds = argc > 1 ? atoi(argv[1]) : 5;
    size_t least_bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    size_t most_bytes =
        argc > 3 ? strtoull(argv[3], NULL, 10) : measure_sizes[MEASURE_NUM_SIZES - 1];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    long num_cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (rounds < 1 || rounds > MAX_ROUNDS) rounds = 5;
    float *data = aligned_alloc(4096, measure_sizes[MEASURE_NUM_SIZES - 1]);
    for (size_t s = 0; data && s < MEASURE_NUM_SIZES; s++) {
        double times[MAX_ROUNDS];
        size_t bytes = measure_sizes[s];
        if (bytes < least_bytes || bytes > most_bytes) continue;
        for (int round = -1; round < rounds; round++)
            times[round < 0 ? 0 : round] =
                measure_burst(data, bytes, measure_iterations(bytes), num_ranks <= num_cores);
        double median = measure_quantile(times, rounds, 0.5);
        double quartile = measure_quantile(times, rounds, 0.25);
        if (rank == 0) printf("%12zu %10.2f %10.2f %10.2f\n", bytes, quartile, median, times[0]);
    }
    free(data);
    MPI_Finalize();
    return 0;
}
