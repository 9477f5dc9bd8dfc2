"""Stands in for the functions that a library before views and waits lacks: the same answers, by calls."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable


class PolledView:
    """Two numbers like a view's, asked for at each reading."""

    def __init__(self, poll: Callable[[Any], int], safety: Callable[[Any], int], pointer: Any) -> None:
        self._ask = (lambda: poll(pointer), lambda: safety(pointer))

    def __getitem__(self, index: int) -> int:
        return self._ask[index]()


def stand_ins(functions: dict) -> dict:
    """Functions to add to `functions`, for each kind of room."""
    added: dict[str, Any] = {}
    for kind in ("sender", "receiver"):
        if f"kvf_{kind}_view" not in functions:
            added[f"kvf_{kind}_wait"] = _wait(functions[f"kvf_{kind}_safety"])
            added[f"kvf_{kind}_proof"] = lambda pointer: 0
    return added


def _wait(safety: Callable[[Any], int]) -> Callable[[Any, int], int]:
    def wait(pointer: Any, timeout_ms: int) -> int:
        end = time.monotonic() + timeout_ms / 1000
        while safety(pointer) == 0 and time.monotonic() < end:
            time.sleep(0.001)
        return safety(pointer)

    return wait
