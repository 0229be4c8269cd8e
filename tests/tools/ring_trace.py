"""ring_trace.py TRACE RANKS: in each forward loop of a ring, on each rank, the next block is sent before one
is scored and waited for behind it; and where compute is much longer than the transfer, one of two ranks hardly waits."""
import json
import sys

ranks = int(sys.argv[2])
events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e.get("ph") == "X"]
shares = []
for rank in range(ranks):
    mine = sorted((e for e in events if e["tid"] == rank), key=lambda e: e["ts"])
    rings = [e for e in mine if e["cat"] == "repeat" and "dim = ring" in e["args"]["detail"].split(" body(")[0]
             and any(x["cat"] == "attend_block" and e["ts"] <= x["ts"] < e["ts"] + e["dur"] for x in mine)]
    assert rings, f"rank {rank}: no ring"
    for ring in rings:
        inside = [e for e in mine if ring["ts"] <= e["ts"] < ring["ts"] + ring["dur"] and e is not ring]
        kinds = [e["cat"] for e in inside if e["cat"] in ("rotate", "attend_block", "wait")]
        # The last block is only scored.
        assert kinds == ["rotate", "attend_block", "wait"] * (ranks - 1) + ["attend_block"], kinds
        waits = sum(e["dur"] for e in inside if e["cat"] == "wait")
        shares.append(waits / ring["dur"])
# Of two ranks the later one finds the other's block there, however this machine shares out its time.
assert ranks > 2 or min(shares) < 0.2, shares
