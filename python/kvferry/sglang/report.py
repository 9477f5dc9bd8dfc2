"""What a scheduler's manager has done, and a small JSON file that tells it outside.

The file is off unless KVFERRY_SGLANG_REPORT names where: then there is neither a thread nor a file.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import Callable

Snapshot = Callable[[], dict]
_REFRESH = 1.0  # seconds; for what changes without the scheduler's doing, such as the registration


class Counters:
    """What has happened in a scheduler."""

    def __init__(self) -> None:
        self.open = self.open_most = self.opened = 0
        self.succeeded = self.failed = self.dropped = self.unproven = 0
        self.chunks = self.pages = 0
        self.failures: dict[str, int] = {}
        self.last_failure = ""

    def rooms(self) -> dict[str, int]:
        names = ("open", "open_most", "opened", "succeeded", "failed", "dropped", "unproven")
        return {name: getattr(self, name) for name in names}

    def work(self) -> dict:
        return {
            "chunks": self.chunks,
            "pages": self.pages,
            "failures": dict(self.failures),
            "last_failure": self.last_failure,
        }


class Reporter:
    """Writes `snapshot()` to `path` when it is told of a change, at most once in `interval` seconds."""

    def __init__(self, path: str, interval: float, snapshot: Snapshot) -> None:
        self._changed = threading.Event()
        self._ended = threading.Event()
        thread = threading.Thread(
            target=_write_on_change,
            args=(path, interval, snapshot, self._changed, self._ended),
            name="kvferry-report",
            daemon=True,
        )
        thread.start()
        # Made after the manager's own finalizer, so it runs first at exit: the thread asks the manager.
        self._finalizer = weakref.finalize(self, _end, thread, self._changed, self._ended)

    def changed(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._finalizer()


def _end(thread: threading.Thread, changed: threading.Event, ended: threading.Event) -> None:
    ended.set()
    changed.set()
    thread.join()


def _write_on_change(
    path: str, interval: float, snapshot: Snapshot, changed: threading.Event, ended: threading.Event
) -> None:
    written: dict | None = None
    sequence = 0
    while True:
        last = ended.is_set()
        changed.clear()
        present = snapshot()
        if present != written:
            sequence += 1
            _replace(path, {"sequence": sequence, **present})
            written = present
        if last:
            return
        ended.wait(interval)
        changed.wait(_REFRESH)


def _replace(path: str, content: dict) -> None:
    """A reader sees the old file or the new one, never a part. A full disk must not end the scheduler."""
    draft = path + ".new"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(draft, path)
    except OSError:
        pass
