"""The wheel itself: what it carries, what it needs of a machine, what it says of the UCX it uses."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import unittest
import zipfile
from pathlib import Path

import kvferry
from kvferry._library import library_path
from support import SOURCE_ROOT

# What any Linux with the wheel's glibc has: the C library's own parts, and the compilers' run-time libraries.
OF_ANY_LINUX = re.compile(
    r"^(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[\w-]*|libgcc_s|libstdc\+\+)\.so(\.\d+)+$"
)
MAPPED = "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}, sep='\\n')"
OF_UCX = re.compile(r"^libuc[psmt]\.so\.0$")


def needed(library: Path) -> list[str]:
    output = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output)


def run_paths(library: Path) -> list[str]:
    output = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return [each for line in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", output) for each in line.split(":")]


class Wheel(unittest.TestCase):
    def libraries(self) -> list[Path]:
        beside = library_path().parents[2] / "kvferry.libs"
        return [library_path(), *sorted(beside.glob("*.so*"))]

    @unittest.skipUnless(shutil.which("readelf"), "needs readelf")
    def test_every_library_needs_only_the_wheel_ucx_and_any_linux(self) -> None:
        names = {library.name for library in self.libraries()}
        for library in self.libraries():
            for name in needed(library):
                own = name in names or OF_UCX.match(name) or OF_ANY_LINUX.match(name)
                self.assertTrue(own, f"{library.name} needs {name}")
            for path in run_paths(library):
                self.assertTrue(path.startswith("$ORIGIN"), f"{library.name} looks in {path}")

    @unittest.skipUnless(shutil.which("ldd"), "needs ldd")
    def test_the_dynamic_linker_finds_everything_with_ucx_beside_it(self) -> None:
        ucx = library_path().parents[2] / "libucx" / "lib"
        output = subprocess.run(
            ["ldd", library_path()], env={"LD_LIBRARY_PATH": str(ucx)}, check=True, capture_output=True, text=True
        ).stdout
        self.assertNotIn("not found", output)
        inside = str(library_path().parents[2])
        for name, path in re.findall(r"^\s*(\S+) => (\S+)", output, flags=re.MULTILINE):
            if not OF_ANY_LINUX.match(name):
                self.assertTrue(os.path.normpath(path).startswith(inside), f"{name} comes from {path}")

    def test_it_works_in_an_empty_environment(self) -> None:
        program = "import kvferry; kvferry.BootstrapServer('127.0.0.1:0').close(); print(kvferry.ucx_version())"
        result = subprocess.run(
            [sys.executable, "-c", program], env={}, cwd="/", capture_output=True, text=True, check=False
        )
        self.assertEqual((result.returncode, result.stdout.strip()), (0, kvferry.ucx_version()), result.stderr)

    def test_no_other_library_is_mapped(self) -> None:
        """Asked of a process that has opened a manager, UCX's modules included."""
        program = (
            "import kvferry; pool = bytearray(4096)\n"
            "manager = kvferry.Manager(kvferry.Role.DECODE, [kvferry.Buffer(pool, 64)])\n" + MAPPED
        )
        inside = str(library_path().parents[2])
        of_python = self.mapped("import asyncio, ctypes, dataclasses, importlib.util, threading\n" + MAPPED)
        for path in self.mapped(program) - of_python:
            self.assertTrue(path.startswith(inside) or OF_ANY_LINUX.match(Path(path).name), f"{path} is mapped")

    @staticmethod
    def mapped(program: str) -> set[str]:
        output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        return set(output.split())

    def test_the_metadata_names_the_ucx_that_is_pinned_and_runs(self) -> None:
        pinned = re.search(r"^libucx-cu12==(\S+)", (SOURCE_ROOT / "packaging/ucx-wheel.txt").read_text(), re.M).group(1)
        self.assertEqual(importlib.metadata.requires("kvferry"), [f"libucx-cu12=={pinned}"])
        self.assertEqual(kvferry.ucx_version(), pinned)
        self.assertEqual(kvferry.version(), importlib.metadata.version("kvferry"))

    def test_another_ucx_can_be_named(self) -> None:
        program = "import kvferry; print(kvferry.ucx_version())"
        copied = library_path().parents[2] / "libucx" / "lib"
        for value, works in ((str(copied), True), ("/nonexistent", False)):
            variables = {**os.environ, "KVFERRY_PYTHON_UCX": value}
            result = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=False)
            self.assertEqual(result.returncode == 0, works, result.stderr)

    def test_the_files_are_those_of_the_tree(self) -> None:
        with zipfile.ZipFile(os.environ["KVF_WHEEL"]) as wheel:
            carried = {name for name in wheel.namelist() if re.match(r"kvferry/.*[^/]$", name)}
        tree = SOURCE_ROOT / "python"
        sources = [path for path in (tree / "kvferry").rglob("*") if path.suffix in (".py", ".typed")]
        ours = {str(path.relative_to(tree)) for path in sources}
        self.assertEqual(carried, ours | {"kvferry/lib/libkvferry.so.0"})


if __name__ == "__main__":
    unittest.main()
