"""The network and file systems that only the servers of this run see. scripts/engine.sh has unshared them before."""

import os
import pathlib
import signal
import subprocess
import sys

from processes import alive, wait_for

DEVICE = "engine0"
ADDRESS = "10.77.0.1"
_COMMANDS = (
    "ip link set lo up",
    # UCX 1.19, which NIXL 0.3.1 brings, can't reach a newer UCX over the loopback device alone: give both another one.
    f"ip link add {DEVICE} type veth peer name engine1",
    f"ip address add {ADDRESS}/24 dev {DEVICE}",
    f"ip link set {DEVICE} up",
    "ip link set engine1 up",
    f"ip route add default via {ADDRESS} dev {DEVICE}",
    "mount -t sysfs sysfs /sys",  # it shows the devices of whoever mounted it
    "mount -t tmpfs tmpfs /dev/shm",
)


def prepare() -> None:
    """Refuses to touch the namespaces that the machine itself lives in."""
    if os.getpid() != 1:
        sys.exit("engine: run.py expects namespaces of its own: start it with scripts/engine.sh")
    for command in _COMMANDS:
        subprocess.run(command.split(), check=True)


def leftover_segments() -> list[int]:
    """SysV shared memory that a process of this run made and nobody uses any more. It outlives its processes, and the
    kernel shows the makers outside of our process ids as 0. It isn't in a namespace of its own, because UCX 1.19 and
    newer ones then don't find each other's."""
    rows = [row.split() for row in pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return [int(row[1]) for row in rows if row[4] != "0" and row[6] == "0"]


def remove_leftovers() -> None:
    """Killed servers can't remove their shared memory themselves."""
    for segment in leftover_segments():
        subprocess.run(["ipcrm", "-m", str(segment)], check=False)


def end_all() -> None:
    """Every process but this one, which is the first of its own process ids: prepare() has seen to that."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    wait_for("the end of all processes", lambda: not any(map(alive, others())), 10, 0.01)


def others() -> list[int]:
    return [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and entry.name != "1"]
