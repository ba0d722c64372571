#!/usr/bin/env python3
"""Runs a command that a sanitizer must stop, with one report that contains every text given; fails otherwise."""

import argparse
import sys
import tempfile

import reports


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", action="append", default=[], help="what the report must contain; may be repeated")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deltawire-reports-") as folder:
        status, found = reports.run(arguments.command, folder)
    text = "\n".join(found.values())
    print(text)
    if status <= 0:
        sys.exit(f"exit status {status}: no sanitizer stopped it")
    if len(found) != 1:
        sys.exit(f"{len(found)} reports, expected one")
    missing = [wanted for wanted in arguments.text if wanted not in text]
    if missing:
        sys.exit(f"the report does not contain {missing}")


if __name__ == "__main__":
    main()
