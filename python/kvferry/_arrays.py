"""Page lists and pools from whatever the caller has: numpy arrays, torch tensors, buffers, sequences.

Neither numpy nor torch is imported here: a caller that passes one of their objects has done so.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from typing import Any

from ._abi import Status
from ._errors import KvferryError

_LARGEST = 0xFFFFFFFF
_TORCH_FORMATS = {"torch.int32": "i", "torch.int64": "q", "torch.uint32": "I"}


def page_list(pages: Any) -> tuple[int, int, object]:
    """Gives the address and length of a uint32 array, and an object that keeps it alive. No Python code runs per page:
    an array that fits is passed as it is, any other is converted in one step that refuses what isn't a page."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(pages, numpy.ndarray):
        return _from_numpy(numpy, pages)
    if hasattr(pages, "data_ptr"):
        pages = _view_of_tensor(pages)
    return _from_buffer(pages)


def pool_memory(pool: Any) -> tuple[int, int, object]:
    """Gives the address and length in bytes of a pool, and what keeps it alive and in place."""
    if hasattr(pool, "data_ptr"):
        _require(pool.is_contiguous(), "a tensor that is used as a pool must be contiguous")
        return pool.data_ptr(), pool.numel() * pool.element_size(), pool
    view = memoryview(pool)
    _require(view.c_contiguous, "a buffer that is used as a pool must be contiguous")
    _require(not view.readonly, "a buffer that is used as a pool must be writable")
    memory = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(memory), view.nbytes, memory


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise KvferryError(Status.INVALID_ARGUMENT, text)


def _from_numpy(numpy: Any, pages: Any) -> tuple[int, int, object]:
    _require(pages.ndim == 1, f"a page list has one dimension, not {pages.ndim}")
    _require(pages.dtype.kind in "iu", f"pages are whole numbers, not {pages.dtype}")
    if pages.size and (int(pages.min()) < 0 or int(pages.max()) > _LARGEST):
        raise KvferryError(Status.OUT_OF_RANGE, f"pages from {pages.min()} to {pages.max()}: not 0 to {_LARGEST}")
    fitting = numpy.ascontiguousarray(pages, dtype=numpy.uint32)
    return fitting.ctypes.data, fitting.size, fitting


def _view_of_tensor(tensor: Any) -> memoryview:
    """A tensor's own memory as a one-dimensional buffer of its numbers."""
    _require(tensor.device.type == "cpu", f"a page list lies in host memory, this one on {tensor.device}")
    _require(tensor.dim() == 1, f"a page list has one dimension, not {tensor.dim()}")
    letter: Any = _TORCH_FORMATS.get(str(tensor.dtype))
    _require(letter is not None, f"pages are int32, int64 or uint32, not {tensor.dtype}")
    tensor = tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr() if size else ctypes.addressof(ctypes.c_char()))
    memory.tensor = tensor  # the view keeps the memory, and that the tensor
    return memoryview(memory).cast("B").cast(letter)


def _as_native(view: memoryview) -> memoryview:
    """The same numbers in a format that can be iterated: ctypes marks its own as little-endian."""
    letter: Any = view.format[1:] if view.format[:1] == "<" and sys.byteorder == "little" else view.format
    _require(letter in ("i", "I", "l", "L", "q", "Q"), f"pages are whole numbers, not {view.format!r}")
    return view if letter == view.format else view.cast("B").cast(letter)


def _from_buffer(pages: Any) -> tuple[int, int, object]:
    try:
        view = memoryview(pages)
    except TypeError:
        view = None  # a sequence of numbers
    if view is not None:
        _require(view.ndim == 1, f"a page list has one dimension, not {view.ndim}")
        view = _as_native(view)
    try:
        fitting = array("I", pages if view is None else view)
    except OverflowError:
        raise KvferryError(Status.OUT_OF_RANGE, f"a page below 0 or above {_LARGEST}") from None
    except TypeError as problem:
        raise KvferryError(Status.INVALID_ARGUMENT, f"not a list of pages: {problem}") from None
    address, count = fitting.buffer_info()
    return address, count, fitting
