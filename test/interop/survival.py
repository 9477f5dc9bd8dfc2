"""No message of kvferry ends a stock peer: after each kind, a *later* room completes at the same stock process."""

import itertools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from matrix import Cell, Numbers, move
from processes import Failed, Layout, Line, Place, Process, Scene, Server

SECONDS = 20.0
PAGES = 16
POOL = Layout(buffers=2, pages=64, item_length=2048, aux_slots=64)
PROFILES = ("0.4.7", "0.4.7.post1")
TARGET: Line = {"range": [40, PAGES]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Stage:
    """A stock process that must live, and what it takes to play against it."""

    scene: Scene
    server: Server
    stock: Process
    numbers: Numbers = field(default_factory=Numbers)
    ours: list[Process] = field(default_factory=list)
    port: int = field(default_factory=free_port)  # of our prefill: a stock decode never looks for another

    def worker(self, role: str, layout: Layout = POOL, *more: str, port: int = 0, **settings: str) -> Process:
        worker = self.scene.worker("kvferry", role, self.server, layout, *more, port=port, **settings)
        self.ours.append(worker)
        self.scene.ready(worker)
        if role == "prefill":
            self.server.await_port(worker)
        return worker

    def quit_ours(self) -> None:
        for process in self.ours:
            process.stop()
        self.ours.clear()


def source(room: int) -> tuple[Line, int]:
    """Pages and aux slot, other ones than those of the rooms before: what these left at the target would be wrong."""
    return {"range": [room % (POOL.pages - PAGES), PAGES]}, room % POOL.aux_slots


def send(room: int, **more: object) -> Line:
    pages, slot = source(room)
    return {"room": room, "pages": pages, "aux_slot": slot} | more


def receive(room: int, **more: object) -> Line:
    pages, slot = source(room)
    return {"room": room, "pages": TARGET, "source_pages": pages, "aux_slot": 2, "source_aux_slot": slot} | more


def one_good(prefill: Process, decode: Process, room: int) -> None:
    move(prefill, decode, [send(room, chunks=[3, PAGES - 3])], [receive(room)], SECONDS)


def ended_badly(process: Process, room: int) -> Line:
    outcome = process.await_rooms([room], SECONDS)[room]
    if outcome["state"] != "failed" or not outcome["reason"]:
        raise Failed(f"{process.name}: room {room} should have failed with a reason: {outcome}")
    return outcome


def await_statistic(process: Process, name: str, value: int) -> None:
    """Asks until it is so."""
    deadline = time.monotonic() + SECONDS
    seen = -1
    while seen != value:
        if time.monotonic() > deadline:
            raise Failed(f"{process.name}: {name} is {seen}, not {value}")
        asked = sum("statistics" in answer for answer in process.answers)
        process.tell({"statistics": True})
        numbers = itertools.count(1)
        answer = process.await_answer("statistics", lambda line: "statistics" in line and next(numbers) > asked, SECONDS)
        seen = answer["statistics"][name]


# ---- towards a stock prefill: our decode's requests -----------------------------------------------------


def extensions_on(stage: Stage) -> None:
    one_good(stage.stock, stage.worker("decode", extensions="on"), stage.numbers.take())


def extensions_assumed(stage: Stage) -> None:
    """The 13th frame goes out to a peer that is no kvferry: a stock listener must not mind."""
    one_good(stage.stock, stage.worker("decode", peer_extensions="assume"), stage.numbers.take())


def extensions_off(stage: Stage) -> None:
    one_good(stage.stock, stage.worker("decode", extensions="off"), stage.numbers.take())


def abort_requested(stage: Stage, decode: Process, room: int) -> None:
    """Aborts a room of which the stock prefill has heard."""
    stage.stock.tell(send(room, hold=True))
    decode.tell(receive(room))
    stage.stock.await_answer("request", lambda line: line.get("requested") == room, SECONDS)
    decode.tell({"abort": room})
    ended_badly(decode, room)


def aborted_before_the_send(stage: Stage) -> None:
    decode, room = stage.worker("decode"), stage.numbers.take()
    abort_requested(stage, decode, room)
    stage.stock.tell({"go": room})
    stage.stock.await_rooms([room], SECONDS)
    one_good(stage.stock, decode, stage.numbers.take())


def aborted_with_a_strict_fence(stage: Stage) -> None:
    """Its inbox is closed when the stock prefill has written all: nothing is written there any more, so it may be."""
    decode, room = stage.worker("decode", fence="strict"), stage.numbers.take()
    for _ in range(3):
        abort_requested(stage, decode, room)
        stage.stock.tell({"go": room})
        stage.stock.await_rooms([room], SECONDS)
        room = stage.numbers.take()
        one_good(stage.stock, decode, stage.numbers.take())


def asked_again_after_an_abort(stage: Stage) -> None:
    """The same number once more: the second request overwrites the first at a stock prefill."""
    decode, room = stage.worker("decode"), stage.numbers.take()
    abort_requested(stage, decode, room)
    before = len(decode.answers)
    decode.tell(receive(room))
    stage.stock.tell({"go": room})
    stage.stock.await_rooms([room], SECONDS)
    decode.await_answer("end of the repeated room", lambda line: line in decode.answers[before:], SECONDS)
    one_good(stage.stock, decode, stage.numbers.take())


def deadline_passed(stage: Stage) -> None:
    decode, room = stage.worker("decode", waiting_timeout="500ms"), stage.numbers.take()
    stage.stock.tell(send(room, hold=True))
    decode.tell(receive(room))
    ended_badly(decode, room)
    one_good(stage.stock, decode, stage.numbers.take())


def quit_with_an_open_room(stage: Stage) -> None:
    decode, room = stage.worker("decode"), stage.numbers.take()
    decode.tell(receive(room))
    one_good(stage.stock, decode, stage.numbers.take())
    decode.stop()


def no_pages(stage: Stage) -> None:
    """An empty page list means a dummy to a stock prefill: it must not be sent for a room."""
    decode, room = stage.worker("decode"), stage.numbers.take()
    decode.tell(receive(room, pages=[], source_pages=[]))
    ended_badly(decode, room)
    one_good(stage.stock, decode, stage.numbers.take())


def no_aux_buffers(stage: Stage) -> None:
    """A stock prefill ends in send() when a request brings no aux address: the room must be refused here."""
    decode, room = stage.worker("decode", replace(POOL, aux=0)), stage.numbers.take()
    stage.stock.tell(send(room))  # where a scheduler that dies of such a request would die
    decode.tell(receive(room))
    ended_badly(decode, room)


def one_aux_buffer(stage: Stage) -> None:
    one_good(stage.stock, stage.worker("decode", replace(POOL, aux=1)), stage.numbers.take())


def more_buffers(stage: Stage) -> None:
    """A stock prefill takes as many pointers as it has layers and leaves the rest alone."""
    decode, room = stage.worker("decode", replace(POOL, buffers=4), "--no-verify"), stage.numbers.take()
    decode.tell(receive(room))
    stage.stock.tell(send(room))
    stage.stock.await_rooms([room], SECONDS)


def many_requests(stage: Stage) -> None:
    decode = stage.worker("decode")
    rooms = [stage.numbers.take() for _ in range(200)]
    decode.tell(*(receive(room, aux_slot=5) for room in rooms))
    decode.tell(*({"abort": room} for room in rooms[::2]))
    stage.stock.tell(*(send(room) for room in rooms[1::2]))
    decode.await_rooms(rooms, SECONDS)
    one_good(stage.stock, decode, stage.numbers.take())


# ---- towards a stock decode: our prefill's notifications ------------------------------------------------


def with_extensions(stage: Stage) -> None:
    one_good(stage.worker("prefill", port=stage.port, extensions="on"), stage.stock, stage.numbers.take())


def without_extensions(stage: Stage) -> None:
    one_good(stage.worker("prefill", port=stage.port, extensions="off"), stage.stock, stage.numbers.take())


def aborted_sender(stage: Stage) -> None:
    prefill, room = stage.worker("prefill", port=stage.port), stage.numbers.take()
    stage.stock.tell(receive(room))
    prefill.tell(send(room, chunks=[PAGES]), {"abort": room})
    prefill.await_rooms([room], SECONDS)
    one_good(prefill, stage.stock, stage.numbers.take())


def aborted_before_the_request(stage: Stage) -> None:
    prefill, room = stage.worker("prefill", port=stage.port), stage.numbers.take()
    prefill.tell(send(room), {"abort": room})
    ended_badly(prefill, room)
    stage.stock.tell(receive(room))
    one_good(prefill, stage.stock, stage.numbers.take())


def another_page_count(stage: Stage) -> None:
    """Stock's own prefill dies of it; ours refuses the room before the first byte."""
    prefill, room = stage.worker("prefill", port=stage.port), stage.numbers.take()
    stage.stock.tell(receive(room))
    prefill.tell(send(room, pages={"range": [1, PAGES + 2]}))
    ended_badly(prefill, room)
    one_good(prefill, stage.stock, stage.numbers.take())


def source_has_no_aux(stage: Stage) -> None:
    prefill, room = stage.worker("prefill", replace(POOL, aux=0), port=stage.port), stage.numbers.take()
    stage.stock.tell(receive(room))
    prefill.tell(send(room))
    prefill.await_rooms([room], SECONDS)


def held_too_long(stage: Stage) -> None:
    prefill, room = stage.worker("prefill", port=stage.port, hold_timeout="200ms"), stage.numbers.take()
    stage.stock.tell(receive(room))
    await_statistic(prefill, "requests_expired", 1)
    one_good(prefill, stage.stock, stage.numbers.take())


def quit_and_back(stage: Stage) -> None:
    prefill, room = stage.worker("prefill", port=stage.port), stage.numbers.take()
    prefill.tell(send(room))
    stage.stock.tell(receive(room))
    prefill.stop()


def foreign_request(stage: Stage) -> None:
    """The other dialect's width, told apart by the page count: refused, and the stock process never hears of it."""
    other = "0.4.7" if stage.scene.profile == "0.4.7.post1" else "0.4.7.post1"
    prefill = stage.worker("prefill", port=stage.port, profile=f"sglang-{other}")
    room = stage.numbers.take()
    stage.stock.tell(receive(room))
    prefill.tell(send(room))
    outcome = ended_badly(prefill, room)
    if f"sglang-{stage.scene.profile}" not in outcome["reason"]:
        raise Failed(f"the reason doesn't name the profile that the peer speaks: {outcome['reason']}")


Play = Callable[[Stage], None]
TO_PREFILL: list[tuple[str, Play]] = [
    ("request, extensions on", extensions_on),
    ("request, 13th frame", extensions_assumed),
    ("request, extensions off", extensions_off),
    ("request aborted before the send", aborted_before_the_send),
    ("request aborted before the send, fence=strict", aborted_with_a_strict_fence),
    ("request repeated after an abort", asked_again_after_an_abort),
    ("request whose deadline passed", deadline_passed),
    ("decode quits with a room open", quit_with_an_open_room),
    ("room of no pages", no_pages),
    ("no aux buffers", no_aux_buffers),
    ("one aux buffer", one_aux_buffer),
    ("more buffers than prefill's", more_buffers),
    ("200 requests, half of them aborted", many_requests),
]
TO_DECODE: list[tuple[str, Play]] = [
    ("chunks, extensions on", with_extensions),
    ("chunks, extensions off", without_extensions),
    ("sender aborted", aborted_sender),
    ("sender aborted before the request", aborted_before_the_request),
    ("another page count", another_page_count),
    ("prefill without aux buffers", source_has_no_aux),
    ("request held too long", held_too_long),
    ("prefill quits with a room open", quit_and_back),
    ("prefill speaks the other profile", foreign_request),
]


def cells() -> list[Cell]:
    to_prefill = [Cell("stock", "kvferry", profile, "tcp", f"later room after: {what}") for profile in PROFILES for what, _ in TO_PREFILL]
    to_decode = [Cell("kvferry", "stock", profile, "tcp", f"later room after: {what}") for profile in PROFILES for what, _ in TO_DECODE]
    return to_prefill + to_decode


def play_all(place: Place, report, profile: str, role: str, plays: list[tuple[str, Play]]) -> None:
    other = "decode" if role == "prefill" else "prefill"
    pairs = ("stock", "kvferry") if role == "prefill" else ("kvferry", "stock")
    mine = [(Cell(*pairs, profile, "tcp", f"later room after: {what}"), play) for what, play in plays]
    mine = [(cell, play) for cell, play in mine if report.wants(cell)]
    if not mine:
        return
    with report.together([cell for cell, _ in mine]), Scene(place, profile, "tcp") as scene:
        server = scene.bootstrap("kvferry")
        stage = Stage(scene, server, scene.worker("stock", role, server, POOL))
        scene.ready(stage.stock)
        for cell, play in mine:
            with report.trial(cell):
                play(stage)
                stage.quit_ours()
                judge = stage.worker(other, port=0 if role == "prefill" else stage.port)
                both = (stage.stock, judge) if role == "prefill" else (judge, stage.stock)
                one_good(*both, stage.numbers.take())
                scene.check_complaints()
                stage.quit_ours()


def run(place: Place, report) -> None:
    for profile in PROFILES:
        play_all(place, report, profile, "prefill", TO_PREFILL)
        play_all(place, report, profile, "decode", TO_DECODE)
