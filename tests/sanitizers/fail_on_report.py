#!/usr/bin/env python3
"""Runs a test; fails when it fails, and when any of its processes, children included, left a sanitizer report."""

import sys
import tempfile

import reports

# Exit status of a test that passes but for a report.
REPORTED = 66


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: fail_on_report.py COMMAND [ARGUMENT...]")
    with tempfile.TemporaryDirectory(prefix="deltawire-reports-") as folder:
        status, found = reports.run(sys.argv[1:], folder)
    for name, text in found.items():
        print(f"==== {name}\n{text}", file=sys.stderr, flush=True)
    if found:
        print(f"{len(found)} processes left a sanitizer report", file=sys.stderr)
    if status == 0 and found:
        status = REPORTED
    # As a shell says it, where a signal ended the test.
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
