"""One rank of a stock SGLang worker: its unmodified NIXL connector on host memory, driven by JSON lines.

Usage: stock_worker.py prefill|decode [option...]     stock_worker.py bootstrap
The lines and answers are those of `kvferry prefill` and `kvferry decode` (docs/tool.md), without abort: stock
connectors of these versions have none. {"forget":N} drops a room that will never end. A prefill room with "hold":true says
{"requested":N} when decode's request has come and sends nothing before {"go":N}. Where a real scheduler would die of
an exception, this process says {"died":...} and ends; a thread that dies is told with {"thread_died":...}.
"""

import argparse
import ctypes
import importlib.metadata
import inspect
import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np
from aiohttp import web

import pattern

PAUSE = 0.0002  # between two rounds of polling in which nothing happened

# NIXL prints to standard output; what is said there must be JSON lines only.
_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def say(answer: dict[str, Any]) -> None:
    _out.write(json.dumps(answer) + "\n")


def die_loudly() -> None:
    say({"died": traceback.format_exc().strip().splitlines()[-1]})
    traceback.print_exc()
    os._exit(70)


def tell_of_a_thread(arguments: Any) -> None:
    say({"thread_died": f"{arguments.exc_type.__name__}: {arguments.exc_value}"})
    traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


threading.excepthook = tell_of_a_thread


def ucx_version() -> str:
    """The version of the UCX that NIXL has loaded into this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/libucp" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        library.ucp_get_version_string.restype = ctypes.c_char_p
        return library.ucp_get_version_string().decode().split()[0]
    return "unknown"


class Pool:
    """Equally long buffers of one worker, and its aux buffers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.item_length: int = options.item_len
        self.aux_item_length: int = options.aux_item_len
        self.buffers = [self._buffer(options.pages * options.item_len) for _ in range(options.buffers)]
        self.aux = [self._buffer(options.aux_slots * options.aux_item_len) for _ in range(options.aux)]

    @staticmethod
    def _buffer(length: int) -> np.ndarray:
        # On a page of the machine's own, so that no transport's granularity joins two buffers.
        room = np.empty(length + 4096, dtype=np.uint8)
        start = -room.ctypes.data % 4096
        return room[start : start + length]

    def fill(self, seed: int) -> None:
        for number, buffer in enumerate(self.buffers):
            pattern.fill(buffer, seed, number)
        for number, buffer in enumerate(self.aux):
            pattern.fill(buffer, seed, pattern.FIRST_AUX + number)

    def poison(self) -> None:
        for buffer in self.buffers + self.aux:
            buffer[:] = pattern.POISON

    def mismatch(self, line: dict[str, Any], pages: np.ndarray) -> str | None:
        """What is wrong with a room that claims success, or None."""
        seed = line.get("source_seed", 1)
        source = page_list(line["source_pages"]) if "source_pages" in line else pages
        for number, buffer in enumerate(self.buffers):
            page = pattern.differing(buffer, seed, number, self.item_length, pages, source)
            if page is not None:
                return self._words(f"buffer {number} page {page}", buffer, self.item_length, page)
        slot = line.get("aux_slot", 0)
        source_slot = line.get("source_aux_slot", slot)
        if self.aux and pattern.differing(
            self.aux[0], seed, pattern.FIRST_AUX, self.aux_item_length, np.array([slot]), np.array([source_slot])
        ) is not None:
            return self._words(f"aux slot {slot}", self.aux[0], self.aux_item_length, slot)
        return None

    @staticmethod
    def _words(what: str, buffer: np.ndarray, item_length: int, item: int) -> str:
        content = buffer[item * item_length : (item + 1) * item_length]
        untouched = bool((content == pattern.POISON).all())
        return f"{what}: " + ("nothing was written there" if untouched else f"begins with {content[:8].tobytes().hex()}")

    def arguments(self, options: argparse.Namespace) -> Any:
        from sglang.srt.disaggregation.base.conn import KVArgs

        arguments = KVArgs()
        arguments.engine_rank = options.rank
        arguments.gpu_id = options.device
        arguments.ib_device = None
        arguments.kv_data_ptrs = [buffer.ctypes.data for buffer in self.buffers]
        arguments.kv_data_lens = [buffer.nbytes for buffer in self.buffers]
        arguments.kv_item_lens = [self.item_length] * len(self.buffers)
        arguments.aux_data_ptrs = [buffer.ctypes.data for buffer in self.aux]
        arguments.aux_data_lens = [buffer.nbytes for buffer in self.aux]
        arguments.aux_item_lens = [self.aux_item_length] * len(self.aux)
        return arguments


