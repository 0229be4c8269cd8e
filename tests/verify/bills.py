#!/usr/bin/env python3
"""What `planc explain` says of a plan, against a run of it: the arena of every stage, to the byte, is
what each of its ranks allocates; and what a rank sends in a step, by axes and op, is what its
communicator counts in the first step and in the last, to the byte (rows of experts: no more). Usage: bills.py PLANC PLANRUN [--sample N] [--only TEXT]
[--run "ARGUMENTS"] [--list].

The plans are those of examples/ and tests/ that a machine can run (with some sizes made small), and
every N-th of each of sweep.py's tables (N 8). Each trains for four steps on all its ranks."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import axes
import sweep

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ["examples", "tests/golden", "tests/tools", "tests/verify"]
# As they stand no CPU runs these in a test's time, or they need sizes that others do not.
ARGUMENTS = {
    "examples/gpt2_small.plan train": "-D layers=2 -D batch=1 -D seq=32 -D vocab=256",
    "examples/nanogpt_char.plan train": "-D batch=1 -D layers=2",
    "tests/tools/cases_stages.plan two": "-D layers=8",
    "tests/tools/cases_stages.plan pair": "-D layers=8",
    "tests/tools/cases_stages.plan turns": "-D layers=8",
    "tests/tools/cases_stages.plan vee": "-D layers=8",
    "tests/tools/cases_stages.plan told": "-D layers=7",
}
# The rest of the examples with a cluster: their models are the published ones, with no small sizes.
TOO_LARGE = ["examples/deepseek_v3.plan", "examples/llama3_405b.plan",
             "examples/llama3_405b_128k.plan", "examples/llama3_8b.plan", "examples/mixtral.plan"]
# What the compiler refuses, which is what these are there for; or the run ends for lack of rows.
REFUSED = ["tests/verify/dropout_rows.plan", "tests/verify/padded_gradient.plan",
           "tests/verify/padded_infinity.plan", "tests/tools/overflow.plan",
           "tests/tools/placement_errors.plan"]
MOST_RANKS = 32


def plans(sample, folder):
    """(name, path, arguments of planc)."""
    for where in FOLDERS:
        for file in sorted(os.listdir(os.path.join(ROOT, where))):
            path = f"{where}/{file}"
            if not file.endswith(".plan") or path in TOO_LARGE + REFUSED:
                continue
            for plan in re.findall(r"^plan (\w+) of", open(os.path.join(ROOT, path)).read(), re.M):
                name = f"{path} {plan}"
                yield name, os.path.join(ROOT, path), ["--plan", plan] + ARGUMENTS.get(name, "").split()
    for table, (options, least) in sweep.TABLES.items():
        for number, case in enumerate(sweep.cases(options, least)):
            if number % sample == 0 and axes.ranks(case) <= MOST_RANKS:
                path = os.path.join(folder, f"{table}{number}.plan")
                with open(path, "w") as file:
                    file.write(sweep.plan(case))
                yield f"sweep {table} {number}", path, []


def compare_sent(talks, rank):
    """What a rank sent otherwise than explain says, in words."""
    wrong = []
    told = {(talk["op"], *talk["axes"]): talk for talk in talks}
    sent = {(each["op"], *each["axes"]): each for each in rank["sent"]}
    for key in sorted(told.keys() | sent.keys()):
        talk = told.get(key, {"bytes": 0, "bound": False})
        for step in ("first_bytes", "last_bytes"):
            counted = sent.get(key, {step: 0})[step]
            if counted > talk["bytes"] or (counted < talk["bytes"] and not talk["bound"]):
                wrong.append(f"explain says {talk['bytes']} bytes of {' '.join(key)}, "
                             f"rank {rank['rank']} counted {counted} ({step})")
    return wrong


def compare_extremes(stage, ranks):
    """Of messages that differ between the ranks of a stage, the most and the least, in words."""
    wrong = []
    for talk in stage["talks"]:
        counted = [sum(each["last_bytes"] for each in rank["sent"]
                       if (each["op"], each["axes"]) == (talk["op"], talk["axes"])) for rank in ranks]
        if not talk["bound"] and [max(counted), min(counted)] != [talk["bytes"], talk["least_bytes"]]:
            wrong.append(f"stage {stage['where']}: explain says {talk['least_bytes']} to {talk['bytes']} "
                         f"bytes of {talk['op']} {talk['axes']}, ranks counted {counted}")
    return wrong


def compare(explained, summary, peers):
    """What differs, in words. `peers`: what explain says of one rank's messages."""
    wrong, met = [], 0
    for stage in explained["stages"]:
        where, memory = stage["where"], stage["memory"]
        parts = sum(bytes for name, bytes in memory.items()
                    if name.endswith("_bytes") and name != "arena_bytes")
        if parts != memory["arena_bytes"]:
            wrong.append(f"stage {where}: the parts are {parts} bytes, the arena {memory['arena_bytes']}")
        ours = [rank for rank in summary
                if all(rank["at"][axis] == at for axis, at in where.items())]
        met += len(ours)
        for rank in ours:
            if rank["arena_bytes"] != memory["arena_bytes"]:
                wrong.append(f"stage {where}: explain says {memory['arena_bytes']} bytes, "
                             f"rank {rank['rank']} took {rank['arena_bytes']}")
            even = all(talk["bytes"] == talk["least_bytes"] for talk in stage["talks"])
            wrong += compare_sent(stage["talks"] if even else peers(rank["rank"]), rank)
        wrong += compare_extremes(stage, ours)
    if met != len(summary) or met != explained["ranks"]:
        wrong.append(f"{met} of {len(summary)} ranks that ran are in a stage, of {explained['ranks']}")
    return wrong


def check(planc, planrun, path, arguments, run, folder):
    """What is wrong with a plan, in words; the compiler, explain and the run must all succeed."""
    program, data, told = (os.path.join(folder, name) for name in ("x.planx", "x.bin", "x.summary"))
    explain = subprocess.run([planc, "explain", path, "--json"] + arguments, capture_output=True, text=True)
    if explain.returncode:
        return [explain.stderr]

    def peers(rank):
        return json.loads(subprocess.run(
            [planc, "explain", path, "--json", "--rank", str(rank)] + arguments,
            check=True, capture_output=True, text=True).stdout)["peers"]

    with open(data, "wb") as file:  # tokens 0 and 1, which every vocabulary has
        file.write(b"\0\0\1\0" * 4096)
    for command in ([planc, "compile", path, "-o", program] + arguments,
                    [planrun, "run", program, "--data", data, "--steps", "4", "--summary", told] + run):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return [done.stderr]
    with open(told) as file:
        return compare(json.loads(explain.stdout), [json.loads(line) for line in file], peers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("planc")
    parser.add_argument("planrun")
    parser.add_argument("--sample", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--run", default="", help="more arguments of planrun run")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    done = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path, options in plans(arguments.sample, folder):
            if arguments.only not in name:
                continue
            if arguments.list:
                print(name, *options)
                continue
            done += 1
            wrong = check(arguments.planc, arguments.planrun, path, options, arguments.run.split(), folder)
            if wrong:
                failed += 1
                print(f"{name} FAILED:", *wrong, sep="\n  ", flush=True)
    if not arguments.list:
        print(f"{done} plans explained and run, {failed} failed")
    return 1 if failed or (not done and not arguments.list) else 0


if __name__ == "__main__":
    sys.exit(main())
