"""The table `axes` of sweep.py: all five axes at once, with what rings and experts can be asked for."""

AXES = {
    "model": ["moe", "llama", "deepseek", "mixed", "switch"],
    "data": [1, 2],
    "pipe": [1, 2, 3],
    "context": [2, 1, 3, 4, 8],
    "expert": [2, 1, 4, 8],
    "tensor": [1, 2, 4],
    "schedule": ["one_f_one_b", "gpipe", "interleaved(2)", "zero_bubble", "zero_bubble_v"],
    "method": ["ring", "ring(contiguous)", "gather", "gather(zigzag)", "heads", "within"],
    "mask": ["causal", "window", "bidirectional", "documents"],
    "kv": [1, 2, 0],                     # 0: as many as heads
    "tokens": ["batch", "seq"],          # what the dense layers split over the experts' axis
    "experts": ["expert", "expert, tensor", "data", "data, context", "tensor", "context, expert"],
    "room": [False, True],               # by dispatch(N)
    "capacity": [0, 0.5, 1.25],
    "per": ["microbatch", "sequence"],
    "zero": [0, 1, 2, 3],
    "gather": [False, True],             # split seq over tensor by gather
    "recompute": ["none", "attend", "layer", "gather"],
    "microbatches": [1, 2, 4],
    "optimizer": ["adamw", "sgd"],
    "axes": ["plain", "swapped"],
    "rate": [0, 0.1],
}


def ranks(case):
    return (case.get("data", 1) * case.get("pipe", 1) * case.get("context", 1) *
            case.get("expert", 1) * case.get("tensor", 1))


def chunks(case):
    each = {"interleaved(2)": 2, "zero_bubble_v": 2}.get(case["schedule"], 1)
    return case["pipe"] * each


def attention(case):
    mask = {"causal": "", "window": ", window = 5", "bidirectional": ", causal = false",
            "documents": ", documents = documents"}[case["mask"]]
    return f"attention(norm(x){mask}, rate = {case['rate']})"


def experts(case):
    """The call of a module for experts, and whether it is balanced by bias."""
    common = f"capacity = {case['capacity']}, per = {case['per']}, hidden = inner"
    return {
        "moe": f"moe(norm(x), top = 2, balance = 0.05, z = 0.01, {common})",
        "deepseek": f"moe(norm(x), top = 3, score = sigmoid, scale = 2.5, groups = 4, kept = 2, "
                    f"group_score = best2, balance = 0.01, bias_rate = 0.01, shared_experts = true, {common})",
        "mixed": f"moe(norm(x), top = 2, normalise = false, balance = 0.02, {common})",
        "switch": f"moe(norm(x), top = 1, normalise = false, balance = 0.01, {common})",
    }.get(case["model"])


def plan(case):
    data, pipe, context = case["data"], case["pipe"], case["context"]
    expert, tensor = case["expert"], case["tensor"]
    tokens = case["tokens"]
    by_heads = case["method"] in ("heads", "within")
    heads = tensor * (context if by_heads else 1) * (2 if tensor * context < 8 else 1)
    kv = case["kv"] if case["kv"] and heads % case["kv"] == 0 else heads
    layers = max(2, chunks(case) + 1)
    axis = {"data": data, "context": context, "expert": expert, "tensor": tensor}
    over = [a.strip() for a in case["experts"].split(",")]
    ways = 1
    for a in over:
        ways *= axis[a]
    count = ways * (2 if ways < 8 else 1)
    count = max(count, 8) if count % 8 == 0 else count * 8 // {1: 1, 2: 2, 4: 4}.get(count & -count, 1)
    batch = data * (expert if tokens == "batch" else 1)
    seq = context * 2 * tensor * (expert if tokens == "seq" else 1)
    seq *= 2 if seq < 16 else 1
    lines = [f"  dim batch = {batch}, seq = {seq}, vocab = {8 * tensor}",
             f"  dim model = {heads * 4}, head = {heads}, kv = {kv}, width = 4, ffn = {tensor * 6}",
             f"  dim inner = {tensor * 4}, expert = {count}",
             "  input tokens[batch, seq]  : token(vocab)",
             "  input targets[batch, seq] : token(vocab)"]
    if case["mask"] == "documents":
        lines.append("  input documents[batch, seq] : document(tokens, 3)")
    lines += ["  weight table [vocab, model] init normal(0.1)",
              f"  x[batch, seq, model] = dropout(table[tokens], {case['rate']})"]
    sparse = experts(case)
    dense = f"mlp(norm(x), rate = {case['rate']})"
    blocks = [(layers, sparse or dense)]
    if case["model"] == "mixed":
        blocks = [(1, dense), (layers - 1, sparse)]
    for number, block in blocks:
        lines += [f"  repeat layer = {number} {{", f"    x = x + {attention(case)}", f"    x = x + {block}",
                  "  }"]
    lines += ["  logits[batch, seq, vocab] = norm(x) @ table", "  loss cross_entropy(logits, targets)"]
    grid = [("data", data), ("pipe", pipe), ("context", context), ("expert", expert), ("tensor", tensor)]
    if case["axes"] == "swapped":
        grid.reverse()
    method = case["method"]
    if method == "within":
        method = "ring within node, heads across"
    target = f"context by {method}"
    if tokens == "seq":
        target += ", expert by " + {"within": "ring", "heads": "gather"}.get(case["method"], case["method"])
    if case["gather"]:
        target += ", tensor by gather"
    rows = " by dispatch(64)" if case["room"] else ""
    batch_axes = "data, expert" if tokens == "batch" else "data"
    splits = [f"batch over {batch_axes}", "head, ffn, vocab over tensor", f"seq over {target}",
              f"expert over {case['experts']}{rows if sparse else ''}", f"layer over pipe by {case['schedule']}"]
    if "tensor" not in over:
        splits[1] = splits[1].replace("ffn", "ffn, inner")
    plan_lines = ["  grid " + ", ".join(f"{a} {n}" for a, n in grid)]
    plan_lines += [f"  split {s}" for s in splits]
    if case["zero"]:
        what = ["", "optimizer", "gradients", "weights"][case["zero"]]
        plan_lines.append(f"  shard {what} over data, context")
    plan_lines.append(f"  microbatches {case['microbatches']}")
    if case["recompute"] != "none":
        plan_lines.append(f"  recompute {case['recompute']}")
    plan_lines.append("  optimizer " + (
        "adamw { lr 1e-3, warmup 2, clip 0.5, eps 1e-6 }" if case["optimizer"] == "adamw"
        else "sgd { lr 0.05, momentum 0.9, clip 1.0 }"))
    cluster, on = "", ""
    if case["method"] == "within":
        # Half of the context axis within a node, where it is even.
        inside = context // 2 if context % 2 == 0 else context
        later = 1
        for name, size in reversed(grid):
            if name == "context":
                break
            later *= size
        node = later * inside
        cluster = ("device cpu { memory 8 GiB compute f32 1 TFLOP/s hbm 100 GB/s }\n"
                   f"cluster pair {{ node {node} of cpu {{ link 10 GB/s, latency 1 us }} "
                   f"pod {ranks(case) // node} of node {{ link 1 GB/s, latency 5 us }} }}\n")
        on = " on pair"
    return ('import "std/transformer.plan"\n' + cluster + "model m {\n" + "\n".join(lines) +
            f"\n}}\n\nplan p of m{on} {{\n" + "\n".join(plan_lines) + "\n}\n")