def page_list(pages: Any) -> np.ndarray:
    if isinstance(pages, dict):
        first, count = pages["range"]
        return np.arange(first, first + count)
    return np.array(pages, dtype=np.int64)


class Room:
    """One room of either role: begin() once, step() until it says how the room ended."""

    def __init__(self, worker: "Worker", line: dict[str, Any]) -> None:
        self.worker = worker
        self.line = line
        self.number: int = line["room"]
        self.pages = page_list(line["pages"])
        self.began = 0
        self.ended: dict[str, Any] = {}
        self.started = False

    def outcome(self) -> dict[str, Any]:
        ended = time.monotonic_ns()
        items = len(self.pages) * len(self.worker.pool.buffers) * self.worker.pool.item_length
        return {
            "room": self.number,
            "state": "success",
            "bytes": items,
            "seconds": (ended - self.began) / 1e9,
            "began_ns": self.began,
            "ended_ns": ended,
        }


class SendingRoom(Room):
    told = False

    def _tell_once(self) -> None:
        if not self.told:
            say({"requested": self.number})
        self.told = True

    def begin(self) -> None:
        self.began = time.monotonic_ns()
        more = ([0], 0) if self.worker.sender_takes_ranks else ()
        self.sender = self.worker.sender(self.worker.manager, self.worker.address, self.number, *more)

    def step(self) -> bool:
        state = self.sender.poll()
        if not self.started and state == 2:
            if self.line.get("hold"):
                self._tell_once()
                return False
            self.started = True
            self.sender.init(len(self.pages), self.line.get("aux_slot", 0))
            first = 0
            for count in self.line.get("chunks", [len(self.pages)]):
                self.sender.send(self.pages[first : first + count].astype(np.int32))
                first += count
            return False
        return state == 4

    def end(self) -> dict[str, Any]:
        return self.outcome() | {"verified": None}


