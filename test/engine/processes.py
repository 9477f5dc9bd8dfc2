"""Processes and their families: what they are called, what they map, how much CPU each thread took, their end."""

import os
import pathlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Found = TypeVar("Found")
TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """Something didn't happen as it should; the text goes into the report."""


def wait_for(what: str, look: Callable[[], Found], seconds: float, pause: float = 0.05) -> Found:
    """Looks again and again until something true comes of it; Failed when that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


def _status(pid: int) -> tuple[str, int] | None:
    """State letter and parent."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1])


def alive(pid: int) -> bool:
    status = _status(pid)
    return status is not None and status[0] not in "ZX"


def family(pid: int) -> list[int]:
    """The process and all that descend from it, eldest first."""
    parents: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _status(int(entry.name))):
            parents.setdefault(status[1], []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += parents.get(member, [])
    return found


def title(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def libraries(pid: int) -> set[str]:
    """File names of all that is mapped."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {fields[5].rpartition("/")[2] for line in lines if len(fields := line.split(None, 5)) == 6}


@dataclass(frozen=True)
class Thread:
    name: str
    seconds: float  # of CPU, user and system


def threads(pid: int) -> dict[int, Thread]:
    found = {}
    for entry in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        fields = text.rpartition(")")[2].split()
        name = text.partition("(")[2].rpartition(")")[0]
        found[int(entry.name)] = Thread(name, (int(fields[11]) + int(fields[12])) / TICKS)
    return found


def end(pids: list[int], seconds: float = 10) -> None:
    """Kills these and waits until none is left."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_for(f"the end of processes {pids}", lambda: not any(map(alive, pids)), seconds, 0.01)
