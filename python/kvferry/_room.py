"""Rooms: one request's hand-off, as its sender or its receiver sees it."""

from __future__ import annotations

import operator
from ctypes import byref, c_uint8, c_void_p, sizeof
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from ._abi import CRoomOptions, Poll, Proof, Safety, Status, Verify
from ._arrays import page_list
from ._errors import ClosedError, KvferryError
from ._library import check, library

if TYPE_CHECKING:
    from ._manager import Manager

_VIEW = c_uint8 * 2
_Self = TypeVar("_Self", bound="Room")
_ROOM_LIMIT = 1 << 63
_WORD_LIMIT = 1 << 32
_DP_RANK_BY_ROOM = -1
_SHARED_CALLS = ("view", "wait", "abort", "close", "proof", "status", "failure_text")


@lru_cache(maxsize=None)
def _calls_of(kind: str) -> SimpleNamespace:
    """The functions that senders and receivers both have, by the names they share."""
    return SimpleNamespace(**{name: getattr(library(), f"kvf_{kind}_{name}") for name in _SHARED_CALLS})


def _word(number: int, what: str) -> int:
    """`number` as an unsigned 32-bit argument; ctypes would cut it silently."""
    if not 0 <= number < _WORD_LIMIT:
        raise KvferryError(Status.OUT_OF_RANGE, f"{what} {number} is not from 0 to 2^32 - 1")
    return number


def _room_number(room: Any) -> int:
    """`room` as a Python number, whichever kind of whole number it is."""
    try:
        number = operator.index(room)
    except TypeError:
        number = -1
    if not 0 <= number < _ROOM_LIMIT:
        raise KvferryError(Status.INVALID_ARGUMENT, f"a room is a number from 0 to 2^63 - 1, not {room!r}")
    return number


class Room:
    """What senders and receivers have in common.

    `view` are two bytes that the library publishes: the state (Poll) and the safety (Safety). Reading them calls
    nothing. After close() it is another object, with the room's last values: take it from the room again.
    """

    _kind = ""
    _pointer: c_void_p | None = None

    def __init__(self, manager: Manager, room: int) -> None:
        self.room = _room_number(room)
        self._manager = manager  # keeps the pools alive while a room is open
        self._calls = _calls_of(self._kind)
        self._last_words: tuple[Status, str] | None = None
        self._last_proof = Proof.NONE

    def _opened(self, pointer: c_void_p) -> None:
        self._pointer = pointer
        self.view: Any = _VIEW.from_address(self._calls.view(pointer))
        self._manager._handle.rooms.add(self)

    def _live(self) -> c_void_p:
        if self._pointer is None:
            raise ClosedError(f"room {self.room}")
        return self._pointer

    def poll(self) -> Poll:
        """The room's state."""
        return Poll(self.view[0])

    @property
    def safety(self) -> Safety:
        """Whether the room's pages and aux slot may be reused."""
        return Safety(self.view[1])

    @property
    def proof(self) -> Proof:
        """How it is known that the pages are safe."""
        return self._last_proof if self._pointer is None else Proof(self._calls.proof(self._pointer))

    @property
    def status(self) -> Status:
        """Why it failed; OK unless it did."""
        return self._words()[0]

    @property
    def failure_text(self) -> str:
        """Why it failed, for a person; empty unless it did."""
        return self._words()[1]

    def _words(self) -> tuple[Status, str]:
        if self._last_words is not None:
            return self._last_words
        pointer = self._live()
        text = self._calls.failure_text(pointer).decode("utf-8", "replace")
        return Status(self._calls.status(pointer)), text

    def wait(self, timeout: float) -> Safety:
        """Waits until the room is final and its pages are safe or released, at most `timeout` seconds."""
        return Safety(self._calls.wait(self._live(), max(0, round(timeout * 1000))))

    def abort(self) -> None:
        """Fails the room, unless it is final."""
        self._calls.abort(self._live())

    def close(self) -> None:
        """Frees the room; an open one is aborted."""
        pointer = self._pointer
        if pointer is None:
            return
        self._last_words, self._last_proof = self._words(), self.proof
        self.view = bytes(self.view)
        self._pointer = None
        self._calls.close(pointer)

    def _orphan(self) -> None:
        """Called before the manager is closed, which ends this room and frees it."""
        if self._pointer is None:
            return
        state, safety = self.view
        if state in (Poll.FAILED, Poll.SUCCESS):
            self._last_words, self._last_proof = self._words(), self.proof
        else:
            state, safety = Poll.FAILED, Safety.RELEASED
            self._last_words = (Status.SHUTDOWN, "the manager was closed with the room open")
        self.view = bytes((state, safety))
        self._pointer = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Sender(Room):
    """The prefill side of a room. Raises KvferryError when it can't be opened."""

    _kind = "sender"

    def __init__(self, manager: Manager, room: int) -> None:
        super().__init__(manager, room)
        pointer = c_void_p()
        check(library().kvf_sender_open(manager.pointer, self.room, None, byref(pointer)))
        self._opened(pointer)

    def expect(self, page_count: int, aux_slot: int = 0) -> None:
        """How many pages all sends together will carry, and which aux slot goes with the last one. Once."""
        check(library().kvf_sender_expect(self._live(), _word(page_count, "page count"), _word(aux_slot, "aux slot")))

    def send(self, pages: Any) -> None:
        """Hands over the next pages, which are copied before it returns. Their bytes must be complete."""
        address, count, _keep = page_list(pages)
        check(library().kvf_sender_send(self._live(), address, count))


class Receiver(Room):
    """The decode side of a room. Raises KvferryError when it can't be opened."""

    _kind = "receiver"

    def __init__(
        self,
        manager: Manager,
        address: str,
        room: int,
        dp_rank: int | None = None,
        verify: Verify = Verify.DEFAULT,
    ) -> None:
        super().__init__(manager, room)
        options = CRoomOptions(
            size=sizeof(CRoomOptions),
            dp_rank=_DP_RANK_BY_ROOM if dp_rank is None else dp_rank,
            verify=verify,
        )
        pointer = c_void_p()
        check(library().kvf_receiver_open(manager.pointer, address.encode(), self.room, byref(options), byref(pointer)))
        self._opened(pointer)

    def expect(self, pages: Any, aux_slot: int = 0) -> None:
        """Which pages are to be filled, in the order of the source's, and which aux slot. Once."""
        address, count, _keep = page_list(pages)
        check(library().kvf_receiver_expect(self._live(), address, count, _word(aux_slot, "aux slot")))
