#!/usr/bin/env python3
"""What `meson install` leaves is enough to build and run a program that embeds deltawire.

Installs a built tree into a folder of its own, copies tools/starter there, builds it against what was installed (its
own meson.build, by pkg-config), and runs it: it ends with 0 only where the worker's memory is the trainer's.

Arguments: the build folder, the source folder.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(command, **more):
    """Runs it; where it fails, its output is the reason."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, **more)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def main():
    build, source = map(pathlib.Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="deltawire-install-") as scratch:
        root = pathlib.Path(scratch)
        run(["meson", "install", "--no-rebuild", "-C", build, "--destdir", root / "destination"])
        package = next((root / "destination").rglob("deltawire.pc"))
        # Staged below another folder: what was configured as the prefix lies there.
        lines = package.read_text(encoding="utf-8").splitlines()
        prefix = next(line.removeprefix("prefix=") for line in lines if line.startswith("prefix="))
        staged = str(root / "destination") + prefix
        package.write_text(
            "\n".join(f"prefix={staged}" if line.startswith("prefix=") else line for line in lines) + "\n",
            encoding="utf-8",
        )
        for header in (source / "include" / "deltawire").iterdir():
            if not (pathlib.Path(staged) / "include" / "deltawire" / header.name).is_file():
                sys.exit(f"{header.name} is not installed")
        if "deltawire " not in run([pathlib.Path(staged) / "bin" / "deltawire", "--version"]):
            sys.exit("the installed command does not say its version")

        shutil.copytree(source / "tools" / "starter", root / "project")
        paths = [str(package.parent), os.environ.get("PKG_CONFIG_PATH", "")]
        environment = dict(os.environ, PKG_CONFIG_PATH=":".join(filter(None, paths)))
        environment["LD_LIBRARY_PATH"] = str(package.parent.parent) # where it was built as a shared library
        run(["meson", "setup", root / "project" / "build", root / "project", "--wrap-mode=nofallback"], env=environment)
        run(["ninja", "-C", root / "project" / "build"], env=environment)
        said = run([root / "project" / "build" / "my-trainer", root / "project" / "topology.toml"], env=environment)
        print(said)
        if "verified" not in said or "version 4" not in said:
            sys.exit("the starter did not verify its four versions")


if __name__ == "__main__":
    main()
