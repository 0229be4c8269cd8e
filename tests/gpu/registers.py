#!/usr/bin/env python3
"""What ptxas said of the kernels when they were built: nothing in local memory (no spills, no stack), and
as many registers as let the blocks fit on a multiprocessor that PLANC_KERNEL(threads, blocks) claims, on
every architecture. Usage: registers.py BUILD_FOLDER SOURCES.cu..."""

import pathlib
import re
import sys

REGISTERS = 65536  # of a multiprocessor, on sm_80, sm_90 and sm_100
build, sources = pathlib.Path(sys.argv[1]), [pathlib.Path(s) for s in sys.argv[2:]]
bad, seen, worst = [], 0, {}
for source in sources:
    text = source.read_text()
    constants = {}
    headers = re.findall(r'#include "(runtime/cuda/[^"]+)"', text)
    for code in [(source.parents[2] / header).read_text() for header in headers] + [text]:
        # Of the whole file; those inside a function are the kernel's own.
        for line in re.findall(r"^(?:  static |inline )?constexpr int ([^;]+);", code, re.M):
            constants.update(re.findall(r"(k\w+) = ([^,]+)", line))

    def value(expression):
        """Of a constant expression over the constants; of a choice by type, the lesser."""
        expression = re.sub(r"\w+<\w+>::", "", expression)
        if choice := re.search(r"\?(.*):(.*)", expression):
            return min(value(choice[1]), value(choice[2]))
        for _ in range(8):
            expression = re.sub(r"\bk\w+\b", lambda m: f"({constants[m[0]]})" if m[0] in constants else m[0],
                                expression)
        if re.search(r"\bk[A-Z]", expression):
            return 1  # a template's own
        return int(eval(expression, {"__builtins__": {}}, {}))  # pylint: disable=eval-used

    claims = {}
    for threads, blocks, name in re.findall(r"PLANC_KERNEL\(([^,]+), ((?:[^()]|\([^()]*\))+)\)\s*(\w+)\(", text):
        claims[name] = (value(threads), value(blocks))
    logs = list(build.rglob(f"{source.name}.o.ptxas"))
    if len(logs) != 1:
        sys.exit(f"registers: {len(logs)} logs of {source.name} under {build}")
    entry = None
    for line in logs[0].read_text().splitlines():
        if found := re.search(r"Compiling entry function '(\w+)' for '(sm_\w+)'", line):
            entry, architecture = found.groups()
            # _ZN..4name..: the longest claimed name that stands in the mangled one with its length.
            names = [n for n in claims if f"{len(n)}{n}" in entry]
            if not names:
                sys.exit(f"registers: no PLANC_KERNEL for '{entry}' in {source.name}")
            name = max(names, key=len)
            continue
        if entry is None:
            continue
        if found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", line):
            if any(int(x) for x in found.groups()):
                bad.append(f"{source.name}: {name} ({architecture}): {line.strip()}")
        if found := re.search(r"Used (\d+) registers", line):
            seen += 1
            threads, blocks = claims[name]
            # Registers are handed to warps in pieces of 8 a thread.
            used = (int(found[1]) + 7) // 8 * 8 * threads * blocks
            worst[architecture] = max(worst.get(architecture, 0), int(found[1]))
            if used > REGISTERS:
                bad.append(f"{source.name}: {name} ({architecture}): {found[1]} registers do not let "
                           f"{blocks} blocks of {threads} threads fit")
            entry = None
print("\n".join(bad) or f"registers: {seen} kernels, no spills; most registers {worst}")
sys.exit(bool(bad) or seen == 0)
