"""close.py A B [BOUND]: two step logs, or two safetensors files, hold the same numbers up to BOUND of
the largest (1e-4)."""
import json
import struct
import sys


def read(path):
    """Lists of numbers by name."""
    if path.endswith(".jsonl"):
        records = [json.loads(line) for line in open(path)]
        fields = {name: [r[name] for r in records] for name in ("loss", "grad_norm", "lr")}
        # A continued run's log holds its own steps only.
        return {f"{name} {r['step']}": [v] for name, values in fields.items()
                for r, v in zip(records, values)}
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", (name, entry["dtype"])
        begin, end = (8 + length + at for at in entry["data_offsets"])
        tensors[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return tensors


a, b = read(sys.argv[1]), read(sys.argv[2])
bound = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-4
common = a.keys() & b.keys()
if sys.argv[1].endswith(".safetensors"):
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
assert common
for name in sorted(common):
    assert len(a[name]) == len(b[name]), name
    # A gradient that is zero but for rounding has no scale of its own.
    scale = max(1e-3, max(abs(x) for x in a[name]))
    worst = max(abs(x - y) for x, y in zip(a[name], b[name]))
    assert worst <= bound * scale, f"{name}: {worst} of {scale}"
