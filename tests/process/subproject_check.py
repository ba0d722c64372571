#!/usr/bin/env python3
"""tools/starter, out of the tree with deltawire as its subproject: what would be built is the library and nothing else.

Configures it, and compiles nothing: that takes as long as the library does. The parent's options make errors of
warnings; deltawire's sources are compiled without any.

    subproject_check.py SOURCE_ROOT COMPILER...
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile


def main():
    source, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
    if not shutil.which("meson"):
        print("skipped: no meson")
        return 77
    with tempfile.TemporaryDirectory(prefix="deltawire-subproject-") as scratch:
        project = pathlib.Path(scratch, "project")
        shutil.copytree(source / "tools" / "starter", project)
        (project / "subprojects").mkdir()
        (project / "subprojects" / "deltawire").symlink_to(source)
        command = ["meson", "setup", project / "build", project, "--force-fallback-for=deltawire", "-Dwerror=true"]
        environment = dict(os.environ, CXX=shlex.join(compiler))
        setup = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, env=environment
        )
        if setup.returncode != 0:
            sys.exit(setup.stdout)
        print(setup.stdout)
        targets = json.loads((project / "build" / "meson-info" / "intro-targets.json").read_text(encoding="utf-8"))
        commands = json.loads((project / "build" / "compile_commands.json").read_text(encoding="utf-8"))

    names = {target["name"] for target in targets}
    if not {"deltawire", "starter"} <= names:
        sys.exit(f"the targets are {names}")
    for target in targets:
        if target["type"] == "custom" or (target["type"] == "executable" and target["name"] != "starter"):
            sys.exit(f"{target['name']}, a target of type {target['type']}, is no part of the library")
    ours = [entry for entry in commands if "subprojects/deltawire/" in entry["file"]]
    rooms = {entry["file"].split("subprojects/deltawire/")[1].split("/")[0] for entry in ours}
    if rooms != {"actors", "kernels", "src"}:
        sys.exit(f"sources of {sorted(rooms)} are compiled")
    for entry in ours:
        if "-w" not in shlex.split(entry["command"]):
            sys.exit(f"{entry['file']} is compiled with warnings: {entry['command']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
