#!/usr/bin/env python3
"""Compiles and verifies plans over pairs of options: for every two options, every pair of their values
occurs in some plan. Usage: sweep.py PLANC PLANRUN [--table stages|axes] [--sample K/N] [--only I]
[--keep DIR] [--list] [--also-own] [--comm mpi|nccl].

Each plan runs on all its ranks and its model on one (`planrun verify`, f64, 3 steps); with --also-own
also in the plan's own precision. With --comm nccl ranks are GPUs (PLANRUN may be
planrun_fake, whose GPUs are made of CPU memory). With --comm mpi ranks are processes, and plans of more than 8 are left
out. The plans follow from the tables below alone: `ranks` crosses what splits tensors, `stages` the
pipeline with a few of each of those, `axes` all five axes with rings and experts."""

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile

import axes

RANKS = {
    "model": ["gpt2", "llama", "moe", "own"],
    "data": [1, 2, 3, 4, 8],
    "tensor": [1, 2, 3, 4, 6, 8],
    "zero": [0, 1, 2, 3],
    "gather": [False, True],       # split seq over tensor by gather
    "tied": [False, True],
    "kv": [1, 2, 3, 8],            # GPT-2 has as many as heads
    "kv_named": [False, True],     # in the split, where it divides
    "recompute": ["none", "attend", "layer", "gather", "attend, gather"],
    "microbatches": [1, 2, 3, 4],
    "vocab": ["even", "odd"],
    "optimizer": ["adamw", "sgd"],
    "axes": ["plain", "swapped", "two"],  # order in the grid; batch over two axes
    "rate": [0, 0.1],              # dropout
}
STAGES = {
    "model": ["gpt2", "llama", "moe", "own", "two", "skip", "nested"],
    "pipe": [2, 1, 3, 4, 8],
    "schedule": ["one_f_one_b", "gpipe", "interleaved(2)", "interleaved(3)", "zero_bubble",
                 "zero_bubble_v"],
    "microbatches": [4, 1, 2, 3, 5, 8, 16],
    "layers": ["even", "uneven", "told"],  # as many a chunk, a few more, or as the plan says
    "data": [1, 2],
    "tensor": [1, 2],
    "zero": [0, 1, 2, 3],
    "gather": [False, True],
    "tied": [False, True],
    "recompute": ["none", "attend", "layer", "gather"],
    "optimizer": ["adamw", "sgd"],
    "axes": ["plain", "swapped"],
    "rate": [0, 0.1],
}
TABLES = {"ranks": (RANKS, 200), "stages": (STAGES, 120),
          "axes": (axes.AXES, 160)}  # and the least number of plans
MOST_RANKS = 64
MOST_PROCESSES = 8
# Processes as root, and more than processors: as in containers.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def fits(case):
    return axes.ranks(case) <= MOST_RANKS


