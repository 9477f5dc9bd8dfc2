"""The four classes that SGLang 0.4.7's schedulers take a transfer backend by.

The scheduler's loop calls them, on every rank alike, and an exception anywhere but in failure_exception() ends the
server. So whatever goes wrong with a room becomes a room that polls as Failed, and the reason waits in
failure_exception(). A manager or bootstrap server that can't be made raises: that ends a server at its start.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any

import kvferry
from kvferry import KvferryError, Memory, Poll, Role, Safety, Status
from kvferry._library import library_path

from .configuration import buffers_of, endpoint, manager_settings, memory_of
from .finder import SUPPORTED
from .options import Options
from .report import Counters, Reporter

logger = logging.getLogger("kvferry.sglang")

# As plain numbers: poll() compares them, thousands of times a second.
FAILED, BOOTSTRAPPING, WAITING, SUCCESS = (
    int(each) for each in (Poll.FAILED, Poll.BOOTSTRAPPING, Poll.WAITING_FOR_INPUT, Poll.SUCCESS)
)
IN_USE, SAFE = int(Safety.IN_USE), int(Safety.SAFE)
_NEVER_OPENED = bytes((FAILED, SAFE))
_ELSEWHERE = "another rank of its group failed, or DISAGGREGATION_TEST_FAILURE_PROB is set"
_HEALTHY = f"this rank was healthy and gave the room up because SGLang said so: {_ELSEWHERE}"
_DELIVERED = f"this rank had delivered the room: {_ELSEWHERE}"


class RoomFailed(Exception):
    """What failure_exception() raises; SGLang appends its text to what the client sees."""


class NixlKVManager:
    """One scheduler's pool and event loop. SGLang makes it once and never closes it."""

    def __init__(self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: bool = False) -> None:
        self.options = Options.from_environment()
        self.role = Role[disaggregation_mode.value.upper()]
        self.engine_rank = args.engine_rank
        self.counters = Counters()
        # Rooms that are part of a cycle are collected in any thread, at any allocation, this one's included.
        self._lock = threading.RLock()
        self.finished_rooms: dict[int, None] = {}
        memory = memory_of(server_args.device)
        tp_size = server_args.tp_size
        self.manager = kvferry.Manager(
            self.role,
            buffers_of(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens, memory, args.gpu_id),
            buffers_of(args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens, Memory.HOST, 0),
            engine_rank=args.engine_rank,
            tp_size=tp_size,
            dp_size=server_args.dp_size if server_args.enable_dp_attention else 1,
            mla=is_mla_backend,
            device=args.gpu_id,
            settings=manager_settings(self.role, server_args, args.engine_rank),
        )
        self.description = self._describe()
        self._reporter = self._start_report()
        logger.info(
            "kvferry %s is the transfer backend of this %s scheduler, rank %d of %d: UCX %s, control port %d, %s",
            kvferry.version(),
            self.role.name.lower(),
            self.engine_rank,
            tp_size,
            kvferry.ucx_version(),
            self.manager.port,
            library_path(),
        )

    @property
    def name(self) -> str:
        return f"{self.role.name.lower()} rank {self.engine_rank}"

    def room_opened(self) -> None:
        with self._lock:
            self.counters.opened += 1
            self.counters.open += 1
            self.counters.open_most = max(self.counters.open_most, self.counters.open)
        self.changed()

    def room_closed(self, room: int, outcome: str) -> None:
        with self._lock:
            self.counters.open -= 1
            setattr(self.counters, outcome, getattr(self.counters, outcome) + 1)
            if outcome == "succeeded" and self.role is Role.DECODE:
                self._remember(room)
        self.changed()

    def changed(self) -> None:
        if self._reporter is not None:
            self._reporter.changed()

    def _remember(self, room: int) -> None:
        """A request that decode retracts comes back as a second receiver of a room that is over."""
        if self.options.remembered_rooms == 0:
            return
        if len(self.finished_rooms) >= self.options.remembered_rooms:
            del self.finished_rooms[next(iter(self.finished_rooms))]
        self.finished_rooms[room] = None

    def _describe(self) -> dict:
        return {
            "version": kvferry.version(),
            "ucx": kvferry.ucx_version(),
            "library": os.fspath(library_path()),
            "sglang": SUPPORTED,
            "pid": os.getpid(),
            "role": self.role.name.lower(),
            "engine_rank": self.engine_rank,
            "control_port": self.manager.port,
            "started": time.time(),
        }

    def _start_report(self) -> Reporter | None:
        if not self.options.report:
            return None
        path = f"{self.options.report}-{self.role.name.lower()}-{self.engine_rank}-{os.getpid()}.json"
        constants, counters, manager = self.description, self.counters, self.manager

        def snapshot() -> dict:
            return {**constants, "rooms": counters.rooms(), **counters.work(), "statistics": manager.statistics()}

        return Reporter(path, self.options.report_interval, snapshot)


