#!/usr/bin/env python3
"""Trains a GPT with PyTorch on the CPU and prints tokens per second: the yardstick for
examples/nanogpt_cpu.plan (--shape cpu) and examples/nanogpt_char.plan (--shape char). Same model
(tied head, learned positions, layer norms, no biases, exact GELU), same AdamW, f32.

    python bench/torch_gpt.py --shape cpu --threads 2 [--compile] [--json]

Own code; the shapes are those of nanoGPT. Each step is timed alone, after --warmup steps; the
median counts.
"""
import argparse
import json
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {
    "cpu": dict(layers=4, heads=4, model=128, seq=64, batch=12),
    "char": dict(layers=6, heads=6, model=384, seq=256, batch=8),
}
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.99), 1e-8, 0.1, 1.0


class Block(nn.Module):
    def __init__(self, model, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(model, bias=False)
        self.qkv = nn.Linear(model, 3 * model, bias=False)
        self.out = nn.Linear(model, model, bias=False)
        self.norm_2 = nn.LayerNorm(model, bias=False)
        self.up = nn.Linear(model, 4 * model, bias=False)
        self.down = nn.Linear(4 * model, model, bias=False)

    def forward(self, x):
        batch, seq, model = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(model, dim=2)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, seq, model))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, layers, heads, model, seq, vocab):
        super().__init__()
        self.table = nn.Embedding(vocab, model)
        self.positions = nn.Embedding(seq, model)
        self.blocks = nn.ModuleList(Block(model, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(model, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if deep else 0.02)

    def forward(self, tokens, targets):
        x = self.table(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.table.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step, cosine, warmup=100, floor=0.1):
    if step < warmup:
        return LR * step / warmup
    progress = min(1.0, (step - warmup) / (cosine - warmup))
    return LR * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--steps", type=int, default=50, help="timed steps")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    parser.add_argument("--vocab", type=int, default=65)
    parser.add_argument("--data", help="a file whose bytes are tokens; default: random tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain-adamw", action="store_true", help="not PyTorch's fused AdamW")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    shape = dict(SHAPES[args.shape])
    batch, seq = shape.pop("batch"), shape["seq"]
    if args.data:
        data = torch.frombuffer(bytearray(open(args.data, "rb").read()), dtype=torch.uint8).long()
    else:
        data = torch.randint(args.vocab, (1 << 20,))
    model = GPT(vocab=args.vocab, **shape)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            dict(params=[w for w in weights if w.dim() >= 2], weight_decay=DECAY),
            dict(params=[w for w in weights if w.dim() < 2], weight_decay=0.0),
        ],
        lr=LR, betas=BETAS, eps=EPS, fused=not args.plain_adamw,
    )
    run = torch.compile(model) if args.compile else model

    seconds, losses = [], []
    for step in range(1, args.warmup + args.steps + 1):
        start = time.perf_counter()
        offsets = torch.randint(len(data) - seq, (batch,))
        windows = torch.stack([data[o : o + seq + 1] for o in offsets])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, 2000 if args.shape == "cpu" else 5000)
        optimizer.zero_grad(set_to_none=True)
        loss = run(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        losses.append(loss.item())
        if step > args.warmup:
            seconds.append(time.perf_counter() - start)

    result = dict(
        shape=args.shape, mode="compile" if args.compile else "eager", threads=args.threads,
        torch=torch.__version__, parameters=sum(w.numel() for w in weights), loss=losses[-1],
        ms_per_step=1e3 * statistics.median(seconds),
        tokens_per_s=batch * seq / statistics.median(seconds),
    )
    if args.json:
        print(json.dumps(result))
    else:
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in result.items()))


if __name__ == "__main__":
    main()
