"""The main matrix: who sends to whom, over what, in which pages."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from processes import Failed, Layout, Line, Place, Process, Scene, Server

PROFILES = ("0.4.7", "0.4.7.post1")
PAIRS = (("stock", "kvferry"), ("kvferry", "stock"), ("stock", "stock"), ("kvferry", "kvferry"))
TRANSPORTS = {"tcp": "tcp", "shm+cma": None, "shm": "posix,sysv,self"}
CELL_SECONDS = 60.0
POOL = Layout()


@dataclass(frozen=True)
class Cell:
    """One thing to be seen working. `what` tells it from its neighbours."""

    prefill: str
    decode: str
    profile: str
    transport: str
    what: str


@dataclass(frozen=True)
class Shape:
    rooms: int
    scattered: bool
    chunked: bool

    def __str__(self) -> str:
        rooms = "1 room" if self.rooms == 1 else f"{self.rooms} rooms"
        pages = "scattered" if self.scattered else "contiguous"
        return f"{rooms}, {pages}, {'several chunks' if self.chunked else 'one chunk'}"


# A thousand rooms take their time with a stock side: the easiest and the hardest of them are enough.
SHAPES = tuple(Shape(1, scattered, chunked) for scattered in (False, True) for chunked in (False, True)) + (
    Shape(1000, scattered=False, chunked=False),
    Shape(1000, scattered=True, chunked=True),
)


class Numbers:
    """Room numbers: a stock worker never forgets one, so none is used twice. The smallest and the largest come first."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        self._next += 1
        return {1: 0, 2: 2**63 - 1}.get(self._next, self._next)


def lines(shape: Shape, numbers: Numbers, layout: Layout, seed: int) -> tuple[list[Line], list[Line]]:
    """What prefill and decode are told, room for room."""
    order = random.Random(seed)
    per_room = 512 if shape.rooms == 1 else 4
    total = per_room * shape.rooms
    if shape.scattered:
        source = order.sample(range(layout.pages), total)
        target = order.sample(range(layout.pages), total)
    else:
        source = list(range(total))
        target = list(range(layout.pages - total, layout.pages))
    chunks = [per_room]
    if shape.chunked:
        chunks = [1, per_room // 2, per_room - per_room // 2 - 1]
        chunks = [count for count in chunks if count]
    slots = order.sample(range(layout.aux_slots), shape.rooms)
    back = order.sample(range(layout.aux_slots), shape.rooms)
    sends, receives = [], []
    for index in range(shape.rooms):
        pages = slice(index * per_room, (index + 1) * per_room)
        room = numbers.take()
        sends.append({"room": room, "pages": source[pages], "chunks": chunks, "aux_slot": slots[index]})
        receives.append(
            {
                "room": room,
                "pages": target[pages],
                "source_pages": source[pages],
                "aux_slot": back[index],
                "source_aux_slot": slots[index],
            }
        )
    return sends, receives


def move(prefill: Process, decode: Process, sends: list[Line], receives: list[Line], seconds: float) -> dict[int, Line]:
    """Lets the rooms run and checks every outcome. Returns decode's outcomes."""
    prefill.tell(*sends)
    decode.tell(*receives)
    rooms = [line["room"] for line in receives]
    outcomes = decode.await_rooms(rooms, seconds)
    check(decode, outcomes, verified=True)
    check(prefill, prefill.await_rooms(rooms, seconds), verified=None)
    for process in (prefill, decode):
        for complaint in process.complaints():
            raise Failed(f"{process.name}: {complaint}")
    return outcomes


def check(process: Process, outcomes: dict[int, Line], verified: bool | None) -> None:
    for room, outcome in outcomes.items():
        if outcome["state"] != "success":
            raise Failed(f"{process.name}: room {room} {outcome['state']}: {outcome.get('reason')}")
        if outcome["verified"] is not verified:
            raise Failed(f"{process.name}: room {room}: {outcome.get('mismatch', 'not verified')}")


def poison(decode: Process) -> None:
    before = sum("poisoned" in answer for answer in decode.answers)
    decode.tell({"poison": True})
    seen = 0

    def next_one(answer: Line) -> bool:
        nonlocal seen
        seen += "poisoned" in answer
        return seen > before

    decode.await_answer("poisoning", next_one, 20)


@dataclass
class Pair:
    """One prefill rank and one decode rank that have found each other's bootstrap server."""

    server: Server
    prefill: Process
    decode: Process


def pair(scene: Scene, prefill: str, decode: str, layout: Layout = POOL, server: str | None = None) -> Pair:
    """Starts both; the bootstrap server is of the prefill's kind, as it is part of the prefill server."""
    bootstrap = scene.bootstrap(server or prefill)
    sender = scene.worker(prefill, "prefill", bootstrap, layout)
    receiver = scene.worker(decode, "decode", bootstrap, layout)
    scene.ready(sender, receiver)
    bootstrap.await_ranks([(0, 0)])
    return Pair(bootstrap, sender, receiver)


def groups() -> Iterator[tuple[str, str, str, str]]:
    for profile in PROFILES:
        for prefill, decode in PAIRS:
            for transport in TRANSPORTS:
                yield prefill, decode, profile, transport


def cells() -> list[Cell]:
    return [Cell(*group, str(shape)) for group in groups() for shape in SHAPES]


def run(place: Place, report) -> None:
    for prefill, decode, profile, transport in groups():
        mine = [(shape, Cell(prefill, decode, profile, transport, str(shape))) for shape in SHAPES]
        if not any(report.wants(cell) for _, cell in mine):
            continue
        numbers = Numbers()
        with report.together([cell for _, cell in mine]), Scene(place, profile, TRANSPORTS[transport]) as scene:
            both = pair(scene, prefill, decode)
            report.version(both.prefill, both.decode)
            for seed, (shape, cell) in enumerate(mine):
                if not report.wants(cell):
                    continue
                with report.trial(cell):
                    poison(both.decode)
                    move(both.prefill, both.decode, *lines(shape, numbers, POOL, seed), CELL_SECONDS)
