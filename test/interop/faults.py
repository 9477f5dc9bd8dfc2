"""Known faults played at kvferry while a stock peer has a room open with it: both must end well.

The ids are those of the list of SGLang's own faults: A discovery, B control messages, F notifications.
"""

import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import requests
import zmq

from matrix import Cell
from processes import START, Failed, Place, Process, Scene, Server
from survival import POOL, SECONDS, Stage, ended_badly, one_good, receive, send

PROFILE = "0.4.7"
GUARD = b"NixlMsgGuard"
QUICK = {"bootstrap_timeout": "3s", "http_timeout": "1s", "http_attempts": "2", "http_connect_timeout": "1s"}


# ---- A: bootstrap servers that answer wrongly, in front of our decode -------------------------------------

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def says(status: int, body: bytes) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def sizes(tp: object, dp: object, then: Answer) -> Answer:
    """Gives these sizes, and answers otherwise when asked for a rank."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        if "engine_rank=-1" in handler.path:
            says(200, f'{{"prefill_tp_size": {tp}, "prefill_dp_size": {dp}}}'.encode())(handler)
        else:
            then(handler)

    return answer


def silent(handler: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(6)


@contextmanager
def rogue_server(answer: Answer) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                answer(self)
            except OSError:
                pass  # the other side had enough

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


NOBODY = b'{"rank_ip": "127.0.0.1", "rank_port": 1}'
DISCOVERY: list[tuple[str, Answer]] = [
    ("B01 sizes answered with 500", says(500, b"500 Internal Server Error")),
    ("B01 sizes answered with nulls", says(200, b'{"prefill_tp_size": null, "prefill_dp_size": null}')),
    ("B02 rank answered with 500", sizes(1, 1, says(500, b"500 Internal Server Error"))),
    ("B05 server accepts and is silent", silent),
    ("B06 rank's port is closed", sizes(1, 1, says(200, NOBODY))),
    ("B14 another dp size than ranks", sizes(1, 4, says(404, b""))),
    ("B17 sizes that don't divide", sizes(6, 4, says(200, NOBODY))),
    ("A sizes of another model", sizes(4, 1, says(200, NOBODY))),
    ("A sizes are text", sizes('"x"', '"y"', says(200, NOBODY))),
    ("A answer is no JSON", says(200, b"<html>")),
    ("A answer is too long", says(200, b"[" * 3_000_000)),
    ("A answer is a redirect to itself", says(302, b"")),
]


def play_discovery(stage: Stage, decode: Process, answer: Answer) -> None:
    room, bad = stage.numbers.take(), stage.numbers.take()
    stage.stock.tell(send(room, hold=True))
    decode.tell(receive(room))
    stage.stock.await_answer("request", lambda line: line.get("requested") == room, SECONDS)
    with rogue_server(answer) as address:
        decode.tell(receive(bad, address=address, aux_slot=9, pages={"range": [20, 16]}))
        ended_badly(decode, bad)
    finish(stage, decode, room)


def finish(stage: Stage, ours: Process, room: int) -> None:
    """The stock prefill's room ends well now, and one that comes later too."""
    stage.stock.tell({"go": room})
    outcome = ours.await_rooms([room], SECONDS)[room]
    if outcome.get("verified") is not True:
        raise Failed(f"the stock peer's room suffered: {outcome}")
    stage.stock.await_rooms([room], SECONDS)
    one_good(stage.stock, ours, stage.numbers.take())


# ---- F: notifications that nobody understands, at our decode -----------------------------------------------

NOTIFICATIONS: list[bytes] = [
    b"abc",
    b"x_kv_0_1",
    b"{room}_kv",
    b"{room}_kv_0_2",
    b"{room}_kv_-1_1",
    b"{room}_kv_0_1_0_part_3_2",
    b"18446744073709551616_aux",
    b"{room}_unknown_1",
    b"\xff\xfe_kv_\xe4_1",
    b"{room}_" + b"k" * 65536,
    b"_",
    b"__",
    b"{room}_aux_0",
    b"{room}_kv_99999999999999999999_1",
    b"{room}_stg_0_1_2_3_4_5_a_b",
    b"999999_kv_0_1",
    b"999999_aux",
]


