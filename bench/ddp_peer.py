#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel over gloo in the same loop as bench_ddp, for the ratio.

ddp_peer.py [ROUNDS [STEPS]]; rows as bench_ddp's; prints "not installed" without torch.
"""
import os
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
except ImportError:
    print("# DDP: not installed (this python has no torch)")
    sys.exit(0)

EXTRA = 16


class Small(nn.Module):
    """1,000 tensors of 1 KiB, each times an input."""

    def __init__(self):
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(256)) for _ in range(1000))

    def forward(self, x):
        return torch.stack([(tensor * x).sum() for tensor in self.tensors]).sum()


class Mlp(nn.Module):
    """25.2 M parameters."""

    def __init__(self):
        super().__init__()
        dims = [1024, 3072, 3072, 3072, 1024, 10]
        layers = []
        for num_in, num_out in zip(dims, dims[1:]):
            layers += [nn.Linear(num_in, num_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.register_buffer("targets", torch.zeros(32, dtype=torch.long))

    def forward(self, x):
        return nn.functional.cross_entropy(self.layers(x), self.targets)


class WithExtra(nn.Module):
    """16 parameters of 2 KiB more; used, or not."""

    def __init__(self, model, used):
        super().__init__()
        self.model, self.used = model, used
        self.extra = nn.ParameterList(nn.Parameter(torch.zeros(512)) for _ in range(EXTRA))

    def forward(self, x):
        loss = self.model(x)
        return loss + sum(extra.sum() for extra in self.extra) if self.used else loss


# name: (options of DDP, drops gradients instead of zeroing them, extra parameters, which are used)
VARIANTS = {
    "copies": (dict(), True, False, False),
    "views": (dict(gradient_as_bucket_view=True), False, False, False),
    "all-used": (dict(gradient_as_bucket_view=True), False, True, True),
    "some-unused": (dict(gradient_as_bucket_view=True, find_unused_parameters=True), False, True, False),
}


def block(module, parameters, x, steps, drops):
    dist.barrier()
    times = torch.zeros(steps, dtype=torch.float64)
    for i in range(steps):
        began = time.perf_counter()
        for parameter in parameters:
            if drops:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        module(x).backward()
        times[i] = (time.perf_counter() - began) * 1e6
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times


def run(rank, ranks, rounds, steps, store):
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for name, make, x in (("small-1000", Small, torch.randn(256)), ("mlp-25m", Mlp, torch.randn(32, 1024))):
        for variant, (options, drops, extra, used) in VARIANTS.items():
            local, reduced = (WithExtra(make(), used) if extra else make() for _ in range(2))
            ddp = nn.parallel.DistributedDataParallel(reduced, **options)
            lists = [list(module.parameters()) for module in (local, ddp)]
            # The second step has rebuilt the buckets: what it costs more is the stall.
            warm = block(ddp, lists[1], x, 6, drops)
            stall = (warm[1] - warm[2:].median()).item()
            block(local, lists[0], x, 3, drops)
            for _ in range(rounds):
                alone = block(local, lists[0], x, steps, drops).median().item()
                together = block(ddp, lists[1], x, steps, drops).median().item()
                if rank == 0:
                    print(f"{name} {variant} {alone:.1f} {together:.1f} {stall:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = [int(a) for a in sys.argv[1:]] + [None] * 2
    rounds, steps = arguments[0] or 5, arguments[1] or 20
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (2, rounds, steps, os.path.join(directory, "store")), 2)
