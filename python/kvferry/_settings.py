"""The library's settings: the environment's, and over them the ones a caller names."""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import byref, c_void_p, sizeof
from typing import Iterator, Mapping, NamedTuple

from ._abi import CSetting, Status
from ._library import check, library

Settings = Mapping[str, object]


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str
    type: str
    default: str
    range: str
    help: str


@contextmanager
def opened(settings: Settings | None) -> Iterator[c_void_p]:
    """The C object that holds KVFERRY_* of the environment and then `settings`, for the time of a call."""
    calls = library()
    handle = c_void_p()
    check(calls.kvf_settings_open(byref(handle)))
    try:
        for name, value in (settings or {}).items():
            check(calls.kvf_settings_set(handle, name.encode(), str(value).encode()))
        yield handle
    finally:
        calls.kvf_settings_close(handle)


def setting_value(name: str, settings: Settings | None = None) -> str:
    """What a setting is worth with this environment and `settings`."""
    with opened(settings) as handle:
        value = library().kvf_settings_get(handle, name.encode())
    if value is None:
        raise KeyError(name)
    return value.decode()


def describe_settings() -> Iterator[Setting]:
    """Every setting the library knows, as in docs/settings.md."""
    index = 0
    row = CSetting(size=sizeof(CSetting))
    while library().kvf_settings_describe(index, byref(row)) == Status.OK:
        yield Setting(*(text.decode() for text in (row.name, row.type, row.default_value, row.range, row.help)))
        index += 1
