"""The settings of this backend, KVFERRY_SGLANG_*. The library's own, KVFERRY_*, are in docs/settings.md."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping

PREFIX = "KVFERRY_SGLANG_"
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True)
class Options:
    """What the environment says, in seconds and numbers."""

    abort_wait: float = 1.0
    bootstrap_host: str = "0.0.0.0"
    remembered_rooms: int = 65536
    report: str = ""
    report_interval: float = 0.1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Raises ValueError for a variable that is unknown or malformed, as the library does for its own."""
        values: dict[str, Any] = {}
        for variable, text in environment.items():
            if variable.startswith(PREFIX):
                name = variable[len(PREFIX) :].lower()
                if name not in _PARSERS:
                    known = ", ".join(PREFIX + each.upper() for each in _PARSERS)
                    raise ValueError(f"there is no setting {variable}; there are {known}")
                values[name] = _parsed(variable, name, text)
        return cls(**values)


def _parsed(variable: str, name: str, text: str) -> Any:
    try:
        return _PARSERS[name](text)
    except ValueError as problem:
        raise ValueError(f"{variable}={text}: {problem}") from None


def _time(text: str) -> float:
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(digits) :]
    if digits.isascii() and digits.isdigit() and (unit in _UNITS or (text == "0")):
        return int(digits) * _UNITS.get(unit, 0.0)
    raise ValueError(f"not a time such as 500ms or 2s (units: {' '.join(_UNITS)})")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError("not a number")


_PARSERS: dict[str, Callable[[str], Any]] = {
    "abort_wait": _time,
    "bootstrap_host": str,
    "remembered_rooms": _count,
    "report": str,
    "report_interval": _time,
}
