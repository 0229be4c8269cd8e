#!/usr/bin/env python3
"""Trains the same model on the same shapes with planrun, PyTorch eager and torch.compile, in turns in
one run, and prints tokens per second with ratios.

    python bench/train.py --build build/release [--shape cpu|char] [--threads 2] [--rounds 3]

Needs a Python with torch 2 (run this script with it), and a built planc and planrun. The turns are
interleaved, so that a change of the machine's load hits all alike; of each, the best round counts.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = {"cpu": 100, "char": 15}


def planrun(build, shape, threads, data, folder):
    planx, log = folder / f"{shape}.planx", folder / "log.jsonl"
    subprocess.run([build / "planc", "compile", ROOT / f"examples/nanogpt_{shape}.plan", "-o", planx],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run([build / "planrun", "run", planx, "--data", data, "--steps", str(STEPS[shape] + 5),
                    "--threads", str(threads), "--log", log], check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line) for line in log.read_text().splitlines()][5:]
    return statistics.median(step["tokens_per_s"] for step in steps)


def torch(shape, threads, data, *options):
    out = subprocess.run([sys.executable, ROOT / "bench/torch_gpt.py", "--shape", shape, "--threads",
                          str(threads), "--data", data, "--steps", str(STEPS[shape]), "--json", *options],
                         check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--shape", choices=STEPS, action="append", help="default: both")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # Tokens below both models' vocabulary of 65.
        data = folder / "data.bin"
        data.write_bytes(b"".join(((i * i // 7 + i) % 65).to_bytes(2, "little") for i in range(1 << 19)))
        raw = folder / "data.raw"
        raw.write_bytes(data.read_bytes()[::2])
        print(f"threads {args.threads}, f32, best of {args.rounds} interleaved rounds, tokens/s")
        print(f"{'shape':6} {'planrun':>9} {'eager':>9} {'compile':>9} {'/eager':>7} {'/compile':>8}")
        for shape in args.shape or STEPS:
            best = [0.0, 0.0, 0.0]
            for _ in range(args.rounds):
                speeds = (planrun(args.build, shape, args.threads, data, folder),
                          torch(shape, args.threads, raw),
                          torch(shape, args.threads, raw, "--compile"))
                best = [max(pair) for pair in zip(best, speeds)]
            ours, eager, compiled = best
            print(f"{shape:6} {ours:9.0f} {eager:9.0f} {compiled:9.0f} {ours / eager:7.2f} "
                  f"{ours / compiled:8.2f}", flush=True)


if __name__ == "__main__":
    main()