class ReceivingRoom(Room):
    def begin(self) -> None:
        address = self.line.get("address", self.worker.address)
        self.receiver = self.worker.receiver(self.worker.manager, address, self.number, self.line.get("dp_rank"))
        assert self.receiver.poll() == 2
        self.began = time.monotonic_ns()
        self.receiver.init(self.pages.astype(self.worker.index_type), self.line.get("aux_slot", 0))

    def step(self) -> bool:
        return self.receiver.poll() == 4

    def end(self) -> dict[str, Any]:
        outcome = self.outcome()
        mismatch = self.worker.pool.mismatch(self.line, self.pages)
        outcome["verified"] = mismatch is None
        return outcome if mismatch is None else outcome | {"mismatch": mismatch}


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        from sglang.srt.disaggregation.nixl import conn
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.server_args import ServerArgs

        self.role: str = options.role
        self.address: str = options.bootstrap
        self.sender = conn.NixlKVSender
        self.receiver = conn.NixlKVReceiver
        self.sender_takes_ranks = "pp_rank" in inspect.signature(conn.NixlKVSender.__init__).parameters
        # What the connector's own annotation promises its peer: the width of frame 7.
        self.index_type = np.int32 if "int32" in inspect.getsource(conn.TransferInfo) else np.int64
        self.pool = Pool(options)
        if self.role == "prefill":
            self.pool.fill(options.seed)
        else:
            self.pool.poison()
        server = ServerArgs(
            disaggregation_bootstrap_port=int(options.bootstrap.rpartition(":")[2]),
            tp_size=options.tp,
            dp_size=options.dp,
            enable_dp_attention=options.dp > 1,
        )
        self.manager = conn.NixlKVManager(
            self.pool.arguments(options), DisaggregationMode(self.role), server, options.mla
        )
        self.rooms: dict[int, SendingRoom | ReceivingRoom] = {}
        self.waiting: list[SendingRoom | ReceivingRoom] = []  # ended, to be compared when no room is open
        self.late = options.verify_when_idle
        self.lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            if line.strip():
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def _obey(self, line: dict[str, Any]) -> None:
        if "room" in line:
            room = SendingRoom(self, line) if self.role == "prefill" else ReceivingRoom(self, line)
            room.begin()
            self.rooms[room.number] = room
        elif "go" in line:
            self.rooms[line["go"]].line["hold"] = False
        elif "forget" in line:
            self.rooms.pop(line["forget"], None)
            say({"forgotten": line["forget"]})
        elif "poison" in line:
            self.pool.poison()
            say({"poisoned": True})
        elif "quit" in line:
            os._exit(0)

    def _take_lines(self) -> bool:
        took = False
        while not self.lines.empty():
            line = self.lines.get()
            if line is None:
                os._exit(0)
            self._obey(line)
            took = True
        return took

    def _poll_rooms(self) -> bool:
        ended = [room for room in self.rooms.values() if room.step()]
        for room in ended:
            del self.rooms[room.number]
            if self.late:
                room.ended = room.outcome()
                self.waiting.append(room)
            else:
                say(room.end())
        if self.waiting and not self.rooms:
            for room in self.waiting:
                say(room.end() | room.ended)
            self.waiting.clear()
        return bool(ended)

    def run(self) -> None:
        while True:
            took = self._take_lines()
            ended = self._poll_rooms()
            if not took and not ended:
                time.sleep(PAUSE)


def serve_bootstrap() -> None:
    """The stock bootstrap server. It names no host to aiohttp and so would listen everywhere: here, on loopback."""
    from sglang.srt.disaggregation.nixl import conn

    site = web.TCPSite
    web.TCPSite = lambda runner, port: site(runner, "127.0.0.1", port)
    server = conn.NixlKVBootstrapServer(int(os.environ.get("INTEROP_LISTEN_PORT", "0")))
    deadline = time.monotonic() + 10
    while not (getattr(server, "_runner", None) and server._runner.addresses):
        if time.monotonic() > deadline:
            raise TimeoutError("the stock bootstrap server doesn't listen")
        time.sleep(0.01)
    say({"ready": True, "role": "bootstrap", "port": server._runner.addresses[0][1], "pid": os.getpid()})
    sys.stdin.read()
    os._exit(0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="one rank of a stock worker")
    parser.add_argument("role", choices=["prefill", "decode", "bootstrap"])
    parser.add_argument("--buffers", type=int, default=1)
    parser.add_argument("--pages", type=int, default=1024)
    parser.add_argument("--item-len", type=int, default=4096)
    parser.add_argument("--aux", type=int, default=1)
    parser.add_argument("--aux-slots", type=int, default=64)
    parser.add_argument("--aux-item-len", type=int, default=64)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--mla", action="store_true")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bootstrap", default="127.0.0.1:0")
    parser.add_argument("--verify-when-idle", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.role == "bootstrap":
        serve_bootstrap()
    worker = Worker(options)
    say(
        {
            "ready": True,
            "role": options.role,
            "port": worker.manager.rank_port,
            "pid": os.getpid(),
            "nixl": importlib.metadata.version("nixl"),
            "ucx": ucx_version(),
        }
    )
    worker.run()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        die_loudly()
