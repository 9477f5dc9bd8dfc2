"""The bootstrap server, at which prefill ranks register and decode ranks look them up."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p

from ._errors import ClosedError
from ._library import check, library
from ._settings import Settings, opened


class BootstrapServer:
    """Listens at `address` ("0.0.0.0:8998", "[::1]:0"; port 0: any free one) in a thread of its own, until close()."""

    def __init__(self, address: str, settings: Settings | None = None) -> None:
        pointer = c_void_p()
        with opened(settings) as c_settings:
            check(library().kvf_bootstrap_start(byref(pointer), address.encode(), c_settings))
        self._port = library().kvf_bootstrap_port(pointer)
        self._finalizer = weakref.finalize(self, library().kvf_bootstrap_stop, pointer)

    @property
    def port(self) -> int:
        """The port it listens at."""
        if not self._finalizer.alive:
            raise ClosedError("the bootstrap server")
        return self._port

    def close(self) -> None:
        """Stops listening."""
        self._finalizer()

    def __enter__(self) -> BootstrapServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
