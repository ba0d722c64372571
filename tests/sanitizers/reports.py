"""Sanitizer reports in files instead of on standard error, where the test that started a process may swallow them."""

import os
import pathlib
import platform
import subprocess

_OPTIONS = ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")


def _without_address_randomisation(command):
    """GCC 12's thread sanitizer cannot start where the kernel randomises more than 28 bits of an address."""
    try:
        bits = int(pathlib.Path("/proc/sys/vm/mmap_rnd_bits").read_text(encoding="ascii"))
    except (OSError, ValueError):
        bits = 0
    wrapped = ["setarch", platform.machine(), "--addr-no-randomize"]
    if bits <= 28 or subprocess.run([*wrapped, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        return command
    return wrapped + command


def run(command, folder):
    """Runs the command; returns its exit status and the reports that it and its children left in the folder.

    The status is -N where signal N killed the command, as subprocess has it.
    """
    environment = dict(os.environ)
    for name in _OPTIONS:
        given = environment.get(name)
        environment[name] = (given + ":" if given else "") + f"log_path={folder}/report:log_exe_name=1"
    status = subprocess.run(_without_address_randomisation(command), check=False, env=environment).returncode
    reports = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in pathlib.Path(folder).iterdir()}
    return status, {name: text for name, text in sorted(reports.items()) if text.strip()}
