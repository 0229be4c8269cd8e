#!/usr/bin/env python3
"""Docs tell the truth: generated tables are current, files that are named exist, `plan` blocks
compile. Usage: docs.py PLANC"""
import pathlib
import re
import subprocess
import sys
import tempfile

planc = sys.argv[1]
root = pathlib.Path(__file__).resolve().parents[2]
bad = []

table = subprocess.run([planc, "ops", "--markdown"], capture_output=True, text=True, check=True).stdout
if table not in (root / "docs/ir.md").read_text():
    bad.append("docs/ir.md: the op table is stale; put the output of `planc ops --markdown` there")
passes = subprocess.run([planc, "passes", "--markdown"], capture_output=True, text=True).stdout
if passes != (root / "docs/passes.md").read_text():
    bad.append("docs/passes.md is stale: planc passes --markdown > docs/passes.md")

pages = sorted(root.glob("*.md")) + sorted((root / "docs").glob("*.md"))
for page in pages:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        if not (page.parent / link).exists():
            bad.append(f"{page.name}: no such file: {link}")
    for block in re.findall(r"```plan\n(.*?)```", text, re.S):
        with tempfile.NamedTemporaryFile("w", suffix=".plan") as file:
            file.write(block)
            file.flush()
            run = subprocess.run([planc, "check", file.name], capture_output=True, text=True)
            if run.returncode:
                bad.append(f"{page.name}: a plan does not compile:\n{block}\n{run.stderr}")

# "Tested by PATH" in sources.
for path in sorted(root.glob("*/**/*.cpp")):
    if "build" in path.parts:
        continue
    head = " ".join(line.lstrip("/ ") for line in path.read_text().splitlines()[:12] if line.startswith("//"))
    for name in re.findall(r"\btests/[\w/.]+\w", head):
        if not (root / name).exists():
            bad.append(f"{path.relative_to(root)}: names {name}, which there is not")
print("\n".join(bad) or "docs: current")
sys.exit(bool(bad))