def play_notifications(stage: Stage, decode: Process) -> None:
    hostile_server = stage.scene.bootstrap("kvferry")
    hostile = stage.scene.hostile()
    port = hostile.await_answer("readiness", lambda line: "port" in line, START)["port"]
    put(hostile_server.address, port)
    room, bad = stage.numbers.take(), stage.numbers.take()
    stage.stock.tell(send(room, hold=True))
    decode.tell(receive(room))
    stage.stock.await_answer("request", lambda line: line.get("requested") == room, SECONDS)
    decode.tell(receive(bad, address=hostile_server.address, aux_slot=9, pages={"range": [20, 16]}))
    hostile.await_answer("request", lambda line: line.get("requested") == bad, SECONDS)
    number = str(bad).encode()
    messages = [message.replace(b"{room}", number).hex() for message in NOTIFICATIONS]
    messages += [(number + b"_kv_1_0").hex()] * 1000
    hostile.tell({"notify": messages})
    hostile.await_answer("end of the notifications", lambda line: line.get("notified") == len(messages), SECONDS)
    decode.tell({"abort": bad})
    ended_badly(decode, bad)
    finish(stage, decode, room)


def put(address: str, port: int) -> None:
    row = {"role": "Prefill", "tp_size": 1, "dp_size": 1, "rank_ip": "127.0.0.1", "rank_port": port, "engine_rank": 0}
    requests.put(f"http://{address}/route", json=row, timeout=5).raise_for_status()


# ---- B: control messages, at our prefill ---------------------------------------------------------------------


class Tap:
    """Stands between a stock decode and our prefill's control port, to hear the real request and play with it."""

    def __init__(self, target: int) -> None:
        self.context = zmq.Context()
        self.pull = self.context.socket(zmq.PULL)
        self.port = self.pull.bind_to_random_port("tcp://127.0.0.1")
        self.target = target
        self.push = self.connect()

    def connect(self) -> zmq.Socket:
        push = self.context.socket(zmq.PUSH)
        push.setsockopt(zmq.LINGER, 1000)
        push.connect(f"tcp://127.0.0.1:{self.target}")
        return push

    def hear(self) -> list[bytes]:
        if not self.pull.poll(SECONDS * 1000):
            raise Failed("the stock decode sent no request")
        return self.pull.recv_multipart()

    def say(self, frames: list[bytes]) -> None:
        self.push.send_multipart(frames)

    def close(self) -> None:
        self.context.destroy(linger=0)


def request(room: bytes = b"77", **changes: bytes) -> list[bytes]:
    """A request that looks right; `f7=...` puts something else into frame 7."""
    frames = [GUARD, room, b"127.0.0.1", b"5000", b"metadata", b"4f9d8a51-0000-4000-8000-000000000000"]
    frames += [struct.pack("<2Q", 4096, 8192), struct.pack("<2q", 1, 2), struct.pack("<Q", 4096), b"0", b"0", b"1"]
    for name, value in changes.items():
        frames[int(name[1:])] = value
    return frames


BROKEN = [
    request(room=b"seven"),
    request(room=b"-1"),
    request(room=str(2**64).encode()),
    request(room=b""),
    request(room=b"\xff\xff"),
    request(f0=b"NotTheGuard"),
    request(f3=b"port"),
    request(f5=b""),
    request(f5=b"\xff" * 300),
    request(f6=b"1234567"),
    request(f7=b"123"),
    request(f8=b"1234567"),
    request(f9=b"None"),
    request(f10=b"gpu"),
    request(f11=b"0"),
    request(f11=b"99999999999999999999"),
    request()[:11],
    request() + [b"tail"],
    request() + [b"KVFERRY1"],
    request() + [b""] * 60,
]


def foreign(tap: Tap, real: list[bytes]) -> None:
    for frames in ([b"x"], [b""], [GUARD], [GUARD, b"None"], [b"\x00" * 4096], [b"GET / HTTP/1.1"], *BROKEN):
        tap.say(frames)


def raw_bytes(tap: Tap, real: list[bytes]) -> None:
    for content in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b"\xff" + b"\x00" * 8 + b"\x7f"):
        with socket.create_connection(("127.0.0.1", tap.target), 5) as connection:
            connection.sendall(content)


def bad_aborts(tap: Tap, real: list[bytes]) -> None:
    for frames in ([b"ABORT"], [b"ABORT", b"x", b"127.0.0.1", b"1"], [b"ABORT", b"77", b"127.0.0.1", b"1"]):
        tap.say(frames)


