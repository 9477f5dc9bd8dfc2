"""What several tests share: a pretended SGLang, and processes that do what its schedulers do to a transfer backend."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import types
import unittest
from contextlib import contextmanager
from pathlib import Path

import numpy

PAGE_BYTES = 96
PAGES = 256
SLOTS = 8
AUX_BYTES = (64, 64, 64, 512, 512)
LAYERS = 3
LIMIT = 20.0  # seconds that anything may take that is expected to happen
SOURCE_ROOT = Path(os.environ["KVF_SOURCE_ROOT"])


def pretend_sglang(folder: Path, version: str) -> None:
    """A package with SGLang's names and metadata, and nothing in it."""
    package = folder
    for part in ("sglang", "srt", "disaggregation"):
        package = package / part
        package.mkdir()
        (package / "__init__.py").touch()
    metadata = folder / f"sglang-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")


@contextmanager
def environment(**variables: str):
    """Sets variables of this process, and of those it starts, for a while. None unsets one."""
    before = {name: os.environ.get(name) for name in variables}
    _assign(variables)
    try:
        yield
    finally:
        _assign(before)


def _assign(variables: dict) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def wait_until(holds, what: str, limit: float = LIMIT):
    """Polls as a scheduler does; fails when `holds` gives nothing true in time."""
    end = time.monotonic() + limit
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.0005)


class FolderTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvferry-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def enter(self, context):
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value


class Pool:
    """The KV pool and aux buffers of a worker: a pattern on prefill, zeros on decode."""

    def __init__(self, filled: bool, rank: int = 0) -> None:
        self.layers = [numpy.zeros((PAGES, PAGE_BYTES), numpy.uint8) for _ in range(LAYERS)]
        self.aux = [numpy.zeros((SLOTS, size), numpy.uint8) for size in AUX_BYTES]
        if filled:
            for layer, buffer in enumerate(self.layers):
                buffer[:] = pattern(rank, layer, numpy.arange(PAGES))
            for index, buffer in enumerate(self.aux):
                buffer[:] = (numpy.arange(SLOTS)[:, None] * 16 + index + 1).astype(numpy.uint8)


def pattern(rank: int, layer: int, pages) -> numpy.ndarray:
    """The bytes of pages: each page, layer and rank differs from every other."""
    pages = numpy.asarray(pages)[:, None]
    return ((pages * 7 + layer * 31 + rank * 101 + numpy.arange(PAGE_BYTES)) % 251).astype(numpy.uint8)


