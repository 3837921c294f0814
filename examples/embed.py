#!/usr/bin/env python3
"""The reducer from Python, with the standard library alone: two processes train together, by ctypes.

    embed.py [--library PATH/libgradsync.so] [--ranks N] [--shard] [--fault interrupt|die]

Each rank fits y = weight · x + bias on samples of its own; gradients are memoryviews of the arena, so nothing is
copied. `--shard`: each rank gets the gradients of a part of the parameters, has the optimizer's state of that part,
updates it, and gets the rest from the other ranks. `--fault interrupt`: rank 0 is sent Ctrl-C while it waits for a rank that does not come; `--fault die`: the
last rank is killed in the middle of a step, and the others name it.
"""
import argparse
import ctypes
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time

NUM_INPUTS, NUM_SAMPLES, NUM_STEPS = 8, 16, 200
FP32, SECOND = 1, 1_000_000_000

EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int,
                            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
INTERRUPT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class Error(Exception):
    def __init__(self, name, text):
        super().__init__(f"{name}: {text}")
        self.name = name


class Library:
    """Functions by name; codes become exceptions. Sizes and 64 bits are passed as such: ctypes would take an int."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)  # gives up the interpreter's lock in each call: others may wait in it
        self.lib.gs_version.restype = ctypes.c_char_p
        self.lib.gs_ffi_code_name.restype = ctypes.c_char_p

    def function(self, name, restype=ctypes.c_int):
        function = getattr(self.lib, "gs_ffi_" + name)
        function.restype = restype
        return function

    def new(self, kind):
        handle = self.function(kind + "_new", ctypes.c_void_p)()
        if not handle:
            raise MemoryError(kind)
        return ctypes.c_void_p(handle)

    def call(self, name, handle, *arguments):
        code = self.function(name)(handle, *arguments)
        if code:
            text = ctypes.create_string_buffer(256)
            self.lib.gs_ffi_error(handle, text, ctypes.c_size_t(len(text)))
            raise Error(self.lib.gs_ffi_code_name(code).decode(), text.value.decode(errors="replace"))


class Exchange:
    """How bytes of each rank reach all: rank 0 collects them over sockets and hands them out."""

    def __init__(self, rank, ranks, descriptor):
        self.rank, self.num_ranks = rank, ranks
        self.failure = None
        self.peers = [socket.socket(fileno=fd) for fd in descriptor]
        self.callback = EXCHANGE(self.run)  # kept: the library calls it

    @staticmethod
    def receive(peer, size):
        data = b""
        while len(data) < size:
            part = peer.recv(size - len(data))
            if not part:
                raise ConnectionError("a rank left the exchange")
            data += part
        return data

    def meet(self, mine, left_ns):
        for peer in self.peers:
            peer.settimeout(max(left_ns / SECOND, 0.001))
        if self.rank:
            self.peers[0].sendall(mine)
            return self.receive(self.peers[0], len(mine) * self.num_ranks)
        everything = mine + b"".join(self.receive(peer, len(mine)) for peer in self.peers)
        for peer in self.peers:
            peer.sendall(everything)
        return everything

    # An exception would be swallowed by ctypes: it is kept, and the code says that there is one.
    def run(self, _ctx, _tag, _ranks, _num_ranks, mine, size, everything, left_ns):
        try:
            ctypes.memmove(everything, self.meet(ctypes.string_at(mine, size), left_ns), size * self.num_ranks)
            return 0
        except socket.timeout:
            return 4  # DEADLINE_EXCEEDED
        except Exception as error:  # pylint: disable=broad-except
            self.failure = error
            return 14  # UNAVAILABLE


class Part:
    """What a rank owns of the parameters: they lie in the arena, behind the gradients."""

    LANE = 1  # the reducer's is 0

    def __init__(self, one, offset):
        self.lib, self.one, lib = one.lib, one, one.lib
        self.offset = offset
        self.optimizer, self.gather = lib.new("optimizer"), lib.new("gather")
        lib.call("optimizer_set", self.optimizer, b"momentum", ctypes.c_double(0.5))
        lib.call("optimizer_set_shards", self.optimizer, one.shards, one.rank, 0)
        lib.call("optimizer_open", self.optimizer, b"sgd", one.params, one.device)

    def open(self):
        one = self.one
        self.lib.call("gather_open", self.gather, one.shards, one.comm, one.arena, self.offset, self.LANE,
                      ctypes.c_int64(20 * SECOND))
        data = self.lib.function("arena_data", ctypes.c_void_p)(one.arena)
        function = self.lib.function("shards_param_offset", ctypes.c_size_t)
        places = [data + self.offset.value + function(one.shards, ctypes.c_size_t(param)) for param in range(2)]
        self.places = (ctypes.c_void_p * 2)(*places)
        self.weight = (ctypes.c_float * NUM_INPUTS).from_address(places[0])
        self.bias = (ctypes.c_float * 1).from_address(places[1])

    def update(self, step):
        self.lib.call("optimizer_step", self.optimizer, self.places, self.one.reducer, ctypes.c_double(0.05),
                      ctypes.c_double(1))
        self.lib.call("gather_start", self.gather, ctypes.c_int64(step))

    def await_param(self, param):
        self.lib.call("gather_wait", self.gather, ctypes.c_size_t(param), ctypes.c_int64(60 * SECOND))

    def read(self):
        for param in range(2):
            self.await_param(param)
        return list(self.weight), self.bias[0]

    def describe(self):
        """Segments of this rank, and how large its state is."""
        count = self.lib.function("optimizer_num_segments", ctypes.c_size_t)(self.optimizer)
        sizes = []
        for segment in range(count):
            param, first, size = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
            self.lib.call("optimizer_segment", self.optimizer, ctypes.c_size_t(segment), ctypes.byref(param),
                          ctypes.byref(first), ctypes.byref(size))
            sizes.append(size.value)
        return f"owns {sum(sizes)} of {NUM_INPUTS + 1}"

    def close(self):
        for kind in ("gather", "optimizer"):
            self.lib.function(kind + "_free", None)(getattr(self, kind))


class Rank:
    def __init__(self, library, rank, ranks, exchange, shard):
        self.lib = lib = library
        self.rank, self.ranks, self.waits, self.interrupted = rank, ranks, False, False
        self.device, self.arena, self.comm = lib.new("device"), lib.new("arena"), lib.new("comm")
        self.reducer, self.params, self.plan = lib.new("reducer"), lib.new("params"), lib.new("plan")
        lib.call("device_open", self.device, b"cpu")
        shape = (ctypes.c_int64 * 1)(NUM_INPUTS)
        lib.call("params_add", self.params, b"weight", FP32, 1, shape)
        lib.call("params_add", self.params, b"bias", FP32, 0, None)
        none = ctypes.c_uint64(0)
        lib.call("plan_open", self.plan, self.params, none, none, None)
        lib.call("reducer_set_plan", self.reducer, self.params, self.plan)
        self.shards, self.part = lib.new("shards"), None
        if shard:
            lib.call("shards_open", self.shards, self.params, self.plan, ranks)
            lib.call("reducer_set_shards", self.reducer, self.shards)

        size = ctypes.c_size_t()
        lib.call("reducer_arena_bytes", self.reducer, self.device, ranks, ctypes.byref(size))
        if shard:
            self.part = Part(self, ctypes.c_size_t((size.value + 255) // 256 * 256))
            block = lib.function("shards_param_bytes", ctypes.c_size_t)(self.shards)
            size = ctypes.c_size_t(self.part.offset.value + block)
            lib.call("comm_set_lanes", self.comm, Part.LANE + 1)
        lib.call("arena_open", self.arena, self.device, size)
        self.callback = INTERRUPT(self.was_interrupted)
        signal.signal(signal.SIGINT, self.hear)
        lib.call("comm_set_rank", self.comm, rank, ranks)
        lib.call("comm_set_exchange", self.comm, exchange.callback, None)
        lib.call("comm_set_interrupt", self.comm, self.callback, None)
        lib.call("comm_open", self.comm, self.device, self.arena, ctypes.c_int64(20 * SECOND))
        lib.call("reducer_open", self.reducer, self.comm, self.arena, self.device, ctypes.c_int64(20 * SECOND))
        self.weight_grad, self.bias_grad = self.view(0, NUM_INPUTS), self.view(1, 1)
        if self.part:
            self.part.open()

    # While a call waits in C Python runs no handler of a signal, and an exception of one that runs inside a callback
    # would be lost: so the handler notes it, and the library, which asks each 100 ms, ends the wait.
    def hear(self, _signal, _frame):
        if not self.waits:
            raise KeyboardInterrupt
        self.interrupted = True

    def was_interrupted(self, _ctx):
        return 1 if self.interrupted else 0

    def view(self, param, count):
        """A gradient, as floats of the arena; the arena outlives it."""
        data = self.lib.function("arena_data", ctypes.c_void_p)(self.arena)
        offset = self.lib.function("reducer_grad_offset", ctypes.c_size_t)(self.reducer, ctypes.c_size_t(param))
        memory = (ctypes.c_float * count).from_address(data + offset)
        return memoryview(memory).cast("B").cast("f")

    def finish(self, seconds):
        self.waits = True
        try:
            self.lib.call("reducer_finish", self.reducer, ctypes.c_int64(seconds * SECOND))
        except Error:
            if not self.interrupted:
                raise
        finally:
            self.waits = False
        if self.interrupted:
            raise KeyboardInterrupt

    def backward(self, weight, bias, draw):
        """Gradients of the mean squared error, and the error. The truth is 1, 2, … 8 and −1."""
        grad, bias_grad, loss = [0.0] * NUM_INPUTS, 0.0, 0.0
        for _ in range(NUM_SAMPLES):
            x = [draw.uniform(-1, 1) for _ in range(NUM_INPUTS)]
            apart = bias + 1 + sum((weight[i] - (i + 1)) * x[i] for i in range(NUM_INPUTS))
            loss += apart * apart / NUM_SAMPLES
            bias_grad += 2 * apart / NUM_SAMPLES
            for i in range(NUM_INPUTS):
                grad[i] += 2 * apart * x[i] / NUM_SAMPLES
        self.weight_grad[:] = memoryview(struct.pack(f"{NUM_INPUTS}f", *grad)).cast("f")
        self.bias_grad[0] = bias_grad
        return loss

    def train(self, fault):
        weight, bias, loss, draw = [0.0] * NUM_INPUTS, 0.0, 0.0, random.Random(self.rank)
        last = self.rank == self.ranks - 1
        for step in range(NUM_STEPS):
            self.lib.call("reducer_begin", self.reducer, ctypes.c_int64(step))
            self.lib.call("reducer_begin_pass", self.reducer, ctypes.c_int64(NUM_SAMPLES))
            loss = self.backward(weight, bias, draw)
            if step == 10 and fault and last:
                if fault == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                print("waiting", flush=True)
                sys.stdin.read()  # until the parent has seen how rank 0 ended
                return None
            self.lib.call("reducer_mark", self.reducer, ctypes.c_size_t(1))
            self.lib.call("reducer_mark", self.reducer, ctypes.c_size_t(0))
            self.lib.call("reducer_end_pass", self.reducer)
            self.finish(60)
            if self.part:
                self.part.update(step)
                weight, bias = self.part.read()
                continue
            weight = [w - 0.1 * g for w, g in zip(weight, self.weight_grad)]
            bias -= 0.1 * self.bias_grad[0]
        if self.part:
            print(self.part.describe(), flush=True)
        return f"loss {loss:.4f} weight {weight[0]:.3f} to {weight[-1]:.3f} bias {bias:.3f}"

    def explain(self):
        kind, bucket, step = ctypes.c_int(), ctypes.c_int(), ctypes.c_int64()
        ranks = (ctypes.c_int * 16)()
        count = self.lib.function("comm_failure")(self.comm, ctypes.byref(kind), ctypes.byref(step),
                                                  ctypes.byref(bucket), ranks, 16)
        return f"kind {kind.value} step {step.value} accused {list(ranks[:count])}"

    def close(self):
        self.weight_grad.release()
        self.bias_grad.release()
        if self.part:
            self.part.close()
        for kind in ("reducer", "comm", "arena", "shards", "plan", "params", "device"):
            self.lib.function(kind + "_free", None)(getattr(self, kind))


def run_rank(library, rank, ranks, descriptors, fault, shard):
    lib = Library(library)
    lines = []
    keep_log = LOG(lambda _ctx, level, line: lines.append((level, line)))  # a program's own log would be here
    lib.function("log_to", None)(keep_log, None)
    exchange = Exchange(rank, ranks, descriptors)
    one = Rank(lib, rank, ranks, exchange, shard)
    code = 0
    try:
        print("result", one.train(fault), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        code = 130
    except Error as error:
        print(f"failed {error}; {one.explain()}", flush=True)
        code = 1
    one.close()
    lib.function("log_to", None)(None, None)
    return code


def start_ranks(arguments):
    """One process for each rank, and the sockets of their exchange between rank 0 and the others."""
    pairs = [socket.socketpair() for _ in range(arguments.ranks - 1)]
    children = []
    for rank in range(arguments.ranks):
        ends = [pair[0] for pair in pairs] if rank == 0 else [pairs[rank - 1][1]]
        numbers = [end.fileno() for end in ends]
        command = [sys.executable, __file__, "--library", arguments.library, "--ranks", str(arguments.ranks),
                   "--rank", str(rank), "--sockets", ",".join(map(str, numbers)), "--fault", arguments.fault]
        command += ["--shard"] * arguments.shard
        children.append(subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True))
    for pair in pairs:
        for end in pair:
            end.close()
    return children


def run_parent(arguments):
    children = start_ranks(arguments)
    if arguments.fault == "interrupt":
        assert children[-1].stdout.readline() == "waiting\n"
        time.sleep(0.3)  # rank 0 waits in C by now; earlier is as good
        began = time.monotonic()
        children[0].send_signal(signal.SIGINT)
        children[0].wait(30)
        print(f"Ctrl-C was heard after {time.monotonic() - began:.1f} s")
    outputs = [child.communicate(timeout=120)[0].strip().replace("\n", "; ") for child in children]
    for rank, (child, output) in enumerate(zip(children, outputs)):
        print(f"rank {rank}: exit {child.returncode}: {output}")
    if arguments.fault == "":
        if any(child.returncode for child in children):
            return 1
        same = len({output.split("loss")[-1].split(" ", 2)[2] for output in outputs}) == 1  # losses are their own
        print(f"the same on {arguments.ranks} ranks" if same else "ranks differ")
        return 0 if same else 1
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="libgradsync.so.1")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--fault", choices=("", "interrupt", "die"), default="")
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--sockets", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank < 0:
        sys.exit(run_parent(arguments))
    descriptors = [int(number) for number in arguments.sockets.split(",") if number]
    sys.exit(run_rank(arguments.library, arguments.rank, arguments.ranks, descriptors, arguments.fault,
                      arguments.shard))


if __name__ == "__main__":
    main()
