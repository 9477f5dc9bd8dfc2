"""What the calls of this package raise."""

from __future__ import annotations

from ._abi import Status


class KvferryError(Exception):
    """A call that failed: `status` is why, `text` says what happened, to what, and what to do."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(f"{status.name.lower().replace('_', ' ')}: {text}" if text else status.name.lower())
        self.status = status
        self.text = text


class ClosedError(KvferryError):
    """The object, or the manager it belongs to, was closed before."""

    def __init__(self, what: str) -> None:
        super().__init__(Status.WRONG_STATE, f"{what} is closed")
