#!/usr/bin/env python3
"""report_browser.py PAGE.html...: pages of `planc explain -o` in headless Chromium, without a network: what
report_browser.js finds wrong with their pictures, and whether their tables have the figures of PAGE.json,
which lies beside each. One start of the browser for all."""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Of the JSON, what the page says in other words: names of things, rates, the schedule's units.
NOT_SHOWN = {"schema", "cluster", "costs", "even_bytes", "least_bytes", "fullest_stage", "pairs_most", "pairs_mean",
             "chunks", "largest_value_bytes", "idle_share_by_theory", "in_flight", "where"}
TABLES = (".stages", ".placement", ".changes", ".attention", ".experts")
PARTS = ("weights", "gradients", "optimizer", "inputs", "activations", "messages", "workspace", "gaps")


def browse(pages):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("skipped: no browser; one of", ", ".join(BROWSERS))
        sys.exit(0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        harness = pathlib.Path(folder, "harness.html")
        script = pathlib.Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
        data = json.dumps([{"name": str(page), "text": page.read_text(encoding="utf-8")} for page in pages])
        harness.write_text('<!DOCTYPE html><meta charset="utf-8"><body><pre id="findings"></pre>\n'
                           "<script>const pages = " + data.replace("</", "<\\/") + ";\n" + script
                           + "</script></body>", encoding="utf-8")
        out = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--user-data-dir=" + folder + "/profile", "--host-resolver-rules=MAP * ~NOTFOUND",
             "--window-size=1400,1000", "--virtual-time-budget=60000", "--dump-dom", harness.as_uri()],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240, encoding="utf-8")
    match = re.search(r'<pre id="findings">(.+?)</pre>', out.stdout, re.DOTALL)
    if match is None:
        sys.exit("the browser found nothing: " + out.stderr[-2000:])
    return json.loads(html.unescape(match[1]))


def numbers(value, path=""):
    """All figures of the JSON that the page shows, with where they stand."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in NOT_SHOWN:
                yield from numbers(inner, path + "." + key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}[{i}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def compare(said, known):
    """What of the JSON the page lacks."""
    shown = {part: set(map(float, said[part])) for part in ("tables", "all")}
    for i, stage in enumerate(known["stages"]):
        if i != known["fullest_stage"]:
            del stage["memory"]["largest"]
    for path, value in numbers(known):
        part = "tables" if path.startswith(TABLES) else "all"
        if float(value) not in shown[part]:
            yield f"{path} = {value} is not on the page"
    bars = [[stage["memory"][part + "_bytes"] for part in PARTS] for stage in known["stages"]]
    for bar, drawn in zip(bars, said["memory"], strict=True):
        want = [size for size in bar if size > 0]
        if want != drawn:
            yield f"memory is drawn as {drawn}, and is {want}"


def main():
    pages = [pathlib.Path(name) for name in sys.argv[1:]]
    for page in pages:
        xml.etree.ElementTree.parse(page)  # XML readers can read it too
    result = browse(pages)
    faults = list(result["errors"])
    if len(result["findings"]) != 4 * len(pages):
        faults.append(f"{len(result['findings'])} views of {len(pages)} pages")
    for view in result["findings"]:
        where = f"{pathlib.Path(view['name']).name}, {view['width']} px{', dark' if view['isDark'] else ''}: "
        faults += [where + fault for fault in view["faults"]]
        known = json.loads(pathlib.Path(view["name"]).with_suffix(".json").read_text())
        faults += [where + fault for fault in compare(view["figures"], known)]
        print(where + ", ".join(f"{count} {what}" for what, count in view["figures"]["counts"].items()))
    for fault in faults[:60]:
        print(fault)
    if faults:
        sys.exit(f"{len(faults)} faults")


if __name__ == "__main__":
    main()
