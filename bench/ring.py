#!/usr/bin/env python3
"""Whether a ring's rotations hide behind its blocks, and what a split context costs. Usage: ring.py
PLANC PLANRUN DATA [--ranks N] [--tokens N] [--steps N].

Runs a plan with its tokens split over N ranks of one thread each, and the same plan on one rank with N
threads, in turns. Says of the last step's trace, by rank, how long the ring's blocks took and what of
that was waiting for the next one, and of the steps the throughput as a share of one rank's. Ranks share
the cores: use no more than there are."""

import argparse
import json
import os
import re
import subprocess
import tempfile

PLAN = """import "std/transformer.plan"
model m {{
  dim batch = 1, seq = {tokens}, model = 256, head = 8, kv = 4, width = 32, ffn = 768, vocab = 256
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.02)
  x[batch, seq, model] = table[tokens]
  repeat layer = 2 {{
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }}
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}}
plan train of m {{
  grid context {ranks}
  split seq over context by {how}
}}
"""


def run(arguments, folder, how, ranks, threads):
    plan, program, trace = (os.path.join(folder, name) for name in ("p.plan", "p.planx", "t.json"))
    with open(plan, "w") as file:
        file.write(PLAN.format(tokens=arguments.tokens, ranks=ranks, how=how))
    subprocess.run([arguments.planc, "compile", plan, "-o", program], check=True)
    out = subprocess.run([arguments.planrun, "run", program, "--data", arguments.data, "--steps",
                          str(arguments.steps), "--threads", str(threads), "--trace", trace],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    with open(trace) as file:
        events = json.load(file)
    events = events["traceEvents"] if isinstance(events, dict) else events
    return float(re.search(r"median (\d+)", out)[1]), [e for e in events if e.get("ph") == "X"]


def waits(events):
    """Of each rank, the seconds of blocks, and of waits for keys or gradients of the ring."""
    for rank in sorted({e["tid"] for e in events}):
        mine = sorted((e for e in events if e["tid"] == rank), key=lambda e: e["ts"])
        blocks = sum(e["dur"] for e in mine if e["cat"] in ("attend_block", "attend_grad"))
        waited, rotates = 0.0, 0
        for event in mine:
            rotates += event["cat"] == "rotate"
            if event["cat"] == "wait" and rotates > 0:
                waited, rotates = waited + event["dur"], rotates - 1
        yield rank, blocks / 1e6, waited / 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("planc")
    parser.add_argument("planrun")
    parser.add_argument("data")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one, _ = run(arguments, folder, "ring", 1, arguments.ranks)
        print(f"one rank, {arguments.ranks} threads: {one:.0f} tokens/s")
        for how in ("ring", "ring(contiguous)", "gather", "heads"):
            speed, events = run(arguments, folder, how, arguments.ranks, 1)
            text = ""
            if how.startswith("ring"):
                text = "; waits of blocks: " + ", ".join(
                    f"rank {rank} {100 * waited / (blocks + waited):.1f} % of {blocks + waited:.3f} s"
                    for rank, blocks, waited in waits(events))
            print(f"{how}: {speed:.0f} tokens/s, {speed / one:.2f} of one rank's{text}")


if __name__ == "__main__":
    main()
