#!/usr/bin/env python3
"""what_if.py PLANC FILE PLAN [--changes N]: what `planc explain` says of a plan with changes, and of the
next doubling of each axis, is what it says of a plan that is written so; and no single change that the
plan could have is cheaper than those that it names."""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("planc")
parser.add_argument("file")
parser.add_argument("plan")
parser.add_argument("--changes", type=int, default=3)
options = parser.parse_args()
text = open(options.file).read()
start = text.index(f"plan {options.plan} of")
end = text.index("\n}\n", start)


def explain(path, *arguments):
    command = [options.planc, "explain", path, "--plan", options.plan, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return (json.loads(done.stdout), "") if done.returncode == 0 else (None, done.stderr)


def written(statements, arguments):
    """The figures of the plan with these statements instead of its own."""
    body = text[start:end]
    for statement in statements:
        keyword = statement.split()[0]
        body = re.sub(rf"\n  {keyword} [^\n]*", "", body) + "\n  " + statement
    with tempfile.NamedTemporaryFile("w", suffix=".plan", delete=False) as out:
        out.write(text[:start] + body + text[end:])
    try:
        return explain(out.name, *itertools.chain(*(a.split(" ", 1) for a in arguments)))[0]
    finally:
        os.unlink(out.name)


failures = []


def same(what, got, wanted):
    if got != wanted:
        failures.append(f"{what}: {got}, but the plan written so has {wanted}")


now, why = explain(options.file)
if now is None:
    sys.exit(why)
memory = now["cluster"]["device_bytes"]
if now["fits"] or now["arena_bytes"] <= memory:
    failures.append("it fits already")
if len(now["changes"]) != options.changes:
    failures.append(f"{len(now['changes'])} changes instead of {options.changes}")
prices = []
for change in now["changes"]:
    what = "; ".join(change["statements"] + change["arguments"])
    other = written(change["statements"], change["arguments"])
    if other is None:
        failures.append(f"{what}: does not compile")
        continue
    same(what + ", arena", change["arena_bytes"], other["arena_bytes"])
    same(what + ", ranks", change["ranks"], other["ranks"])
    same(what + ", seconds", change["seconds"], other["seconds"])
    same(what + ", fits", True, other["fits"])
    prices.append(change["seconds"] * change["ranks"])
if prices != sorted(prices):
    failures.append("the cheapest does not come first")

# Every single change that this grid has.
axes = {axis["axis"]: axis["ranks"] for axis in now["grid"]}
singles = [(["recompute attend"], []), (["recompute layer"], [])]
singles += [([f"shard {what} over data"], []) for what in ("optimizer", "gradients", "weights")]
for to in axes:
    singles.append(([], [f"--grid {to}={2 * axes[to]}"]))
    for source in axes:
        if source != to:
            singles.append(([], [f"--grid {source}={axes[source] // 2},{to}={2 * axes[to]}"]))
singles.append((["microbatches 8"], ["-D batch=4"]))
fitting = []
for statements, arguments in singles:
    other = written(statements, arguments)
    if other is not None and other["arena_bytes"] <= memory:
        fitting.append(other["seconds"] * other["ranks"])
fitting = sorted(fitting)[: options.changes]
if any(price > single for price, single in zip(prices, fitting)):  # two together may be cheaper
    failures.append(f"device times {prices}, but single changes have {fitting}")

for ceiling in now["ceilings"]:
    what = f"{ceiling['axis']} {ceiling['next']}"
    other, why = explain(options.file, "--grid", f"{ceiling['axis']}={ceiling['next']}")
    if ceiling["why_not"] is not None:
        same(what + ", why not", ceiling["why_not"].split(" (")[0] in why.replace(" by --grid", ""), True)
        continue
    if other is None:
        failures.append(f"{what}: legal, but {why}")
        continue
    same(what + ", arena", ceiling["arena_bytes"], other["arena_bytes"])
    same(what + ", seconds", ceiling["seconds"], other["seconds"])
    sent = max(sum(talk["bytes"] for talk in stage["talks"]) for stage in other["stages"])
    same(what + ", bytes", ceiling["bytes"], sent)
    same(what + ", flops", ceiling["flops"], max(stage["flops"] for stage in other["stages"]))
print("\n".join(failures) or f"{options.plan}: {len(now['changes'])} changes and "
      f"{len(now['ceilings'])} doublings are as plans written so")
sys.exit(bool(failures))
