#!/usr/bin/env python3
"""Tokens per second of several ranks against one rank on the same cores, in turns in one run.

    python bench/ranks.py [--build build/release] [--rounds 3] [--steps 12] [--comm threads|mpi]

One rank has all cores as threads; of several each has its share. The best round of each counts."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GRIDS = ["data=1", "data=2", "tensor=2", "data=4", "data=2,tensor=2"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--comm", default="threads")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = folder / "data.bin"
        data.write_bytes(b"".join(((i * i // 7 + i) % 65).to_bytes(2, "little") for i in range(1 << 19)))
        for grid in GRIDS:
            subprocess.run([args.build / "planc", "compile", ROOT / "examples/nanogpt_char.plan",
                            "--grid", grid, "-o", folder / f"{grid}.planx"], check=True)
        best = dict.fromkeys(GRIDS, 0.0)
        for _ in range(args.rounds):
            for grid in GRIDS:
                log = folder / "log.jsonl"
                ranks = 1
                for axis in grid.split(","):
                    ranks *= int(axis.split("=")[1])
                command = [args.build / "planrun", "run", folder / f"{grid}.planx", "--data", data,
                           "--steps", str(args.steps), "--log", log]
                if args.comm == "mpi":
                    command = ["mpirun", "--oversubscribe", "-n", str(ranks)] + command + ["--comm", "mpi"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                steps = [json.loads(line) for line in log.read_text().splitlines()][2:]
                best[grid] = max(best[grid], statistics.median(s["tokens_per_s"] for s in steps))
                log.unlink()
        print(f"{os.cpu_count()} cores, {args.comm}, best of {args.rounds} rounds, tokens/s")
        for grid in GRIDS:
            print(f"{grid:16} {best[grid]:8.0f} {best[grid] / best[GRIDS[0]]:6.2f}")


if __name__ == "__main__":
    main()
