#!/usr/bin/env python3
"""What planc makes of one GPU. Usage: gpu.py PLANC PLANRUN KERNELS_BENCH DATA [--steps N] [--peak TFLOPS].

Trains Llama-like models of one rank in bf16 and says the model FLOP utilisation of a step: 6 FLOPs a
weight and token, and attention's 6 x layers x tokens x width a token (causal), over the time and the
peak (989 TFLOP/s: a dense H100 or H200). Then the kernels at Llama 3 8B's shapes, and where PyTorch is
installed its own on the same shapes beside them: matmul and scaled_dot_product_attention. Prints
Markdown tables, with the GPU's name."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

PLAN = """import "std/transformer.plan"
model m {{
  dim batch = {batch}, seq = {seq}, vocab = 32000
  dim model = {width}, head = {heads}, kv = {kv}, width = 128, ffn = {ffn}
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.02)
  x[batch, seq, model] = table[tokens]
  repeat layer = {layers} {{
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }}
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}}
plan p of m {{
  {splits}
  precision bf16
  optimizer adamw {{ lr 1e-4, clip 1 }}
}}
"""
SHAPES = [
    {"batch": 1, "seq": 4096, "width": 4096, "heads": 32, "kv": 8, "ffn": 14336, "layers": 8},
    {"batch": 4, "seq": 4096, "width": 2048, "heads": 16, "kv": 8, "ffn": 8192, "layers": 16},
    {"batch": 1, "seq": 16384, "width": 4096, "heads": 32, "kv": 8, "ffn": 14336, "layers": 4},
]


def flops_a_token(s):
    """Of the model, forward and backward: nothing recomputed counts."""
    attention = s["width"] * 128 * (2 * s["heads"] + 2 * s["kv"])
    weights = s["layers"] * (attention + 3 * s["width"] * s["ffn"]) + 32000 * s["width"]
    return 6 * weights + 6 * s["layers"] * s["seq"] * s["heads"] * 128


def train(arguments, shape, folder, splits=""):
    plan, program, log = (os.path.join(folder, name) for name in ("p.plan", "p.planx", "log.jsonl"))
    with open(plan, "w") as file:
        file.write(PLAN.format(splits=splits, **shape))
    if os.path.exists(log):
        os.remove(log)
    subprocess.run([arguments.planc, "compile", plan, "-o", program], check=True)
    subprocess.run([arguments.planrun, "run", program, "--device", "cuda", "--data", arguments.data,
                    "--steps", str(arguments.steps), "--log", log], check=True, stdout=subprocess.DEVNULL)
    with open(log) as file:
        speeds = [json.loads(line)["tokens_per_s"] for line in file]
    return statistics.median(speeds[len(speeds) // 2:])


def torch_kernels():
    """FLOP/s of PyTorch's own, by the names of kernels_bench; nothing without PyTorch."""
    try:
        import torch
        from torch.nn import functional
    except ImportError:
        return {}

    def rate(flops, run):
        for _ in range(5):
            run()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(20):
            run()
        end.record()
        torch.cuda.synchronize()
        return flops / (begin.elapsed_time(end) / 20 * 1e-3)

    def bf16(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, up = bf16(4096, 4096), bf16(4096, 14336)
    q = bf16(1, 32, 4096, 128).requires_grad_()
    k, v = (bf16(1, 8, 4096, 128).requires_grad_() for _ in range(2))
    scores = 2.0 * 32 * 4096 * 4096 * 128

    def attend():
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    out, dout = attend(), bf16(1, 32, 4096, 128)
    return {
        "gemm/project": rate(2 * 4096**3, lambda: x @ x),
        "gemm/up": rate(2 * 4096 * 4096 * 14336, lambda: x @ up),
        "attend/causal": rate(scores, attend),
        "attend_grad/causal": rate(2.5 * scores, lambda: torch.autograd.grad(
            out, (q, k, v), dout, retain_graph=True)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("planc", "planrun", "kernels_bench", "data"):
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peak", type=float, default=989)
    arguments = parser.parse_args()
    bench = subprocess.run([arguments.kernels_bench, "--device=cuda", "--benchmark_format=json",
                            "--benchmark_min_time=0.2"], stdout=subprocess.PIPE, text=True)
    if bench.returncode != 0:
        sys.exit(1)  # it has said why
    name = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          stdout=subprocess.PIPE, text=True).stdout.splitlines()[0]
    print(f"{name}\n\n| width | layers | tokens | tokens/s | TFLOP/s | of the peak |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            speed = train(arguments, shape, folder)
            tera = speed * flops_a_token(shape) * 1e-12
            print(f"| {shape['width']} | {shape['layers']} | {shape['batch']} x {shape['seq']} "
                  f"| {speed:.0f} | {tera:.0f} | {100 * tera / arguments.peak:.1f} % |", flush=True)
    others = torch_kernels()
    print("\n| kernel | us | TFLOP/s or GB/s | PyTorch's TFLOP/s | share |\n| --- | --- | --- | --- | --- |")
    for row in json.loads(bench.stdout)["benchmarks"]:
        kernel = re.sub("/real_time$", "", row["name"])
        flops = row.get("GFLOP/s")
        figure = f"{flops * 1e-3:.0f} TFLOP/s" if flops else f"{row['GB/s']:.0f} GB/s"
        other = others.get(kernel)
        share = f"{other * 1e-12:.0f} | {100 * flops * 1e9 / other:.0f} %" if other else " | "
        print(f"| {kernel} | {row['real_time'] / 20:.1f} | {figure} | {share} |")


if __name__ == "__main__":
    main()
