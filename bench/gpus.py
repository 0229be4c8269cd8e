#!/usr/bin/env python3
"""What splits cost between the GPUs of one machine. Usage: gpus.py PLANC PLANRUN DATA [--gpus 8]
[--steps N].

Trains one Llama-like model in bf16 on one GPU, and on all of them split in several ways, ranks being
threads of one process; says tokens/s and the share of that many times one GPU's. Prints a Markdown
table."""

import argparse
import tempfile

from gpu import train

SHAPE = {"batch": 8, "seq": 4096, "width": 4096, "heads": 32, "kv": 8, "ffn": 14336, "layers": 8}


def splits(n):
    """By name, what a plan over n GPUs says."""
    return {
        f"data {n}, ZeRO-1": f"grid data {n}\n  split batch over data\n  shard optimizer over data",
        f"data {n}, ZeRO-3": f"grid data {n}\n  split batch over data\n  shard weights over data",
        f"tensor {n}, sequence parallelism":
            f"grid tensor {n}\n  split head, ffn, vocab over tensor\n  split seq over tensor by gather",
        f"data 2, tensor {n // 2}":
            f"grid data 2, tensor {n // 2}\n  split batch over data\n  split head, ffn, vocab over tensor",
        f"pipeline {n // 2} (1F1B), data 2":
            f"grid pipe {n // 2}, data 2\n  split layer over pipe by one_f_one_b\n"
            "  split batch over data\n  microbatches 8",
        f"context {n} (ring)": f"grid context {n}\n  split seq over context by ring",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("planc", "planrun", "data"):
        parser.add_argument(name)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # A GPU's share of the batch, so that one has what each has later.
        one = train(arguments, {**SHAPE, "batch": 1}, folder)
        print(f"| split | tokens/s | of {arguments.gpus} x one GPU |\n| --- | --- | --- |")
        print(f"| one GPU | {one:.0f} | |", flush=True)
        for name, text in splits(arguments.gpus).items():
            # Microbatches are of `batch` samples each.
            shape = {**SHAPE, "batch": 2} if "microbatches" in text else SHAPE
            speed = train(arguments, shape, folder, text)
            print(f"| {name} | {speed:.0f} | {100 * speed / (arguments.gpus * one):.0f} % |", flush=True)


if __name__ == "__main__":
    main()