class Scheduler:
    """What runs in a scheduler's process: the backend as SGLang imports it, and its rooms by number."""

    def __init__(self, role: str, port: int, rank: int, tp_size: int) -> None:
        from sglang.srt.disaggregation.nixl import NixlKVManager, NixlKVReceiver, NixlKVSender

        self.pool = Pool(role == "prefill", rank)
        self.rank = rank
        self.room_class = NixlKVSender if role == "prefill" else NixlKVReceiver
        self.rooms: dict = {}
        mode = types.SimpleNamespace(value=role)
        self.manager = NixlKVManager(self._arguments(), mode, self._server_arguments(port, tp_size), False)

    def _arguments(self) -> types.SimpleNamespace:
        layers, aux = self.pool.layers, self.pool.aux
        return types.SimpleNamespace(
            engine_rank=self.rank,
            gpu_id=0,
            ib_device=None,
            kv_data_ptrs=[each.ctypes.data for each in layers],
            kv_data_lens=[each.nbytes for each in layers],
            kv_item_lens=[PAGE_BYTES for _ in layers],
            aux_data_ptrs=[each.ctypes.data for each in aux],
            aux_data_lens=[each.nbytes for each in aux],
            aux_item_lens=[each[0].nbytes for each in aux],
        )

    @staticmethod
    def _server_arguments(port: int, tp_size: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            disaggregation_bootstrap_port=port,
            dist_init_addr=None,
            tp_size=tp_size,
            dp_size=1,
            enable_dp_attention=False,
            device="cpu",
            host="127.0.0.1",
        )

    def open(self, room, address: str = "None:8998") -> None:
        self.rooms[room] = self.room_class(mgr=self.manager, bootstrap_addr=address, bootstrap_room=room)

    def open_twin(self, room, address: str) -> str:
        """A second object of a room that is open here; gives how that one ends."""
        twin = self.room_class(mgr=self.manager, bootstrap_addr=address, bootstrap_room=room)
        state = wait_until(lambda: twin.poll() == 0, "the twin fails")
        return self._text(twin) if state else ""

    def init(self, room, pages, slot: int) -> None:
        """`pages`: their number on prefill, they themselves on decode."""
        self.rooms[room].init(pages if isinstance(pages, int) else numpy.asarray(pages, numpy.int64), slot)

    def send(self, room, pages) -> None:
        """As SGLang with page size 1: a view of a table whose row is overwritten at once."""
        table = numpy.zeros((2, len(pages) + 3), numpy.int32)
        table[1, 2 : 2 + len(pages)] = pages
        self.rooms[room].send(table[1, 2 : 2 + len(pages)])
        table[:] = PAGES - 1

    def send_raw(self, room, pages) -> None:
        self.rooms[room].send(pages)

    def poll(self, room) -> int:
        return self.rooms[room].poll()

    def await_poll(self, room, wanted: int, limit: float = LIMIT) -> list[int]:
        """Polls until `wanted`, and gives every state seen on the way."""
        seen: list[int] = []

        def look() -> bool:
            state = self.rooms[room].poll()
            if seen[-1:] != [state]:
                seen.append(state)
            if state in (0, 4) and state != wanted:
                raise AssertionError(f"room {room} polls {state}: {self._text(self.rooms[room])}")
            return state == wanted

        wait_until(look, f"room {room} polls {wanted}, seen {seen}", limit)
        return seen

    def clear(self, room) -> None:
        self.rooms[room].clear()

    def drop(self, room) -> None:
        del self.rooms[room]

    def failure(self, room) -> str:
        return self._text(self.rooms[room])

    @staticmethod
    def _text(room) -> str:
        try:
            room.failure_exception()
        except Exception as problem:
            return str(problem)
        raise AssertionError("failure_exception() didn't raise")

    def bytes_at(self, pages, slot: int) -> tuple[list, list]:
        return [each[pages] for each in self.pool.layers], [each[slot] for each in self.pool.aux]

    def counters(self) -> dict:
        return {**self.manager.counters.rooms(), **self.manager.counters.work()}

    def reset_counters(self) -> None:
        """For the next test in this process, to which the last one must have left no room."""
        counters = self.manager.counters
        if counters.open != 0:
            raise AssertionError(f"{counters.open} rooms are open: {sorted(map(str, self.rooms))}")
        counters.__init__()

    def describe(self) -> dict:
        return self.manager.description

    def statistics(self) -> dict:
        return self.manager.manager.statistics()

    def loaded(self) -> tuple[list[str], str, bool]:
        """Which libkvferry this process has mapped, what the backend's module is, whether the hook came by itself."""
        module = sys.modules["sglang.srt.disaggregation.nixl"]
        lines = Path("/proc/self/maps").read_text().splitlines()
        mapped = sorted({line.split()[-1] for line in lines if "kvferry" in line})
        return mapped, module.__spec__.origin, "kvferry.sglang.finder" in sys.modules


def serve(connection, *arguments) -> None:
    """The scheduler's process: carries out what the test asks for, one call after another."""
    logging.getLogger("kvferry.sglang").setLevel(logging.CRITICAL)  # failing rooms are what is tested
    scheduler = Scheduler(*arguments)
    connection.send((True, os.getpid()))
    while True:
        try:
            method, parameters = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, getattr(scheduler, method)(*parameters)))
        except BaseException as problem:
            connection.send((False, f"{type(problem).__name__}: {problem}"))


class Worker:
    """A scheduler's process, spawned as SGLang spawns them; its methods are Scheduler's."""

    def __init__(self, role: str, port: int, rank: int = 0, tp_size: int = 1) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(other, role, port, rank, tp_size), daemon=True)
        self.process.start()
        other.close()
        self.pid = self._result()

    def _result(self):
        if not self._connection.poll(LIMIT * 2):
            raise AssertionError(f"scheduler {self.process.pid} says nothing")
        good, value = self._connection.recv()
        if not good:
            raise AssertionError(value)
        return value

    def __getattr__(self, method: str):
        def call(*parameters):
            self._connection.send((method, parameters))
            return self._result()

        return call

    def stop(self) -> None:
        """Ends it as an interpreter ends, with its manager and perhaps rooms open."""
        self._connection.close()
        self.process.join(LIMIT)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"scheduler {self.pid} doesn't end")
        if self.process.exitcode not in (0, -signal.SIGKILL):
            raise AssertionError(f"scheduler {self.pid} ended with {self.process.exitcode}")
