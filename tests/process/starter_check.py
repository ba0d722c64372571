#!/usr/bin/env python3
"""tools/starter does what it says: as one process, and as a trainer and a worker over TCP. It verifies itself.

    starter_check.py STARTER SOURCE_ROOT
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile

VERIFIED = "worker: verified, its memory is the trainer's, bit for bit"


def start(*command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(running, expected):
    """Its output is the reason where it fails, or does not say what is expected."""
    try:
        said = running.communicate(timeout=90)[0]
    except subprocess.TimeoutExpired:
        running.kill()
        sys.exit(f"{running.args} did not end:\n{running.communicate()[0]}")
    print(said)
    missing = [line for line in expected if line not in said]
    if running.returncode != 0 or missing:
        sys.exit(f"{running.args} ended with {running.returncode} and did not say {missing}")


def main():
    starter, folder = sys.argv[1], pathlib.Path(sys.argv[2], "tools", "starter")
    trained = ["trainer: version 1, seed", "trainer: version 4, delta, 2560 of 256000 weights changed"]
    served = ["worker: version 4, 2560 weights of model.weight written", VERIFIED]
    ended(start(starter, folder / "one_process.toml"), trained + served)

    with socket.socket() as reserved, tempfile.TemporaryDirectory(prefix="deltawire-starter-") as scratch:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))  # nobody else gets it by chance until this process ends
        text = (folder / "two_processes.toml").read_text(encoding="utf-8")
        topology = os.path.join(scratch, "topology.toml")
        if text.count("127.0.0.1:29500") != 1:
            sys.exit("two_processes.toml names no port to put another in place of")
        with open(topology, "w", encoding="utf-8") as file:
            file.write(text.replace("127.0.0.1:29500", f"127.0.0.1:{reserved.getsockname()[1]}"))
        worker, trainer = start(starter, topology, "worker"), start(starter, topology, "trainer")
        ended(trainer, trained)
        ended(worker, served)

    if start(starter, folder / "one_process.toml", "rank").wait(timeout=30) != 2:
        sys.exit("a side that is none was not refused")


if __name__ == "__main__":
    main()
