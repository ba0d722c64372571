#!/usr/bin/env python3
"""Scrapes a running replay and has promtool (Debian package prometheus) check what it got. Skipped (77) without it.

    promtool_check.py DELTAWIRE SOURCE_ROOT
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.request


def main():
    command, source = sys.argv[1:]
    if not shutil.which("promtool"):
        print("skipped: promtool is not installed (Debian package prometheus)")
        return 77
    steps = [os.path.join(source, f"tests/data/trace/trainer/step-0{step % 4}.safetensors") for step in range(200)]
    replay = [command, "replay", os.path.join(source, "tools/topologies/trace.toml"), "--quiet"]
    replay += ["--set", "telemetry.prometheus=127.0.0.1:0", "--checkpoints", *steps]
    text = b""
    with subprocess.Popen(replay, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if "no metrics endpoint" in line:
                print("skipped: this build has no metrics endpoint (Meson option prometheus)")
                return 77
            if found := re.search(r"metrics at (http://\S+)", line):
                try:
                    while True:  # until the run ends; workers serve longer than the root, whose updates these are
                        scrape = urllib.request.urlopen(found[1], timeout=5).read()
                        if b"deltawire_update_density" in scrape or not text:
                            text = scrape
                except OSError:
                    pass
    if running.returncode != 0 or b"deltawire_update_density" not in text:
        print(f"no scrape of an update; the replay ended with {running.returncode}")
        return 1
    check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    sys.stdout.buffer.write(check.stdout + check.stderr)
    return check.returncode


if __name__ == "__main__":
    sys.exit(main())