class _SchedulerRoom:
    """What the sender and the receiver of a scheduler have in common."""

    def __init__(self, mgr: NixlKVManager, room: Any) -> None:
        self.bootstrap_room = room
        self._manager = mgr
        self._opened = time.time()
        self._room: Any = None  # a kvferry.Room, unless it couldn't be opened
        self._view: Any = _NEVER_OPENED
        self._refusal: tuple[str, str] | None = None  # the status's name and the reason, where it's ours
        self._last_words = ""
        self._initialised = False
        self._finished = False
        mgr.room_opened()
        try:
            self._room = self._open()
            self._view = self._room.view
        except Exception as problem:
            self._refuse(problem)

    def _open(self) -> kvferry.Room:
        raise NotImplementedError

    def poll(self) -> int:
        """Two bytes that the library publishes decide; nothing is called. Failed waits until the pages and the aux
        slot are the scheduler's again."""
        state = self._view[0]
        if state == FAILED or self._refusal is not None:
            if self._view[1] != IN_USE:
                return FAILED
            return WAITING if self._initialised else BOOTSTRAPPING
        if self._initialised:
            return state if state > BOOTSTRAPPING else WAITING
        return state if state < WAITING else WAITING

    def clear(self) -> None:
        """Called after Success."""
        self._finish()

    def failure_exception(self) -> None:
        """Always raises. Aborts what is healthy, and waits a bounded time until the pages are safe: the scheduler
        reuses them when this has returned, whatever we say."""
        if not self._last_words:
            self._last_words = self._give_up()
            self._finish()
        raise RoomFailed(self._last_words)

    def _is_over(self) -> bool:
        """Nothing more can be asked of it."""
        return self._room is None or self._refusal is not None or self._finished

    def _refuse(self, problem: Exception) -> None:
        status = problem.status if isinstance(problem, KvferryError) else Status.INVALID_ARGUMENT
        text = problem.text if isinstance(problem, KvferryError) else f"{type(problem).__name__}: {problem}"
        self._refusal = (_status_name(status), text)
        if self._room is not None and not self._finished:
            self._room.abort()

    def _refuse_unless_failed(self, problem: Exception) -> None:
        """The room's own reason, where it has failed, is the better one."""
        if self._view[0] != FAILED:
            self._refuse(problem)

    def _give_up(self) -> str:
        """Ends the room, sees to its pages, and tells what is to be told."""
        status, reason = self._explain()
        room = self._room
        pages = "safe"
        if room is not None and not self._finished:
            room.abort()
            safety = room.wait(self._manager.options.abort_wait)
            if safety == Safety.SAFE:
                pages = f"safe ({_status_name(room.proof)})"
            else:
                pages = "still in use" if safety == Safety.IN_USE else "released, unproven"
                self._manager.counters.unproven += 1
        text = (
            f"kvferry: room {self.bootstrap_room} failed on {self._manager.name}: {status}: {reason} "
            f"[opened {_clock(self._opened)}, given up {time.time() - self._opened:.1f} s later, pages {pages}]"
        )
        self._manager.counters.failures[status] = self._manager.counters.failures.get(status, 0) + 1
        self._manager.counters.last_failure = text
        logger.error("%s", text)
        return text

    def _explain(self) -> tuple[str, str]:
        if self._refusal is not None:
            return self._refusal
        state = self._view[0]
        if state == FAILED and self._room is not None:
            return _status_name(self._room.status), self._room.failure_text
        return _status_name(Status.ABORTED), _DELIVERED if state == SUCCESS else _HEALTHY

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        state = self._view[0]
        if self._room is not None:
            self._room.close()
            self._view = self._room.view
        if self._last_words or self._refusal is not None or state == FAILED:
            outcome = "failed"
        else:
            outcome = "succeeded" if state == SUCCESS else "dropped"
        self._manager.room_closed(self.bootstrap_room, outcome)

    def __del__(self) -> None:
        """SGLang drops some rooms without a word: requests that turn out invalid, or aborted while they wait."""
        if getattr(self, "_finished", True) or sys.is_finalizing():
            return
        self._finish()


