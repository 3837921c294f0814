#!/usr/bin/env python3
"""PyTorch's ways of sharded training over gloo in the same step as bench_sharded, for the ratio.

sharded_peer.py [ROUNDS [STEPS]]: fairscale's ShardedDataParallel with OSS (its own default settings), torch's
ZeroRedundancyOptimizer with DDP, DDP with Adam on every rank, and the passes alone; rows: variant, µs of a step
(medians of a round), MiB that a rank holds beyond the process with its model. Prints "not installed" for what
is not there.
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
    print("# torch: not installed")
    sys.exit(0)
try:
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS
except ImportError:
    ShardedDataParallel = None
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


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


def fairscale(model):
    optimizer = OSS(model.parameters(), optim=torch.optim.Adam, lr=1e-3)
    return ShardedDataParallel(model, optimizer), optimizer


def zero(model):
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model, ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, parameters_as_bucket_view=True, lr=1e-3)


def ddp(model):
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def pss_mib():
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def block(model, optimizer, x, steps):
    times = torch.zeros(steps, dtype=torch.float64)
    for i in range(steps):
        dist.barrier()
        began = time.perf_counter()
        model.zero_grad()
        model(x).backward()
        if optimizer:
            optimizer.step()
        times[i] = (time.perf_counter() - began) * 1e6
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times


def run(rank, ranks, rounds, steps, store):
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    ways = {"fairscale": fairscale, "zero": zero, "ddp": ddp, "passes": lambda model: (model, None)}
    if ShardedDataParallel is None:
        del ways["fairscale"]
        if rank == 0:
            print("# fairscale: not installed")
    x = torch.randn(32, 1024)
    made, held = {}, {}
    for name, make in ways.items():
        model = Mlp()
        model(x).backward()  # what the libraries take for themselves
        model.zero_grad(set_to_none=True)
        before = pss_mib() - sum(p.numel() for p in model.parameters()) * 4 / 2**20
        made[name] = make(model)
        block(*made[name], x, 3)
        held[name] = pss_mib() - before
    for _ in range(rounds):
        for name, (model, optimizer) in made.items():
            micros = block(model, optimizer, x, steps).median().item()
            if rank == 0:
                print(f"{name} step {micros:.1f} held {held[name]:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = [int(a) for a in sys.argv[1:]] + [None] * 2
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (2, arguments[0] or 5, arguments[1] or 10, os.path.join(directory, "store")), 2)
