#!/usr/bin/env python3
"""Makes the golden files: for three tiny models, weights, tokens and targets (X.in.safetensors), and
what PyTorch makes of them (X.out.safetensors): loss, logits, and the gradient of every weight as
grad.NAME. Written in plain tensor operations with none of planc's code, in f64 and rounded to f32
at the end, so that its own error is far below the 1e-5 that planc must meet.

    python tests/golden/make_golden.py      (needs torch 2 and safetensors; writes beside itself)

The files are committed, so running the tests needs neither. Weight names are planc's: the path of
module instances, with a leading dim for the layers. tests/golden/X.plan are the same models.
"""
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
BATCH, SEQ, VOCAB, LAYERS = 2, 8, 32, 2
MODEL, HEADS, KV, WIDTH = 16, 4, 2, 4


class Weights:
    """Random weights made as they are asked for; f32 numbers held as f64 leaves."""

    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.all = {}

    def __call__(self, name, *shape, near=0.0, spread=0.3):
        if name not in self.all:
            values = near + spread * torch.randn(shape, generator=self.random)
            self.all[name] = values.float().double().requires_grad_()
        return self.all[name]


def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * scale + bias


def rms_norm(x, scale):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * scale


def rope(x, theta):
    """x[batch, seq, head, width]; element i turns with element i + width/2."""
    half = x.shape[-1] // 2
    frequency = theta ** (-2.0 * torch.arange(half, dtype=x.dtype) / x.shape[-1])
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * frequency
    a, b = x[..., :half], x[..., half:]
    cos, sin = torch.cos(angle), torch.sin(angle)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def attend(q, k, v):
    """Causal attention; query head h reads key head h // (heads / kv)."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    scores = torch.einsum("bihw,bjhw->bhij", q, k) / math.sqrt(q.shape[-1])
    future = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), diagonal=1)
    p = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
    return torch.einsum("bhij,bjhw->bihw", p, v)


def mean_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def norm_scale(w, name, *shape):
    return w(name, *shape, near=1.0, spread=0.1)


def gpt2(w, tokens, targets):
    ffn = 4 * MODEL
    table = w("table", VOCAB, MODEL)
    x = table[tokens] + w("positions", SEQ, MODEL)
    for i in range(LAYERS):
        def of(name, *shape, **kw):
            return w("layer." + name, LAYERS, *shape, **kw)[i]

        def norm(x, name):
            return layer_norm(x, of(name + ".scale", MODEL, near=1.0, spread=0.1),
                              of(name + ".shift", MODEL, spread=0.1))

        n = norm(x, "layernorm")
        q, k, v = (torch.einsum("bsm,mhw->bshw", n, of("attention.w" + p, MODEL, HEADS, WIDTH))
                   + of("attention.b" + p, HEADS, WIDTH, spread=0.1) for p in "qkv")
        x = x + torch.einsum("bshw,hwm->bsm", attend(q, k, v),
                             of("attention.wo", HEADS, WIDTH, MODEL))
        x = x + of("attention.bo", MODEL, spread=0.1)
        h = norm(x, "layernorm_2") @ of("gelu_mlp.up", MODEL, ffn)
        h = h + of("gelu_mlp.up_bias", ffn, spread=0.1)
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h ** 3)))
        x = x + h @ of("gelu_mlp.down", ffn, MODEL) + of("gelu_mlp.down_bias", MODEL, spread=0.1)
    x = layer_norm(x, norm_scale(w, "layernorm.scale", MODEL), w("layernorm.shift", MODEL, spread=0.1))
    logits = x @ table.T
    return mean_loss(logits, targets), logits


def grouped_attention(x, of, theta):
    q = torch.einsum("bsm,mhw->bshw", x, of("attention.wq", MODEL, HEADS, WIDTH))
    k = torch.einsum("bsm,mhw->bshw", x, of("attention.wk", MODEL, KV, WIDTH))
    v = torch.einsum("bsm,mhw->bshw", x, of("attention.wv", MODEL, KV, WIDTH))
    return torch.einsum("bshw,hwm->bsm", attend(rope(q, theta), rope(k, theta), v),
                        of("attention.wo", HEADS, WIDTH, MODEL))


def llama(w, tokens, targets):
    ffn = 40
    x = w("table", VOCAB, MODEL)[tokens]
    for i in range(LAYERS):
        def of(name, *shape, **kw):
            return w("layer." + name, LAYERS, *shape, **kw)[i]

        n = rms_norm(x, of("norm.scale", MODEL, near=1.0, spread=0.1))
        x = x + grouped_attention(n, of, theta=500000.0)
        n = rms_norm(x, of("norm_2.scale", MODEL, near=1.0, spread=0.1))
        h = F.silu(n @ of("mlp.gate", MODEL, ffn)) * (n @ of("mlp.up", MODEL, ffn))
        x = x + h @ of("mlp.down", ffn, MODEL)
    x = rms_norm(x, norm_scale(w, "norm.scale", MODEL))
    logits = x @ w("output", MODEL, VOCAB)
    return mean_loss(logits, targets), logits


def moe(w, tokens, targets):
    """Mixtral's: softmax over all experts, the best two, their gates normalised to one."""
    ffn, experts, top, balance = 24, 4, 2, 0.02
    x = w("table", VOCAB, MODEL)[tokens]
    penalty = 0.0
    for i in range(LAYERS):
        def of(name, *shape, **kw):
            return w("layer." + name, LAYERS, *shape, **kw)[i]

        n = rms_norm(x, of("norm.scale", MODEL, near=1.0, spread=0.1))
        x = x + grouped_attention(n, of, theta=1000000.0)
        n = rms_norm(x, of("norm_2.scale", MODEL, near=1.0, spread=0.1)).flatten(0, 1)
        p = torch.softmax(n @ of("moe.router", MODEL, experts), dim=-1)
        best, choice = p.sort(dim=-1, descending=True)
        # f32 and f64 must choose alike.
        assert (best[:, top - 1] - best[:, top]).min() > 1e-3, "too close a choice: another seed"
        gate = best[:, :top] / best[:, :top].sum(-1, keepdim=True)
        y = torch.zeros_like(n)
        counts = torch.zeros(experts, dtype=n.dtype)
        for e in range(experts):
            h = F.silu(n @ of("moe.gate", experts, MODEL, ffn)[e])
            h = h * (n @ of("moe.up", experts, MODEL, ffn)[e])
            sent = choice[:, :top] == e
            y = y + (gate * sent).sum(-1, keepdim=True) * (h @ of("moe.down", experts, ffn, MODEL)[e])
            counts[e] = sent.sum()
        load = experts / (top * len(n)) * counts
        penalty = penalty + balance * (load * p.mean(0)).sum()
        x = x + y.view_as(x)
    x = rms_norm(x, norm_scale(w, "norm.scale", MODEL))
    logits = x @ w("output", MODEL, VOCAB)
    return mean_loss(logits, targets) + penalty, logits


def make(name, model, seed):
    weights = Weights(seed)
    random = torch.Generator().manual_seed(seed + 1)
    stream = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=random)
    tokens, targets = stream[:, :-1], stream[:, 1:].clone()
    targets[0, 2] = targets[1, 5] = targets[1, 6] = -1  # no token to predict here
    loss, logits = model(weights, tokens, targets)
    loss.backward()
    given = {k: v.detach() for k, v in weights.all.items()}
    expected = {"loss": loss.detach(), "logits": logits.detach()}
    expected.update({"grad." + k: v.grad for k, v in weights.all.items()})
    given = {k: v.float().contiguous() for k, v in given.items()}
    given.update(tokens=tokens.int().contiguous(), targets=targets.int().contiguous())
    save_file(given, HERE / f"{name}.in.safetensors")
    save_file({k: v.float().contiguous() for k, v in expected.items()},
              HERE / f"{name}.out.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {len(weights.all)} weights")


if __name__ == "__main__":
    make("gpt2", gpt2, 1)
    make("llama", llama, 2)
    make("moe", moe, 3)
