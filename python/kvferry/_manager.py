"""Managers: a pool registered with the transport, and the event loop that moves its pages."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

from ._abi import CBuffer, CEvent, CLayout, CStatistics, Memory, Poll, Proof, Role, Safety, Status, Verify
from ._arrays import pool_memory
from ._errors import ClosedError
from ._library import check, library
from ._room import Receiver, Sender
from ._settings import Settings, opened

_EVENTS = 64


@dataclass(frozen=True)
class Buffer:
    """One buffer of a pool: page i is `item_length` bytes at `i * item_length`.

    `pool` is a numpy array, anything writable with the buffer protocol, or an object with `data_ptr()`, `numel()` and
    `element_size()` (a torch tensor); or None with the address and the length in bytes given by number.
    """

    pool: Any
    item_length: int
    memory: Memory = Memory.HOST
    device: int = 0
    address: int = 0
    length: int = 0


class Event(NamedTuple):
    """The latest state of a room that has changed."""

    room: int
    state: Poll
    status: Status
    safety: Safety
    proof: Proof
    bytes: int
    verified: bool


def _event(row: CEvent) -> Event:
    return Event(
        row.room,
        Poll(row.state),
        Status(row.status),
        Safety(row.safety),
        Proof(row.proof),
        row.bytes,
        bool(row.verified),
    )


class _Handle:
    """The C manager, shared with its rooms: `pointer` is None once it's closed, and theirs are then void too."""

    def __init__(self, pointer: c_void_p) -> None:
        self.pointer: c_void_p | None = pointer
        self.rooms: weakref.WeakSet = weakref.WeakSet()

    def close(self) -> None:
        pointer, self.pointer = self.pointer, None
        if pointer is None:
            return
        for room in list(self.rooms):
            room._orphan()
        library().kvf_manager_close(pointer)


class Manager:
    """Registers a pool and moves its pages. Use it in a `with` statement, or close() it.

    `settings` come after the environment's `KVFERRY_*`: a mapping such as {"bootstrap_address": "10.0.0.1:8998"}.
    The pools must stay where they are until the manager is closed; it keeps a reference to them.
    """

    def __init__(
        self,
        role: Role,
        buffers: Sequence[Buffer],
        aux: Sequence[Buffer] = (),
        *,
        engine_rank: int = 0,
        tp_size: int = 1,
        dp_size: int = 1,
        mla: bool = False,
        device: int = 0,
        settings: Settings | None = None,
    ) -> None:
        self.role = Role(role)
        self._pools: list[object] = []
        layout = CLayout(
            size=sizeof(CLayout),
            buffers=self._c_buffers(buffers),
            buffer_count=len(buffers),
            aux=self._c_buffers(aux),
            aux_count=len(aux),
            engine_rank=engine_rank,
            tp_size=tp_size,
            dp_size=dp_size,
            mla=int(mla),
            device=device,
        )
        pointer = c_void_p()
        with opened(settings) as c_settings:
            check(library().kvf_manager_open(byref(pointer), self.role, byref(layout), c_settings))
        self._handle = _Handle(pointer)
        # Also at the interpreter's exit: the loop's thread must not run on while the process is torn down.
        self._finalizer = weakref.finalize(self, self._handle.close)

    def _c_buffers(self, buffers: Sequence[Buffer]) -> Any:
        rows = (CBuffer * len(buffers))()
        for row, buffer in zip(rows, buffers):
            address, length = buffer.address, buffer.length
            if buffer.pool is not None:
                address, length, keep = pool_memory(buffer.pool)
                self._pools.append(keep)
            row.size = sizeof(CBuffer)
            row.base, row.length, row.item_length = address, length, buffer.item_length
            row.memory, row.device = buffer.memory, buffer.device
        return rows

    @property
    def pointer(self) -> c_void_p:
        """The C handle; raises ClosedError after close()."""
        if self._handle.pointer is None:
            raise ClosedError("the manager")
        return self._handle.pointer

    def sender(self, room: int) -> Sender:
        """Opens the prefill side of a room."""
        return Sender(self, room)

    def receiver(
        self, address: str, room: int, dp_rank: int | None = None, verify: Verify = Verify.DEFAULT
    ) -> Receiver:
        """Opens the decode side of a room, against the bootstrap server at `address` ("10.0.0.1:8998")."""
        return Receiver(self, address, room, dp_rank, verify)

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Waits until rooms have changed, at most `timeout` seconds (None: for ever), and tells their latest states."""
        milliseconds = -1 if timeout is None else max(0, round(timeout * 1000))
        rows = (CEvent * _EVENTS)()
        count = library().kvf_manager_wait(self.pointer, rows, _EVENTS, milliseconds)
        if count < 0:
            check(-count)
        return [_event(row) for row in rows[: max(count, 0)]]

    def fileno(self) -> int:
        """A descriptor that is readable while wait() has something to tell, for select or asyncio."""
        return library().kvf_manager_fd(self.pointer)

    @property
    def port(self) -> int:
        """The control port that is bound; 0 where none is."""
        return library().kvf_manager_port(self.pointer)

    def statistics(self) -> dict[str, int]:
        """The counters of kvf_statistics, by name."""
        counters = CStatistics(size=sizeof(CStatistics))
        check(library().kvf_manager_statistics(self.pointer, byref(counters)))
        return {name: getattr(counters, name) for name, *_ in CStatistics._fields_ if name != "size"}

    def close(self) -> None:
        """Fails the open rooms and frees everything, after at most the setting close_timeout."""
        self._finalizer()

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
