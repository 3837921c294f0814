#!/usr/bin/env python3
"""PyTorch training GPT-2 on one device, for the ratio: the model, the tokens of a step and the arithmetic of
our own run.

bf16 autocast over fp32 parameters, torch.compile, scaled_dot_product_attention (flash), fused AdamW, gradient
norm clipped to 1; where this torch has none of one of them the plain way is taken and said. Tokens are random
and on the device before a step: no loader is measured. Prints one JSON line; "not installed" without torch.

    peer_gpt2.py [--model 124M|774M|tiny] [--positions 1024] [--micro-batch 32] [--tokens-per-step 524288]
                 [--steps 20] [--warmup 5] [--device cuda|cpu] [--vocab 50304] [--no-compile]
"""
import argparse
import contextlib
import inspect
import json
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    print(json.dumps({"peer": "pytorch", "error": "not installed"}))
    sys.exit(0)

SIZES = {  # layers, heads, channels
    "tiny": (2, 2, 64),
    "124M": (12, 12, 768),
    "350M": (24, 16, 1024),
    "774M": (36, 20, 1280),
    "1558M": (48, 25, 1600),
}
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(channels)
        self.c_attn = nn.Linear(channels, 3 * channels)
        self.attn_proj = nn.Linear(channels, channels)
        self.ln_2 = nn.LayerNorm(channels)
        self.c_fc = nn.Linear(channels, 4 * channels)
        self.mlp_proj = nn.Linear(4 * channels, channels)

    def attend(self, x):
        batch, positions, channels = x.shape
        q, k, v = self.c_attn(x).split(channels, dim=2)
        q, k, v = (t.view(batch, positions, self.heads, channels // self.heads).transpose(1, 2) for t in (q, k, v))
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(channels // self.heads)
            mask = torch.ones(positions, positions, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.attn_proj(y.transpose(1, 2).reshape(batch, positions, channels))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, size, vocab, positions):
        super().__init__()
        layers, heads, channels = SIZES[size]
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Embedding(positions, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)
        for name, param in self.named_parameters():
            if param.dim() == 2:
                nn.init.normal_(param, std=0.02 / (math.sqrt(2 * layers) if "proj" in name else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(param)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def make_optimizer(model, on_gpu):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    fused = on_gpu and "fused" in inspect.signature(torch.optim.AdamW).parameters
    options = {"fused": True} if fused else {}
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, **options), fused


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(SIZES), default="124M")
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--tokens-per-step", type=int, default=524288)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    passed = options.micro_batch * options.positions
    if options.tokens_per_step % passed:
        parser.error(f"{options.tokens_per_step} tokens are not a multiple of {passed} for a micro-batch")
    options.passes = options.tokens_per_step // passed
    return options


def main():
    options = parse()
    on_gpu = options.device.startswith("cuda")
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    model = Gpt2(options.model, options.vocab, options.positions).to(options.device)
    optimizer, fused = make_optimizer(model, on_gpu)
    compiled = hasattr(torch, "compile") and not options.no_compile
    run = torch.compile(model) if compiled else model
    shape = (options.passes, options.micro_batch, options.positions + 1)
    stream = torch.randint(options.vocab, shape, device=options.device)
    cast = torch.autocast("cuda" if on_gpu else "cpu", dtype=torch.bfloat16)

    def step():
        total = torch.zeros((), device=options.device)
        for tokens in stream:
            with cast if on_gpu or HAS_SDPA else contextlib.nullcontext():
                loss = run(tokens[:, :-1], tokens[:, 1:]) / options.passes
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    seconds, loss = [], None
    for i in range(options.warmup + options.steps):
        begin = time.perf_counter()
        loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        if i >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    rates = [options.tokens_per_step / s for s in seconds]
    print(json.dumps({
        "peer": "pytorch",
        "model": options.model,
        "positions": options.positions,
        "micro_batch": options.micro_batch,
        "tokens_per_step": options.tokens_per_step,
        "tokens_per_second": round(statistics.median(rates), 1),
        "least": round(min(rates), 1),
        "most": round(max(rates), 1),
        "steps": options.steps,
        "loss": round(float(loss), 4),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "compiled": compiled,
        "sdpa": HAS_SDPA,
        "fused_adamw": fused,
        "bf16": bool(on_gpu or HAS_SDPA),
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }))


if __name__ == "__main__":
    main()
