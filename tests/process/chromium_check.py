#!/usr/bin/env python3
"""Has a headless Chromium open the page of a replay's report, with traces of all its processes. Skipped (77) without.

    chromium_check.py DELTAWIRE SOURCE_ROOT

A page with a line on the browser's console, with something fetched from elsewhere, or without its pictures fails.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile


def main():
    command, source = sys.argv[1:]
    chromium = shutil.which("chromium")
    if not chromium:
        print("skipped: chromium is not installed (Debian package chromium)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        report, trace, page = (os.path.join(folder, name) for name in ("run.json", "trace.json", "run.html"))
        steps = [os.path.join(source, f"tests/data/trace/trainer/step-0{step}.safetensors") for step in range(3)]
        replay = [command, "replay", os.path.join(source, "tools/topologies/trace.toml"), "--processes", "--quiet"]
        replay += ["--report", report, "--set", f"telemetry.trace={trace}", "--checkpoints", *steps]
        subprocess.run(replay, check=True, stdout=subprocess.DEVNULL)
        traces = [word for path in sorted(glob.glob(f"{folder}/trace*.json")) for word in ("--trace", path)]
        subprocess.run([command, "report", report, *traces, "-o", page], check=True)
        browser = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        browser += ["--enable-logging=stderr", "--v=0", "--dump-dom", f"file://{page}"]
        opened = subprocess.run(browser, capture_output=True, text=True, timeout=100)
        with open(page, encoding="utf-8") as file:
            text = file.read()
    failures = [line for line in opened.stderr.splitlines() if "CONSOLE" in line]
    if opened.returncode != 0:
        failures.append(f"chromium ended with {opened.returncode}: {opened.stderr}")
    for part in ("verified", "Bytes on the wire", "Where time went against the limit", "times its limit", "worker 1", "rank 3: differ", "</svg>"):
        if part not in opened.stdout:
            failures.append(f"the page as the browser has it lacks {part!r}")
    failures += [f"fetches {link}" for link in re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//[^"'\s>]+""", text)]
    print("\n".join(failures) or "no line on the console, nothing from elsewhere")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