def junk_metadata(tap: Tap, real: list[bytes]) -> None:
    """For rooms of its own: well formed, but nothing that can be written to."""
    for index, metadata in enumerate((b"", b"nixlSerDes|", real[4][:-40], real[4][:200], b"\xff" * 65536)):
        tap.say(request(room=str(9000 + index).encode(), f4=metadata))


def repeated(tap: Tap, real: list[bytes]) -> None:
    for _ in range(100):
        tap.say(real)


def other_width(tap: Tap, real: list[bytes]) -> None:
    tap.say(request(room=b"9100", f4=real[4], f7=struct.pack("<3i", 1, 2, 3)))


def other_releases(tap: Tap, real: list[bytes]) -> None:
    registration = [GUARD, b"None", b"127.0.0.1", b"5000", real[5], real[4], real[6], real[8], b"0"]
    tap.say(registration)
    tap.say(registration + [b"1", b"0", b"2048"])
    tap.say([GUARD, b"9200", b"127.0.0.1", b"5000", real[5], struct.pack("<2i", 1, 2), b"0", b"1"])
    tap.say([GUARD, b"None"] + [b"0"] * 18)


def many_connections(tap: Tap, real: list[bytes]) -> None:
    sockets = [tap.connect() for _ in range(200)]
    for push in sockets:
        push.send_multipart([b"x"])
    for push in sockets:
        push.close()


MESSAGES: list[tuple[str, Callable[[Tap, list[bytes]], None]]] = [
    ("B23 foreign and broken messages", foreign),
    ("B23 bytes that aren't ZeroMQ's", raw_bytes),
    ("B24 malformed aborts", bad_aborts),
    ("B28 200 connections", many_connections),
    ("B31 request repeated while open", repeated),
    ("B33 the other index width", other_width),
    ("B34 messages of other releases", other_releases),
    ("B junk metadata", junk_metadata),
]


def play_message(stage: Stage, prefill: Process, tap: Tap, play: Callable[[Tap, list[bytes]], None]) -> None:
    room = stage.numbers.take()
    stage.stock.tell(receive(room))
    real = tap.hear()
    tap.say(real)
    play(tap, real)
    prefill.tell(send(room, chunks=[3, 13]))
    good_end(stage, prefill, room)
    # Late copies of the finished room's request, once with other pages; then a room that comes later.
    tap.say(real)
    tap.say(real[:7] + [real[7][8:] + real[7][:8]] + real[8:])
    later = stage.numbers.take()
    prefill.tell(send(later))
    stage.stock.tell(receive(later))
    tap.say(tap.hear())
    good_end(stage, prefill, later)


def good_end(stage: Stage, prefill: Process, room: int) -> None:
    outcome = stage.stock.await_rooms([room], SECONDS)[room]
    if outcome["verified"] is not True:
        raise Failed(f"the stock peer's room suffered: {outcome}")
    ours = prefill.await_rooms([room], SECONDS)[room]
    if ours["state"] != "success":
        raise Failed(f"our side of the room: {ours}")


# ---- A: our bootstrap server and our registration --------------------------------------------------------

ROWS: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"role":"Prefill"}',
    b'{"role":"Prefill","tp_size":"8","dp_size":"2","rank_ip":"127.0.0.1","rank_port":1,"engine_rank":0}',
    b'{"role":"Prefill","tp_size":1,"dp_size":0,"rank_ip":"127.0.0.1","rank_port":1,"engine_rank":0}',
    b'{"role":"Prefill","tp_size":1,"dp_size":4,"rank_ip":"127.0.0.1","rank_port":1,"engine_rank":0}',
    b'{"role":"Prefill","tp_size":1,"dp_size":1,"rank_ip":"127.0.0.1","rank_port":"x","engine_rank":0}',
    b'{"role":"Prefill","tp_size":1,"dp_size":1,"rank_ip":"127.0.0.1","rank_port":99999999,"engine_rank":0}',
    b'{"role":"Prefill","tp_size":1,"dp_size":1,"rank_ip":7,"rank_port":1,"engine_rank":0}',
    b'{"role":"Prefill","tp_size":1,"dp_size":1,"rank_ip":"127.0.0.1","rank_port":1,"engine_rank":-5}',
    b"[" * 100_000,
    b" " * 2_000_000,
]


