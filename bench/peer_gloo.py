#!/usr/bin/env python3
"""torch.distributed's gloo in the same loop as bench_comm, for the ratio.

peer_gloo.py [RANKS [ROUNDS [LEAST_BYTES [MOST_BYTES]]]]; prints "not installed" without torch.
"""
import os
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError:
    print("# gloo: not installed (python3 has no torch)")
    sys.exit(0)

SIZES = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20]


def burst(data, iterations):
    elapsed = torch.zeros(iterations, dtype=torch.float64)
    for i in range(-3, iterations):
        data.fill_(1.0 + i % 8)
        began = time.perf_counter()
        dist.all_reduce(data)
        if i >= 0:
            elapsed[i] = time.perf_counter() - began
        data.sum()
    dist.all_reduce(elapsed, op=dist.ReduceOp.MIN)
    return elapsed.median().item() * 1e6


def run(rank, ranks, rounds, least, most, store):
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for size in SIZES:
        if not least <= size <= most:
            continue
        data = torch.zeros(size // 4)
        iterations = max(4, min(200, (64 << 20) // size))
        times = sorted(burst(data, iterations) for _ in range(rounds + 1))[:rounds]
        if rank == 0:
            print(f"{size:12d} {times[len(times) // 4]:10.2f} {times[len(times) // 2]:10.2f} "
                  f"{times[0]:10.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = [int(a) for a in sys.argv[1:]] + [None] * 4
    ranks, rounds = arguments[0] or 2, arguments[1] or 5
    least, most = arguments[2] or 0, arguments[3] or SIZES[-1]
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (ranks, rounds, least, most, os.path.join(directory, "store")), ranks)
