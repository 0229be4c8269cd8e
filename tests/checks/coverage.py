#!/usr/bin/env python3
"""Every diagnostic of ir/diagnostics.def must be provoked by a test: its text, with the arguments as
gaps, must match some expectation or test source. Ids that can't be are listed with the reason."""
import pathlib
import re
import sys

# id: why no text test can provoke it.
EXEMPT = {
    "FileTooLarge": "needs a file of 16 MiB: tests/unit/frontend_test.cpp makes it",
    "TooManyTokens": "needs a million tokens: tests/unit/frontend_test.cpp makes them",
    "TooManyFiles": "needs a hundred files: tests/unit/frontend_test.cpp makes them",
}

root = pathlib.Path(__file__).resolve().parents[2]
texts = []
for path in sorted((root / "tests").rglob("*")):
    if path.suffix in (".plan", ".ir", ".test", ".cpp") and "fuzz" not in path.parts:
        texts.append(path.read_text(errors="replace"))
everything = "\n".join(texts)

missing = []
declared = re.findall(r'DIAG\((\w+),\s*\w+,\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)',
                      (root / "ir/diagnostics.def").read_text())
for name, quoted in declared:
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', quoted))
    # The longest piece between arguments stands for the text.
    pieces = [p.strip() for p in re.split(r"\{\d+\}", text)]
    piece = max(pieces, key=len)
    seen = name in everything or (len(piece) > 5 and piece in everything)
    if not seen and name not in EXEMPT:
        missing.append(f"{name}: no test provokes \"{text}\"")
print("\n".join(missing) or f"coverage: each of {len(declared)} diagnostics has a test")
sys.exit(bool(missing))
