// Runs the grid of a kernel: block after block, the threads of a block as fibers of the calling
// host thread.
//
// A thread runs until it ends or waits for others; a kernel that never waits is a plain loop on one
// fiber. Blocks, and the threads that start or go on, come in an order that depends on a seed,
// since a device promises none. What would hang a device ends the launch with a sentence.
#ifndef TESTS_CUDA_SIM_BLOCK_H
#define TESTS_CUDA_SIM_BLOCK_H

#include <cuda_runtime.h>

#include <functional>
#include <string>

namespace sim {

struct grid_launch {
    std::string name;  // of the kernel
    dim3 grid, block;
    size_t shared_bytes = 0;  // dynamic
    std::function<void()> body;
};

// "" when all threads of all blocks came to their end; else what happened, with the kernel's name.
std::string run_grid(const grid_launch &launch, uint64_t seed);

// What the calling thread runs now, for messages about faults; "" when it runs no kernel.
const char *running_kernel();

}  // namespace sim
#endif