def random(n):
    """A fixed sequence of large numbers."""
    for _ in range(3):
        n = (n * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        n ^= n >> 33
    return n


def cases(options, least):
    """A covering array for pairs: greedy, the same every time."""
    names = list(options)
    wanted = {(a, x, b, y) for a, b in itertools.combinations(names, 2)
              for x in options[a] for y in options[b] if fits({a: x, b: y})}
    pairs = sorted(wanted, key=str)
    made, number = [], 0
    while wanted or len(made) < least:
        case, number = {}, number + 1
        if wanted:
            a, x, b, y = next(p for p in pairs if p in wanted)
            case = {a: x, b: y}
        for i, name in enumerate(names):
            if name in case:
                continue
            best = None
            values = options[name]
            chance = random(number * 64 + i)  # among equally good values
            for k in range(len(values)):
                value = values[(k + chance) % len(values)]
                trial = dict(case, **{name: value})
                if not fits(trial):
                    continue
                gain = sum(1 for other, v in case.items()
                           if (other, v, name, value) in wanted or (name, value, other, v) in wanted)
                if best is None or gain > best[0]:
                    best = (gain, value)
            case[name] = best[1]
        for a, b in itertools.combinations(names, 2):
            wanted.discard((a, case[a], b, case[b]))
        made.append(case)
    return made


def lcm(*numbers):
    result = 1
    for n in numbers:
        result = result * n // math.gcd(result, n)
    return result


def chunks(case):
    """Of the pipeline, and how many of them each stage holds."""
    schedule = case.get("schedule", "")
    each = 2 if schedule.endswith("_v") else int(schedule[12:-1]) if "(" in schedule else 1
    return case.get("pipe", 1) * each


def layers(case):
    if "layers" not in case:
        return 2
    return max(2, chunks(case) + {"even": 0, "uneven": 1, "told": 2}[case["layers"]])


def plan(case):
    if "context" in case:
        return axes.plan(case)
    data, tensor, kv = case["data"], case["tensor"], case.get("kv", 0)
    if case["model"] == "gpt2":
        kv = 0
    count = layers(case)
    heads = lcm(tensor, kv or 1, 2)
    vocab = 8 * tensor + (5 if case.get("vocab") == "odd" else 0)
    seq = tensor * (3 if tensor > 2 else 6)
    model, width = heads * 4, 4
    sizes = dict(batch=2 * data, seq=seq, vocab=vocab, model=model, head=heads, kv=kv or heads,
                 width=width, ffn=tensor * 6, expert=4)
    rate = case["rate"]
    head = "table" if case["tied"] else "output"
    weight = "" if case["tied"] else "  weight output [vocab, model] init normal(0.1)\n"
    common = f"""  dim batch = {sizes['batch']}, seq = {seq}, vocab = {vocab}
  dim model = {model}, head = {heads}, width = {width}, ffn = {sizes['ffn']}
  dim kv = {sizes['kv']}
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.1)
{weight}"""
    if case["model"] == "gpt2":
        body = common + f"""  weight positions [seq, model] init normal(0.1)
  x[batch, seq, model] = dropout(table[tokens] + positions, {rate})
  repeat layer = {count} {{
    x = x + attention(layernorm(x), bias = true, rotary = false, rate = {rate})
    x = x + gelu_mlp(layernorm(x), rate = {rate})
  }}
  logits[batch, seq, vocab] = layernorm(x) @ {head}
  loss cross_entropy(logits, targets)
"""
    elif case["model"] == "llama":
        body = common + f"""  x[batch, seq, model] = table[tokens]
  repeat layer = {count} {{
    x = x + attention(norm(x), rate = {rate})
    x = x + mlp(norm(x), rate = {rate})
  }}
  logits[batch, seq, vocab] = norm(x) @ {head}
  loss cross_entropy(logits, targets)
"""
    elif case["model"] == "moe":
        body = common.replace("dim kv", f"dim expert = 4, kv") + f"""  x[batch, seq, model] = dropout(table[tokens], {rate})
  repeat layer = {count} {{
    x = x + attention(norm(x))
    x = x + moe(norm(x), top = 2, balance = 0.05)
  }}
  logits[batch, seq, vocab] = norm(x) @ {head}
  loss cross_entropy(logits, targets)
"""
    elif case["model"] == "two":
        # Dense layers, then experts; the first may end inside a stage.
        body = common.replace("dim kv", f"dim expert = 4, kv") + f"""  x[batch, seq, model] = table[tokens]
  repeat layer = {max(1, count // 3)} {{
    x = x + attention(norm(x), rate = {rate})
    x = x + mlp(norm(x))
  }}
  x = norm(x)
  repeat layer = {count - max(1, count // 3)} {{
    x = x + attention(norm(x))
    x = x + moe(norm(x), top = 1, balance = 0.02, per = sequence)
  }}
  logits[batch, seq, vocab] = norm(x) @ {head}
  loss cross_entropy(logits, targets)
"""
    elif case["model"] == "skip":
        # The embedding goes to every layer and to the end, and all layers share a weight.
        body = common + f"""  dim mixed = 6
  weight into [model, mixed] init normal(0.1)
  weight from [mixed, model] init normal(0.1)
  weight how [model] init const(0.3)
  x[batch, seq, model] = table[tokens]
  y[batch, seq, model] = norm(x)
  repeat layer = {count} {{
    x = x + attention(norm(x), rate = {rate}) + y * how
    s[batch, seq, mixed] = gelu(x @ into)
    x = x + s @ from + mlp(norm(y))
  }}
  logits[batch, seq, vocab] = (norm(x) + y) @ {head}
  loss cross_entropy(logits, targets)
"""
    elif case["model"] == "nested":
        # A repeat that stays whole behind the first of those that are cut, and one inside the second.
        body = common + f"""  x[batch, seq, model] = table[tokens]
  y[batch, seq, model] = norm(x)
  repeat layer = {max(1, count // 2)} {{ x = x + attention(norm(x)) }}
  repeat whole = 2 {{ x = x + mlp(norm(x) + y, rate = {rate}) }}
  repeat layer = {count - max(1, count // 2)} {{
    x = x + attention(norm(x))
    repeat inner = 2 {{ x = x + mlp(norm(x)) }}
  }}
  logits[batch, seq, vocab] = norm(x) @ {head}
  loss cross_entropy(logits, targets)
"""
    else:
        # A module of the user's: heads mixed by a weight, a gate from the mean over the sequence, a
        # second loss.
        body = common + f"""  weight mix [head, width, ffn] init normal(0.2)
  weight back [ffn, model] init normal(0.2)
  weight gate [model] init const(0.5)
  x[batch, seq, model] = table[tokens]
  repeat layer = {count} {{
    n[batch, seq, model] = norm(x)
    x = x + attention(n)
    m[batch, model] = mean(n, over = seq)
    h[batch, seq, head, width] = project(n)
    f[batch, seq, ffn] = relu(h @ mix)
    y[batch, seq, model] = f @ back
    x = x + dropout(y, {rate}) * sigmoid(m * gate)
  }}
  logits[batch, seq, vocab] = norm(x) @ {head}
  loss cross_entropy(logits, targets)
  loss 0.01 * mean(square(x))
"""
    grid = [("data", data), ("tensor", tensor)]
    batch_axes = "data"
    if "pipe" in case:
        grid.insert(1, ("pipe", case["pipe"]))
    if case["axes"] == "swapped":
        grid.reverse()
    if case["axes"] == "two" and data % 2 == 0:
        grid = [("outer", data // 2), ("tensor", tensor), ("inner", 2)]
        batch_axes = "outer, inner"
    split = ["head", "ffn", "vocab"]
    if case.get("kv_named") and sizes["kv"] % tensor == 0:
        split.insert(1, "kv")
    lines = ["  grid " + ", ".join(f"{a} {n}" for a, n in grid), f"  split batch over {batch_axes}",
             f"  split {', '.join(split)} over tensor"]
    if case["gather"]:
        lines.append("  split seq over tensor by gather")
    if case["zero"]:
        what = ["", "optimizer", "gradients", "weights"][case["zero"]]
        lines.append(f"  shard {what} over {batch_axes}")
    if "pipe" in case:
        told = ""
        if case["layers"] == "told" and case["pipe"] > 1:
            counts = [1] * chunks(case)
            counts[0] += layers(case) - chunks(case)
            told = " stages " + " ".join(str(n) for n in counts)
        lines.append(f"  split layer over pipe by {case['schedule']}{told}")
    lines.append(f"  microbatches {case['microbatches']}")
    if case["recompute"] != "none":
        lines.append(f"  recompute {case['recompute']}")
    if case["optimizer"] == "adamw":
        lines.append("  optimizer adamw { lr 1e-3, warmup 2, clip 0.5, eps 1e-6 }")
    else:
        lines.append("  optimizer sgd { lr 0.05, momentum 0.9, clip 1.0 }")
    module = """
module project(x[batch, seq, model]) {
  weight w [model, head, width] init normal(0.2)
  return y[batch, seq, head, width] = x @ w
}
"""
    return ('import "std/transformer.plan"\n' + module + "\nmodel m {\n" + body + "}\n\nplan p of m {\n" +
            "\n".join(lines) + "\n}\n")


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, **MPI))
    return done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("planc")
    parser.add_argument("planrun")
    parser.add_argument("--table", choices=TABLES, default="ranks")
    parser.add_argument("--sample", default="0/1", help="K/N: cases K, K+N, ...")
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--also-own", action="store_true")
    parser.add_argument("--comm", choices=["threads", "mpi", "nccl"], default="threads")
    arguments = parser.parse_args()
    first, step = (int(n) for n in arguments.sample.split("/"))
    failed = done = 0
    all_cases = cases(*TABLES[arguments.table])
    for number, case in enumerate(all_cases):
        if (number - first) % step if arguments.only is None else number != arguments.only:
            continue
        if arguments.comm == "mpi" and axes.ranks(case) > MOST_PROCESSES:
            continue
        text = ", ".join(f"{k} {v}" for k, v in case.items())
        if arguments.list:
            print(f"{number}: {text}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = arguments.keep or folder
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, f"case{number}.plan")
            with open(path, "w") as file:
                file.write(plan(case))
            program = path + "x"
            code, output = run([arguments.planc, "compile", path, "-o", program])
            verify = [arguments.planrun, "verify", program, "--comm", arguments.comm]
            if arguments.comm == "nccl":
                verify += ["--device", "cuda"]
            if arguments.comm == "mpi":
                verify = ["mpirun", "-n", str(axes.ranks(case))] + verify
            if code == 0:
                code, output = run(verify)
            if code == 0 and arguments.also_own:
                code, output = run(verify + ["--precision", "plan"])
        done += 1
        if code != 0:
            failed += 1
            print(f"case {number} FAILED ({code}): {text}\n{output}", flush=True)
    if not arguments.list:
        print(f"{done} of {len(all_cases)} plans verified, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