class NixlKVSender(_SchedulerRoom):
    """The prefill side of a room. The address is the scheduler's own bootstrap server, and may read "None:8998"."""

    def __init__(self, mgr: NixlKVManager, bootstrap_addr: str, bootstrap_room: int) -> None:
        super().__init__(mgr, bootstrap_room)

    def _open(self) -> kvferry.Sender:
        return self._manager.manager.sender(self.bootstrap_room)

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        self._initialised = True
        if self._is_over():
            return
        try:
            self._room.expect(num_kv_indices, aux_index or 0)
        except Exception as problem:
            self._refuse_unless_failed(problem)

    def send(self, kv_indices: Any) -> None:
        """The pages are copied before this returns: they are a view of a table whose row is reused at once."""
        if self._is_over():
            return
        try:
            self._room.send(kv_indices)
        except Exception as problem:
            self._refuse_unless_failed(problem)
            return
        counters = self._manager.counters
        counters.chunks += 1
        counters.pages += len(kv_indices)
        self._manager.changed()


class NixlKVReceiver(_SchedulerRoom):
    """The decode side of a room."""

    def __init__(
        self, mgr: NixlKVManager, bootstrap_addr: str, bootstrap_room: int, data_parallel_rank: int | None = None
    ) -> None:
        self._address = bootstrap_addr
        self._dp_rank = data_parallel_rank
        super().__init__(mgr, bootstrap_room)

    def _open(self) -> kvferry.Receiver:
        if self.bootstrap_room in self._manager.finished_rooms:
            raise KvferryError(
                Status.UNSUPPORTED,
                "this room was delivered here before, so the prefill side holds it no more. SGLang's decode asks again "
                "for a request that it has retracted when its memory ran out: give it more (--mem-fraction-static), or "
                "fewer requests at once; for rooms that are reused on purpose set KVFERRY_SGLANG_REMEMBERED_ROOMS=0",
            )
        return self._manager.manager.receiver(self._address, self.bootstrap_room, self._dp_rank)

    def init(self, kv_indices: Any, aux_index: int | None = None) -> None:
        self._initialised = True
        if self._is_over():
            return
        try:
            self._room.expect(kv_indices, aux_index or 0)
        except Exception as problem:
            self._refuse_unless_failed(problem)
            return
        self._manager.counters.pages += len(kv_indices)
        self._manager.changed()


class NixlKVBootstrapServer:
    """The bootstrap server of a prefill server's main process, on every interface as SGLang's own."""

    def __init__(self, port: int) -> None:
        host = Options.from_environment().bootstrap_host
        self._server = kvferry.BootstrapServer(endpoint(host, port))
        self.port = self._server.port
        logger.info("kvferry's bootstrap server listens at %s", endpoint(host, self.port))

    def close(self) -> None:
        self._server.close()


def _status_name(number: Any) -> str:
    return number.name.lower().replace("_", " ")


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
