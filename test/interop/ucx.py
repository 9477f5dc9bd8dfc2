"""kvferry on several releases of UCX against stock peers, and the stock NIXL's own UCX on the other side."""

import pathlib
import re

from matrix import POOL, TRANSPORTS, Cell, Numbers, Shape, lines, move
from processes import Failed, Line, Place, Process, Scene

PROFILE = "0.4.7"
SYSTEM = "system"
RELEASES = (SYSTEM, "1.18.1", "1.19.0", "1.22.0")
DEADLINE = "5s"  # of the room: a put that hangs must end as a failed room with a reason
SECONDS = 20.0


def libraries(place: Place, release: str) -> pathlib.Path | None:
    """Where the release lies; None for the one that the old build was made with."""
    if release == SYSTEM:
        return None
    for folder in (place.packages, place.build):
        if (folder / f"ucx-{release}").is_dir():
            return folder / f"ucx-{release}" / "libucx" / "lib"
    raise Failed(f"UCX {release} wasn't brought")


MIXED = tuple(
    (prefill, decode) for old in (SYSTEM, "1.18.1") for prefill, decode in ((old, "1.22.0"), ("1.22.0", old))
)


def cells() -> list[Cell]:
    with_stock = [
        Cell(prefill, decode, PROFILE, transport, f"kvferry on UCX {release}")
        for release in RELEASES
        for prefill, decode in (("stock", "kvferry"), ("kvferry", "stock"))
        for transport in TRANSPORTS
    ]
    among_us = [
        Cell("kvferry", "kvferry", PROFILE, transport, f"prefill on UCX {prefill}, decode on UCX {decode}")
        for prefill, decode in MIXED
        for transport in TRANSPORTS
    ]
    return with_stock + among_us


# Pairs of UCX that don't meet: large puts over shared memory hang or are lost between 1.13 and newer ones.
# There our side must end the room by its deadline and say which UCX it has and which it needs.
BROKEN = {
    ("stock", "kvferry", "shm", f"kvferry on UCX {SYSTEM}"),  # refused before anything is sent
    ("kvferry", "stock", "shm+cma", f"kvferry on UCX {SYSTEM}"),
    ("kvferry", "stock", "shm", f"kvferry on UCX {SYSTEM}"),
    ("kvferry", "kvferry", "shm+cma", f"prefill on UCX {SYSTEM}, decode on UCX 1.22.0"),
    ("kvferry", "kvferry", "shm", f"prefill on UCX {SYSTEM}, decode on UCX 1.22.0"),
    ("kvferry", "kvferry", "shm", f"prefill on UCX 1.22.0, decode on UCX {SYSTEM}"),
}


def says_what_to_do(cell: Cell, prefill: Process, decode: Process, sends: list[Line], receives: list[Line]) -> str:
    """What our sides say of a room that can't work."""
    prefill.tell(*sends)
    decode.tell(*receives)
    reasons = []
    for kind, process in ((cell.prefill, prefill), (cell.decode, decode)):
        if kind == "kvferry":
            outcome = process.await_rooms([sends[0]["room"]], SECONDS)[sends[0]["room"]]
            if outcome["state"] != "failed":
                raise Failed(f"{process.name}: this pair was known not to work: {outcome}")
            reasons.append(f"{process.name}: {outcome['reason']}")
    text = "; ".join(reasons)
    if not re.search(r"UCX 1\.\d+.*1\.19", text):
        raise Failed(f"the reason names no versions: {text}")
    return text


def survives(cell: Cell, prefill: Process) -> None:
    """A pair that can't work must not end the stock prefill."""
    if cell.prefill == "stock" and (not prefill.running or prefill.complaints()):
        raise Failed(f"{prefill.name} has ended")


def play(place: Place, cell: Cell) -> str:
    numbers = Numbers()
    releases = re.findall(r"UCX ([\w.]+)", cell.what)
    with Scene(place, PROFILE, TRANSPORTS[cell.transport], old_build=True) as scene:
        server = scene.bootstrap("kvferry")
        scene.ucx = libraries(place, releases[0])
        prefill = scene.worker(cell.prefill, "prefill", server, POOL, waiting_timeout=DEADLINE)
        scene.ucx = libraries(place, releases[-1])
        decode = scene.worker(cell.decode, "decode", server, POOL, waiting_timeout=DEADLINE)
        scene.ready(prefill, decode)
        server.await_ranks([(0, 0)])
        for scattered in (False, True):
            rooms = lines(Shape(1, scattered, chunked=True), numbers, POOL, seed=1)
            if (cell.prefill, cell.decode, cell.transport, cell.what) in BROKEN:
                seen = says_what_to_do(cell, prefill, decode, *rooms)
                survives(cell, prefill)
                return seen
            move(prefill, decode, *rooms, SECONDS)
    return ""


def run(place: Place, report) -> None:
    for cell in cells():
        if report.wants(cell):
            with report.trial(cell):
                seen = play(place, cell)
                if seen:
                    report.notes[cell] = seen
