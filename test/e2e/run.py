#!/usr/bin/env python3
"""Real faults on real processes. Usage: run.py BUILD TRANSPORT [--under COMMAND] [--six | CASE...]; TRANSPORT is shm or
tcp, COMMAND what each process is to run under, such as valgrind.

Prints a line for each case, with what it measured. Exit status 77: nothing could be run here."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import cases
from processes import Failed, Stage, ucx_version


def _can_make_namespaces() -> bool:
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip", "mount")):
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


def _run_one(build: pathlib.Path, transport: str, under: list[str], name: str) -> bool:
    start = time.monotonic()
    try:
        with Stage(build, transport, under) as stage:
            try:
                measured = cases.CASES[name](stage)
            except Failed:
                stage.tell_state()
                raise
    except Failed as failure:
        print(f"FAILED {name} ({transport}): {failure}", flush=True)
        return False
    print(f"ok {name} ({transport}), {time.monotonic() - start:.1f} s{': ' + measured if measured else ''}", flush=True)
    return True


def _cannot_run(build: pathlib.Path, transport: str, chosen: list[str]) -> dict[str, str]:
    """Of the chosen cases: why not."""
    why = {}
    if not _can_make_namespaces():
        why |= {name: "it takes root and namespaces" for name in ("network cut", "full disk")}
    if transport == "tcp" and ucx_version(build) < (1, 19):
        why |= {name: "UCX before 1.19 ends a process that loses a peer over TCP" for name in cases.LOSING}
    return {name: reason for name, reason in why.items() if name in chosen}


def main() -> int:
    build, transport = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    words, under = sys.argv[3:], []
    if words[:1] == ["--under"]:
        words, under = words[2:], shlex.split(words[1])
    every = [name for name in cases.CASES if transport == "tcp" or name not in cases.TCP_ONLY]
    chosen = cases.SIX if words == ["--six"] else words or every
    for name, reason in _cannot_run(build, transport, chosen).items():
        print(f"skipped: {name} ({transport}): {reason}")
        chosen = [other for other in chosen if other != name]
    if not chosen:
        return 77
    wrong = [name for name in chosen if not _run_one(build, transport, under, name)]
    print(f"{len(chosen) - len(wrong)} cases passed, {len(wrong)} failed")
    return 1 if wrong else 0


sys.exit(main())
