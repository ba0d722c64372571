#!/usr/bin/env python3
"""What `meson install` leaves is enough to build and run a program that embeds deltawire.

Installs a built tree below a scratch folder, and builds tools/starter against it twice: with the compiler and
pkg-config alone, and with its own meson.build. Each program must verify its updates. Skipped (77) without pkg-config.

    install_check.py BUILD_ROOT SOURCE_ROOT COMPILER...
"""

import os
import pathlib
import shlex
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
    build, source, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    for tool in ("pkg-config", "meson", "ninja"):
        if not shutil.which(tool):
            print(f"skipped: no {tool}")
            return 77
    with tempfile.TemporaryDirectory(prefix="deltawire-install-") as scratch:
        root = pathlib.Path(scratch)
        run(["meson", "install", "--no-rebuild", "-C", build, "--destdir", root / "destination"])
        package = next((root / "destination").rglob("deltawire.pc"))
        # Staged below another folder: what was configured as the prefix lies there.
        lines = package.read_text(encoding="utf-8").splitlines()
        prefix = next(line.removeprefix("prefix=") for line in lines if line.startswith("prefix="))
        staged = str(root / "destination") + prefix
        lines = [f"prefix={staged}" if line.startswith("prefix=") else line for line in lines]
        package.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for header in (source / "include" / "deltawire").iterdir():
            if not (pathlib.Path(staged) / "include" / "deltawire" / header.name).is_file():
                sys.exit(f"{header.name} is not installed")
        if "deltawire " not in run([pathlib.Path(staged) / "bin" / "deltawire", "--version"]):
            sys.exit("the installed command does not say its version")

        project = root / "project"
        shutil.copytree(source / "tools" / "starter", project)
        paths = filter(None, [str(package.parent), os.environ.get("PKG_CONFIG_PATH")])
        environment = dict(os.environ, PKG_CONFIG_PATH=":".join(paths), CXX=shlex.join(compiler))
        environment["LD_LIBRARY_PATH"] = str(package.parent.parent)  # where it was built as a shared library

        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", "deltawire"], env=environment))
        run([*compiler, "-std=c++20", project / "main.cpp", "-o", root / "by-pkg-config", *flags])
        run(["meson", "setup", project / "build", project, "--wrap-mode=nofallback"], env=environment)
        run(["ninja", "-C", project / "build"], env=environment)
        for program in (root / "by-pkg-config", project / "build" / "starter"):
            said = run([program, project / "one_process.toml"], env=environment)
            print(said)
            if "version 4" not in said or "verified" not in said:
                sys.exit(f"{program} did not verify its four versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