def bad_rows(scene: Scene) -> None:
    """Both sides are stock; only the server is ours. What strangers PUT must not stay in its table."""
    server = scene.bootstrap("kvferry")
    url = f"http://{server.address}/route"
    for row in ROWS:
        answer = requests.put(url, data=row, timeout=5)
        if answer.status_code == 200:
            raise Failed(f"the server took {row[:80]!r}")
    for query in ("", "?engine_rank=0", "?engine_rank=x&target_dp_group=0", "?engine_rank=0&target_dp_group=99"):
        requests.get(url + query, timeout=5)
    requests.delete(url, timeout=5)
    prefill = scene.worker("stock", "prefill", server, POOL)
    decode = scene.worker("stock", "decode", server, POOL)
    scene.ready(prefill)
    server.await_ranks([(0, 0)])
    scene.ready(decode)
    one_good(prefill, decode, 1)


def server_comes_late(scene: Scene) -> None:
    """B07: our prefill starts before its bootstrap server, a stock one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nowhere = Server("stock", None, port)  # type: ignore[arg-type]
    prefill = scene.worker("kvferry", "prefill", nowhere, POOL)
    scene.ready(prefill)
    server = scene.bootstrap("stock", port)
    decode = scene.worker("stock", "decode", server, POOL)
    server.await_ranks([(0, 0)])
    scene.ready(decode)
    one_good(prefill, decode, 1)


SCENES: list[tuple[str, str, str, Callable[[Scene], None]]] = [
    ("stock", "stock", "A rows that are refused, kvferry bootstrap server", bad_rows),
    ("kvferry", "stock", "B07 bootstrap server comes late", server_comes_late),
]
NOTICES = "F notifications that nobody understands"


def cell(prefill: str, decode: str, what: str) -> Cell:
    return Cell(prefill, decode, PROFILE, "tcp", f"fault {what}")


def cells() -> list[Cell]:
    return (
        [cell("stock", "kvferry", what) for what, _ in DISCOVERY]
        + [cell("stock", "kvferry", NOTICES)]
        + [cell("kvferry", "stock", what) for what, _ in MESSAGES]
        + [cell(prefill, decode, what) for prefill, decode, what, _ in SCENES]
    )


def run_at_decode(place: Place, report) -> None:
    mine = [one for one in cells() if one.decode == "kvferry" and report.wants(one)]
    if not mine:
        return
    with report.together(mine), Scene(place, PROFILE, "tcp") as scene:
        server = scene.bootstrap("kvferry")
        stage = Stage(scene, server, scene.worker("stock", "prefill", server, POOL))
        scene.ready(stage.stock)
        decode = stage.worker("decode", **QUICK)
        for what, answer in DISCOVERY:
            if report.wants(cell("stock", "kvferry", what)):
                with report.trial(cell("stock", "kvferry", what)):
                    play_discovery(stage, decode, answer)
                    scene.check_complaints()
        if report.wants(cell("stock", "kvferry", NOTICES)):
            with report.trial(cell("stock", "kvferry", NOTICES)):
                play_notifications(stage, decode)
                scene.check_complaints()


def run_at_prefill(place: Place, report) -> None:
    mine = [cell("kvferry", "stock", what) for what, _ in MESSAGES]
    if not any(map(report.wants, mine)):
        return
    with report.together(mine), Scene(place, PROFILE, "tcp") as scene:
        server = scene.bootstrap("kvferry")
        stage = Stage(scene, server, scene.worker("stock", "decode", server, POOL))
        prefill = scene.worker("kvferry", "prefill", scene.bootstrap("kvferry"), POOL)
        scene.ready(stage.stock, prefill)
        tap = Tap(next(answer["port"] for answer in prefill.answers if answer.get("ready")))
        put(server.address, tap.port)
        for what, play in MESSAGES:
            if report.wants(cell("kvferry", "stock", what)):
                with report.trial(cell("kvferry", "stock", what)):
                    play_message(stage, prefill, tap, play)
                    scene.check_complaints()
        tap.close()


def run(place: Place, report) -> None:
    run_at_decode(place, report)
    run_at_prefill(place, report)
    for prefill, decode, what, play in SCENES:
        if report.wants(cell(prefill, decode, what)):
            with report.trial(cell(prefill, decode, what)), Scene(place, PROFILE, "tcp") as scene:
                play(scene)
                scene.check_complaints()
