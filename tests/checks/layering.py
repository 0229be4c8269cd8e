#!/usr/bin/env python3
"""Who may include whom: docs/architecture.md, "Folders". Fails with every include that may not be."""
import pathlib
import re
import sys

ALLOWED = {
    "ir": {"ir"},
    "frontend": {"frontend", "ir"},
    "passes": {"passes", "ir"},
    "cost": {"cost", "ir"},
    "runtime": {"runtime", "ir"},
    "tools": {"tools", "frontend", "passes", "cost", "runtime", "ir"},
}
# Headers of a library that only some files may see.
ONLY = [
    (re.compile(r"antlr4|PlanLexer|PlanParser"), {"frontend/parse.cpp"}),
    (re.compile(r"^dnnl|^omp\.h"), {"runtime/cpu/gemm.cpp", "runtime/cpu/pool.cpp"}),
    (re.compile(r"^mpi\.h"), {"runtime/comm/mpi.cpp"}),
    (re.compile(r"^cuda_runtime"), {"runtime/cuda/driver_cuda.cpp"}),
    (re.compile(r"^cublas"), {"runtime/cuda/cublaslt.h"}),
    (re.compile(r"^nccl"), {"runtime/cuda/nccl_library.cpp"}),
    (re.compile(r"^cuda_|^mma"), {"runtime/cuda/driver_cuda.cpp", "runtime/cuda/device_code.h"}),
    (re.compile(r"llvm/Support/CommandLine"), {"tools/planc.cpp", "tools/planrun.cpp"}),
]

root = pathlib.Path(__file__).resolve().parents[2]
bad = []
for folder, allowed in ALLOWED.items():
    for path in sorted((root / folder).rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".def"):
            continue
        name = str(path.relative_to(root))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#include\s+(["<])([^">]+)[">]', line)
            if not match:
                continue
            header = match[2]
            first = header.split("/")[0]
            if match[1] == '"' and first in ALLOWED and first not in allowed:
                bad.append(f"{name}:{number}: '{folder}' may not include '{header}'")
            # Backends are made by factories: nobody includes their headers.
            for backends in ("runtime/cpu/", "runtime/comm/", "runtime/cuda/"):
                if header.startswith(backends) and not name.startswith(backends):
                    bad.append(f"{name}:{number}: '{header}' is for {backends[:-1]} only")
            for pattern, files in ONLY:
                if pattern.search(header) and name not in files:
                    bad.append(f"{name}:{number}: '{header}' is for {', '.join(sorted(files))} only")
print("\n".join(bad) or "layering: every include is allowed")
sys.exit(bool(bad))
