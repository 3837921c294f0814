#!/usr/bin/env python3
"""PyTorch's own powerSGD_hook on the gradients of bench_powersgd, for the ratio.

powersgd_peer.py [RANKS [STEPS [BUCKET_MIB]]]; rows as bench_powersgd's; prints "not installed" without torch.

DistributedDataParallel over gloo calls the hook with its buckets. Its collectives are run to their end where the
hook posts them, so that all that it computes is computed by the calling thread, within the hook's call: that
thread's CPU time, less that of the collectives, is what is printed. Gradients are filled, not computed.
"""
import os
import sys
import tempfile
import time
import warnings

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
except ImportError:
    print("# PyTorch: not installed (this python has no torch)")
    sys.exit(0)

DIMS = [1024, 3072, 3072, 3072, 1024, 10]


class Collectives:
    """Stands for torch.distributed in the hook's module: all_reduce waits, and its time is left out."""

    def __init__(self):
        self.seconds = 0.0

    def __getattr__(self, name):
        return getattr(dist, name)

    def all_reduce(self, tensor, group=None, async_op=False):
        began = time.thread_time()
        dist.all_reduce(tensor, group=group)
        self.seconds += time.thread_time() - began
        return Done(tensor)


class Done:
    def __init__(self, tensor):
        self.tensor = tensor

    def get_future(self):
        future = torch.futures.Future()
        future.set_result([self.tensor])
        return future


class Mlp(nn.Module):
    """25.2 M parameters. Its gradients are given: the backward pass costs nothing."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(i, o) for i, o in zip(DIMS, DIMS[1:])))

    def forward(self, x):
        return sum((p * 0.001).sum() for p in self.layers.parameters()) * x


def run(rank, ranks, steps, bucket_mib, store):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    collectives = Collectives()
    powersgd.dist = collectives
    for matrix_rank in (1, 2):
        torch.manual_seed(1)
        ddp = nn.parallel.DistributedDataParallel(Mlp(), bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True)
        state = powersgd.PowerSGDState(None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=2)
        spent = [0.0]

        def timed(state, bucket):
            bucket.buffer().normal_()
            began, before = time.thread_time(), collectives.seconds
            future = powersgd.powerSGD_hook(state, bucket)
            future.wait()
            spent[0] += time.thread_time() - began - (collectives.seconds - before)
            return future

        ddp.register_comm_hook(state, timed)
        x = torch.ones(())
        for step in range(5 + steps):
            dist.barrier()
            spent[0] = 0.0
            ddp(x).backward()
            seconds = torch.tensor([spent[0]], dtype=torch.float64)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if rank == 0 and step >= 5:
                print(f"mlp-25m {matrix_rank} {ranks} {seconds.item() * 1e6:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = [int(a) for a in sys.argv[1:]] + [None] * 3
    ranks, steps, bucket_mib = arguments[0] or 2, arguments[1] or 10, arguments[2] or 25
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (ranks, steps, bucket_mib, os.path.join(directory, "store")), ranks)
