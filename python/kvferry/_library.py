"""Finds and loads UCX and libkvferry, once a process and not before something needs them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from pathlib import Path
from types import SimpleNamespace

from . import _abi
from ._errors import KvferryError

UCX_VARIABLE = "KVFERRY_PYTHON_UCX"
UCX_LIBRARIES = ("libucs.so.0", "libuct.so.0", "libucp.so.0")

_lock = threading.Lock()
_loaded: SimpleNamespace | None = None


def library() -> SimpleNamespace:
    """The functions of the public header, as attributes with their C names."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def library_path() -> Path:
    """The libkvferry.so that this package carries."""
    return Path(__file__).parent / "lib" / "libkvferry.so.0"


def check(status: int) -> None:
    """Turns a call's status into an exception; `kvf_error_text()` is this thread's until its next call."""
    if status != _abi.Status.OK:
        raise KvferryError(_abi.Status(status), library().kvf_error_text().decode("utf-8", "replace"))


def _load() -> SimpleNamespace:
    _load_ucx()
    path = os.fspath(library_path())
    loaders = ((ctypes.CDLL(path), _abi.WAITING), (ctypes.PyDLL(path), _abi.QUICK))
    functions = {}
    for loader, prototypes in loaders:
        for name, (result, arguments) in prototypes.items():
            function = getattr(loader, name)
            function.restype = result
            function.argtypes = arguments
            functions[name] = function
    return SimpleNamespace(**functions)


def _load_ucx() -> None:
    """Loads UCX by path, so that libkvferry, which only knows its names, gets this one; UCX finds its modules beside
    itself. RTLD_LOCAL: other UCX copies in the process (NIXL brings one) keep their own symbols."""
    folder = _ucx_folder()
    if folder is not None:
        for name in UCX_LIBRARIES:
            ctypes.CDLL(os.fspath(folder / name), mode=os.RTLD_LOCAL | os.RTLD_NOW)


def _ucx_folder() -> Path | None:
    """Where UCX lies: the variable's folder, or the wheel libucx-cu12's. None: the system's linker is to find it."""
    chosen = os.environ.get(UCX_VARIABLE, "")
    if chosen == "system":
        return None
    if chosen:
        return Path(chosen)
    package = importlib.util.find_spec("libucx")
    if package is None or not package.submodule_search_locations:
        raise ImportError(
            "kvferry needs UCX, and the package libucx-cu12 that brings it isn't installed: pip install libucx-cu12, "
            f"or name a folder that holds libucp.so.0 with {UCX_VARIABLE}"
        )
    return Path(package.submodule_search_locations[0]) / "lib"
