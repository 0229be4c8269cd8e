#!/usr/bin/env python3
"""What a pipeline costs beyond its work and its bubble. Usage: pipeline.py PLANC PLANRUN DATA [--stages N]
[--steps N].

Runs a plan under each schedule with a trace of its last step, and replays that step: each call as long as
it really took, less what it waited for others inside, each as soon as its stage is free and what it needs
is made, messages free. What the step took longer than that is overhead: sends, receives, copies and calls.
Ranks share the cores: use no more stages than there are cores."""

import argparse
import json
import os
import re
import subprocess
import tempfile

PLAN = """import "std/transformer.plan"
model m(layers = 12) {{
  dim batch = 8, seq = 128, vocab = 256
  dim model = 256, head = 8, kv = 8, width = 32, ffn = 768
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.02)
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {{
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }}
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}}
plan train of m {{
  grid pipe {stages}
  split layer over pipe by {schedule}
  microbatches 8
}}
"""
SCHEDULES = ["gpipe", "one_f_one_b", "interleaved(2)", "zero_bubble", "zero_bubble_v"]
TASK = re.compile(r"(forward|backward|input_gradient|weight_gradient)\.(\d+)\((\d+)\)")


def read(path):
    """Of each stage its calls in order (name, seconds less waits inside), and the step's seconds."""
    with open(path) as file:
        events = json.load(file)
    events = events["traceEvents"] if isinstance(events, dict) else events
    events = [e for e in events if e.get("ph") == "X"]
    stages = {}
    for rank in sorted({e["tid"] for e in events}):
        mine = [e for e in events if e["tid"] == rank]
        waits = [e for e in mine if e["cat"] == "wait"]
        calls = []
        for call in sorted((e for e in mine if e["cat"] == "call"), key=lambda e: e["ts"]):
            inside = sum(w["dur"] for w in waits
                         if call["ts"] <= w["ts"] and w["ts"] + w["dur"] <= call["ts"] + call["dur"])
            calls.append((call["name"], call["dur"] - inside))
        stages[rank] = calls
    begin = min(e["ts"] for e in events)
    return list(stages.values()), max(e["ts"] + e["dur"] for e in events) - begin


def needs(kind, chunk, microbatch, chunks):
    if kind == "forward":
        return [("forward", chunk - 1, microbatch)] if chunk > 0 else []
    if kind == "weight_gradient":
        return [("input_gradient", chunk, microbatch)]
    needed = [("forward", chunk, microbatch)]
    if chunk + 1 < chunks:
        needed.append((kind, chunk + 1, microbatch))
    return needed


def replay(stages):
    tasks = [[(TASK.match(name), time) for name, time in calls] for calls in stages]
    chunks = 1 + max(int(m.group(2)) for calls in tasks for m, _ in calls if m)
    done, at, now = {}, [0] * len(stages), [0.0] * len(stages)
    todo = [[(m.group(1), int(m.group(2)), int(m.group(3)), t) for m, t in calls if m] for calls in tasks]
    while any(at[s] < len(todo[s]) for s in range(len(stages))):
        for s in range(len(stages)):
            while at[s] < len(todo[s]):
                kind, chunk, microbatch, time = todo[s][at[s]]
                needed = needs(kind, chunk, microbatch, chunks)
                if not all(n in done for n in needed):
                    break
                now[s] = max([now[s]] + [done[n] for n in needed]) + time
                done[kind, chunk, microbatch] = now[s]
                at[s] += 1
    # The step's own calls: `begin` first, then `reduce`, and `update` once all have come so far.
    def own(name):
        return [sum(t for n, t in calls if n == name) for calls in stages]
    work = sum(t for calls in todo for *_, t in calls) / len(stages)
    end = max(n + b + r for n, b, r in zip(now, own("begin"), own("reduce"))) + max(own("update"))
    return end, work


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("planc")
    parser.add_argument("planrun")
    parser.add_argument("data")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    print(f"{'schedule':16} {'step':>9} {'work':>7} {'bubble':>7} {'overhead':>9}")
    for schedule in SCHEDULES:
        with tempfile.TemporaryDirectory() as folder:
            plan, program, trace = (os.path.join(folder, n) for n in ("m.plan", "m.planx", "trace.json"))
            with open(plan, "w") as file:
                file.write(PLAN.format(stages=arguments.stages, schedule=schedule))
            subprocess.run([arguments.planc, "compile", plan, "-o", program], check=True)
            subprocess.run([arguments.planrun, "run", program, "--data", arguments.data, "--steps",
                            str(arguments.steps), "--trace", trace], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stages, step = read(trace)
            ideal, work = replay(stages)
        print(f"{schedule:16} {step / 1e3:7.1f}ms {work / step:7.1%} {(ideal - work) / step:7.1%} "
              f"{(step - ideal) / step:9.1%}", flush=True)


if __name__ == "__main__":
    main()
