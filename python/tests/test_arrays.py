"""Page lists and pools from every kind of object that is taken, and refusals of what isn't pages."""

from __future__ import annotations

import array
import ctypes
import subprocess
import sys
import types
import unittest

import numpy
from kvferry import KvferryError, Status
from kvferry._arrays import page_list, pool_memory


def numbers_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint32 * count).from_address(address)) if count else []


def read(pages) -> list[int]:
    address, count, _keep = page_list(pages)
    return numbers_at(address, count)


class Tensor:
    """As much of a torch tensor as is used."""

    def __init__(self, values: numpy.ndarray, device: str = "cpu") -> None:
        self._values = values
        self.dtype = f"torch.{values.dtype}"
        self.device = types.SimpleNamespace(type=device)

    def data_ptr(self) -> int:
        return self._values.ctypes.data

    def numel(self) -> int:
        return self._values.size

    def element_size(self) -> int:
        return self._values.itemsize

    def dim(self) -> int:
        return self._values.ndim

    def is_contiguous(self) -> bool:
        return self._values.flags.c_contiguous

    def contiguous(self) -> Tensor:
        return Tensor(numpy.ascontiguousarray(self._values), self.device.type)


class PageLists(unittest.TestCase):
    def test_every_kind_gives_the_same_pages(self) -> None:
        pages = [0, 5, 7, 4_000_000]
        kinds = {
            "list": pages,
            "tuple": tuple(pages),
            "range": range(3, 9),
            "int32 view": numpy.arange(40, dtype=numpy.int32).reshape(4, 10)[2],
            "strided": numpy.arange(40, dtype=numpy.int32)[::3],
            "backwards": numpy.arange(9, dtype=numpy.int64)[::-1],
            "ctypes": (ctypes.c_int32 * 4)(*pages),
            "memoryview": memoryview(array.array("q", pages)),
            **{f"numpy {kind}": numpy.array(pages, kind) for kind in ("int32", "int64", "uint32", "uint64", ">i4")},
            **{f"array {kind}": array.array(kind, pages) for kind in "iIlLqQ"},
            **{f"tensor {kind}": Tensor(numpy.array(pages, kind)) for kind in ("int32", "int64", "uint32")},
            "strided tensor": Tensor(numpy.arange(40, dtype=numpy.int64)[::3]),
        }
        for name, given in kinds.items():
            with self.subTest(name):
                values = given._values if isinstance(given, Tensor) else given
                self.assertEqual(read(given), [int(each) for each in values])

    def test_empty_lists(self) -> None:
        for given in ([], numpy.array([], numpy.int64), array.array("i"), Tensor(numpy.array([], numpy.int32))):
            self.assertEqual(read(given), [])

    def test_what_fits_is_not_copied(self) -> None:
        pages = numpy.arange(10, dtype=numpy.uint32)
        self.assertEqual(page_list(pages)[0], pages.ctypes.data)

    def test_what_is_converted_is_a_copy(self) -> None:
        pages = numpy.arange(10, dtype=numpy.int64)
        address, count, _keep = page_list(pages)
        pages[:] = 0
        self.assertEqual(numbers_at(address, count), list(range(10)))

    def test_negative_and_too_large_pages_are_refused(self) -> None:
        for value in (-1, 1 << 32, -(1 << 40)):
            kinds = [[1, value], numpy.array([1, value], numpy.int64), array.array("q", [1, value])]
            kinds.append(Tensor(numpy.array([1, value], numpy.int64)))
            for given in kinds:
                with self.subTest(type(given).__name__, value=value), self.assertRaises(KvferryError) as caught:
                    page_list(given)
                self.assertEqual(caught.exception.status, Status.OUT_OF_RANGE)
        with self.assertRaises(KvferryError):
            page_list(numpy.array([-1], numpy.int32))

    def test_what_is_no_page_list_is_refused(self) -> None:
        wrong = {
            "float": numpy.array([1.0, 2.0]),
            "matrix": numpy.zeros((2, 2), numpy.int32),
            "bool": numpy.array([True]),
            "text": "12",
            "float list": [1.5],
            "nothing": None,
            "float buffer": array.array("d", [1.0]),
            "bytes": b"12",
            "tensor on a GPU": Tensor(numpy.array([1], numpy.int64), "cuda"),
            "tensor of floats": Tensor(numpy.array([1.0])),
        }
        for name, given in wrong.items():
            with self.subTest(name), self.assertRaises(KvferryError) as caught:
                page_list(given)
            self.assertEqual(caught.exception.status, Status.INVALID_ARGUMENT)


class Pools(unittest.TestCase):
    def test_address_and_length(self) -> None:
        values = numpy.zeros((7, 16), numpy.uint16)
        for given in (values, memoryview(values), Tensor(values)):
            address, length, _keep = pool_memory(given)
            self.assertEqual((address, length), (values.ctypes.data, values.nbytes))

    def test_a_pool_is_held_in_place(self) -> None:
        memory = bytearray(64)
        keep = pool_memory(memory)
        with self.assertRaises(BufferError):
            memory.extend(b"more")
        del keep
        memory.extend(b"more")

    def test_what_cannot_be_a_pool_is_refused(self) -> None:
        for given in (b"read only", numpy.zeros((4, 4))[:, ::2], Tensor(numpy.zeros((4, 4))[:, ::2])):
            with self.assertRaises(KvferryError):
                pool_memory(given)


class Imports(unittest.TestCase):
    def test_nothing_heavy_is_imported_for_a_caller_without_it(self) -> None:
        program = (
            "import array, sys, kvferry; from kvferry._arrays import page_list; page_list(array.array('i', [1, 2])); "
            "kvferry.ucx_version(); sys.exit(bool({'numpy', 'torch', 'sglang'} & set(sys.modules)))"
        )
        self.assertEqual(subprocess.run([sys.executable, "-c", program], check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
