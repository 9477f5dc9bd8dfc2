"""Bootstrap servers of either kind for either kind of worker, and restarts of each part while the others stay."""

from collections.abc import Callable

from matrix import Cell, Numbers, Pair, check, move, pair, poison
from processes import Layout, Place, Process, Scene

CELL_SECONDS = 30.0
PAGES = 32
POOL = Layout(buffers=2, pages=64, item_length=2048, aux_slots=64)


def one_room(prefill: Process, decode: Process, room: int) -> None:
    poison(decode)
    sends = [{"room": room, "pages": {"range": [1, PAGES]}, "chunks": [5, PAGES - 5], "aux_slot": 3}]
    receives = [
        {
            "room": room,
            "pages": {"range": [30, PAGES]},
            "source_pages": {"range": [1, PAGES]},
            "aux_slot": 7,
            "source_aux_slot": 3,
        }
    ]
    move(prefill, decode, sends, receives, CELL_SECONDS)


def rooms(both: Pair, numbers: Numbers, count: int = 3) -> None:
    for _ in range(count):
        one_room(both.prefill, both.decode, numbers.take())


def other_kind(kind: str) -> str:
    return "stock" if kind == "kvferry" else "kvferry"


def foreign_server(scene: Scene, prefill: str, decode: str) -> None:
    rooms(pair(scene, prefill, decode, POOL, server=other_kind(prefill)), Numbers())


def restart_decode(scene: Scene, prefill: str, decode: str) -> None:
    both, numbers = pair(scene, prefill, decode, POOL), Numbers()
    rooms(both, numbers)
    for _ in range(2):
        both.decode.kill()
        both.decode = scene.worker(decode, "decode", both.server, POOL)
        scene.ready(both.decode)
        rooms(both, numbers)


def restart_prefill(scene: Scene, prefill: str, decode: str) -> None:
    """A stock decode looks for a restarted prefill on its old port only; ours asks the bootstrap server again."""
    both, numbers = pair(scene, prefill, decode, POOL), Numbers()
    rooms(both, numbers)
    for _ in range(2):
        ready = next(answer for answer in both.prefill.answers if answer.get("ready"))
        both.prefill.kill()
        port = ready["port"] if decode == "stock" else 0
        both.prefill = scene.worker(prefill, "prefill", both.server, POOL, port=port)
        scene.ready(both.prefill)
        both.server.await_port(both.prefill)
        rooms(both, numbers)


def restart_server(scene: Scene, prefill: str, decode: str) -> None:
    """A kvferry prefill notices that its row is gone and PUTs it again; a fresh decode must find it there."""
    numbers = Numbers()
    server = scene.bootstrap(decode)
    sender = scene.worker(prefill, "prefill", server, POOL, registration_check="500ms")
    receiver = scene.worker(decode, "decode", server, POOL)
    scene.ready(sender, receiver)
    server.await_ranks([(0, 0)])
    both = Pair(server, sender, receiver)
    rooms(both, numbers)
    server.process.kill()
    rooms(both, numbers, 1)
    both.server = scene.bootstrap(decode, server.port)
    both.server.await_ranks([(0, 0)])
    rooms(both, numbers, 1)
    both.decode.kill()
    both.decode = scene.worker(decode, "decode", both.server, POOL)
    scene.ready(both.decode)
    rooms(both, numbers)


Play = Callable[[Scene, str, str], None]
PLAYS: list[tuple[str, str, str, Play]] = [
    ("stock", "kvferry", "kvferry bootstrap server", foreign_server),
    ("kvferry", "stock", "stock bootstrap server", foreign_server),
    ("stock", "stock", "kvferry bootstrap server", foreign_server),
    ("kvferry", "kvferry", "stock bootstrap server", foreign_server),
    ("stock", "kvferry", "decode killed and restarted, twice", restart_decode),
    ("kvferry", "stock", "decode killed and restarted, twice", restart_decode),
    ("stock", "kvferry", "prefill killed and restarted, twice", restart_prefill),
    ("kvferry", "stock", "prefill killed and restarted on its port, twice", restart_prefill),
    ("kvferry", "stock", "stock bootstrap server restarted", restart_server),
    ("kvferry", "kvferry", "kvferry bootstrap server restarted", restart_server),
]
PROFILE = "0.4.7"  # the HTTP side of the two profiles is the same


def cells() -> list[Cell]:
    return [Cell(prefill, decode, PROFILE, "tcp", what) for prefill, decode, what, _ in PLAYS]


def run(place: Place, report) -> None:
    for cell, (prefill, decode, _, play) in zip(cells(), PLAYS, strict=True):
        if report.wants(cell):
            with report.trial(cell), Scene(place, PROFILE, "tcp") as scene:
                play(scene, prefill, decode)
                scene.check_complaints()
