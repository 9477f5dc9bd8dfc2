"""One big room of scattered small pages, from whom to whom, in one run: the time until every byte is there."""

import random
import statistics

from matrix import PAIRS, TRANSPORTS, Cell, move, pair, poison
from processes import Layout, Place, Scene

PROFILE = "0.4.7"
POOL = Layout(buffers=64, pages=4096, item_length=2048, aux_slots=16)
ROOMS = {"shm+cma": 2, "tcp": 1}
SECONDS = 90.0


def cells() -> list[Cell]:
    return [
        Cell(prefill, decode, PROFILE, transport, "speed, 2 KiB x 4096 x 64 scattered")
        for transport in ROOMS
        for prefill, decode in PAIRS
    ]


def run(place: Place, report) -> None:
    for cell in cells():
        if not report.wants(cell):
            continue
        with report.trial(cell), Scene(place, PROFILE, TRANSPORTS[cell.transport]) as scene:
            both = pair(scene, cell.prefill, cell.decode, POOL)
            order = random.Random(7)
            seconds = []
            for room in range(1, ROOMS[cell.transport] + 1):
                poison(both.decode)
                source = order.sample(range(POOL.pages), POOL.pages)
                target = order.sample(range(POOL.pages), POOL.pages)
                sends = [{"room": room, "pages": source, "aux_slot": 1}]
                receives = [
                    {"room": room, "pages": target, "source_pages": source, "aux_slot": 2, "source_aux_slot": 1}
                ]
                outcomes = move(both.prefill, both.decode, sends, receives, SECONDS)
                seconds.append(outcomes[room]["seconds"])
            report.speeds[cell] = statistics.median(seconds)
