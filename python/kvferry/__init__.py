"""kvferry moves a request's paged KV cache from the prefill worker that computed it to the decode worker.

    with kvferry.Manager(kvferry.Role.DECODE, [kvferry.Buffer(pool, page_bytes)]) as manager:
        with manager.receiver("10.0.0.1:8998", room) as receiver:
            receiver.expect(pages)
            ...

docs/python.md shows both sides; `kvferry.sglang` puts it under SGLang. Importing this package loads no library and
neither numpy nor torch: what is named here comes when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as": also for those who import this package
    from ._abi import (
        Memory as Memory,
        Poll as Poll,
        Proof as Proof,
        Role as Role,
        Safety as Safety,
        Status as Status,
        Verify as Verify,
    )
    from ._bootstrap import BootstrapServer as BootstrapServer
    from ._errors import ClosedError as ClosedError, KvferryError as KvferryError
    from ._manager import Buffer as Buffer, Event as Event, Manager as Manager
    from ._room import Receiver as Receiver, Room as Room, Sender as Sender
    from ._settings import Setting as Setting, describe_settings as describe_settings, setting_value as setting_value

_HOMES = {
    "BootstrapServer": "_bootstrap",
    "Buffer": "_manager",
    "ClosedError": "_errors",
    "Event": "_manager",
    "KvferryError": "_errors",
    "Manager": "_manager",
    "Memory": "_abi",
    "Poll": "_abi",
    "Proof": "_abi",
    "Receiver": "_room",
    "Role": "_abi",
    "Room": "_room",
    "Safety": "_abi",
    "Sender": "_room",
    "Setting": "_settings",
    "Status": "_abi",
    "Verify": "_abi",
    "describe_settings": "_settings",
    "setting_value": "_settings",
}

__all__ = [*_HOMES, "ucx_version", "version"]


def version() -> str:
    """This library's version, e.g. "0.1.0"."""
    return importlib.import_module("._library", __name__).library().kvf_version().decode()


def ucx_version() -> str:
    """The UCX this process runs on, e.g. "1.22.0"."""
    return importlib.import_module("._library", __name__).library().kvf_ucx_version().decode()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
