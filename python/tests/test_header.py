"""The ctypes declarations against the public header, as a C compiler and a reader of its text see it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import unittest

from kvferry import _abi
from support import SOURCE_ROOT, FolderTest

HEADER = SOURCE_ROOT / "include" / "kvferry" / "kvferry.h"

# What a C type is in ctypes, where it isn't a pointer to something of kvferry's own.
PLAIN = {
    "void": None,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "const char *": ctypes.c_char_p,
    "void *": ctypes.c_void_p,
    "const uint8_t *": ctypes.c_void_p,
    "const uint32_t *": ctypes.c_void_p,
    "kvf_log_callback": ctypes.c_void_p,
}


def header_text() -> str:
    """The header without comments, preprocessor lines and attributes, a declaration a line."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return re.sub(r";\s*", ";\n", re.sub(r"\s+", " ", text.replace("KVF_PUBLIC ", "")))


def header_enums() -> dict[str, dict[str, int]]:
    found = {}
    for name, body in re.findall(r"typedef enum (kvf_\w+) \{(.*?)\}", header_text()):
        found[name] = {key: int(value) for key, value in re.findall(r"(KVF_\w+) = (\d+)", body)}
    return found


def header_functions() -> dict[str, tuple[str, list[str]]]:
    """Name to (result, argument types), each type without the argument's name."""
    functions = {}
    pattern = r"^([\w ]+?[ *]+)(kvf_\w+)\(([^()]*)\);"
    for result, name, arguments in re.findall(pattern, header_text(), flags=re.MULTILINE):
        types = [re.sub(r"\s+", " ", each).strip() for each in arguments.split(",")]
        functions[name] = (result.strip(), [re.sub(r"\w+$", "", each).strip() for each in types if each != "void"])
    return functions


def expected(c_type: str):
    """What ctypes must say for a type of the header."""
    if c_type in PLAIN:
        return PLAIN[c_type]
    word = re.search(r"kvf_\w+", c_type).group()
    stars = c_type.count("*")
    if word in _abi.ENUMS and stars == 0:
        return ctypes.c_int
    if word in _abi.STRUCTURES and stars == 1:
        return ctypes.POINTER(_abi.STRUCTURES[word])
    return {1: ctypes.c_void_p, 2: ctypes.POINTER(ctypes.c_void_p)}[stars]


class HeaderText(unittest.TestCase):
    def test_every_enumerator_has_the_same_name_and_number(self) -> None:
        self.assertEqual(set(header_enums()), set(_abi.ENUMS))
        for name, (prefix, ours) in _abi.ENUMS.items():
            self.assertEqual(
                {prefix + each.name: each.value for each in ours}, header_enums()[name], f"numbers of {name}"
            )

    def test_every_function_is_declared_as_the_header_does(self) -> None:
        ours = {**_abi.QUICK, **_abi.WAITING}
        theirs = header_functions()
        self.assertGreater(len(theirs), 30)
        self.assertEqual(set(ours), set(theirs))
        for name, (result, arguments) in theirs.items():
            with self.subTest(name):
                self.assertEqual(ours[name], (expected(result), [expected(each) for each in arguments]))

    def test_every_structure_is_known(self) -> None:
        structures = set(re.findall(r"typedef struct (kvf_\w+) \{", header_text()))
        self.assertEqual(structures, set(_abi.STRUCTURES))


@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class CompiledHeader(FolderTest):
    def test_sizes_offsets_and_fields(self) -> None:
        questions = []
        for name, structure in _abi.STRUCTURES.items():
            questions.append((f"sizeof({name})", ctypes.sizeof(structure)))
            for field, *_ in structure._fields_:
                ours = getattr(structure, field)
                questions.append((f"offsetof({name}, {field})", ours.offset))
                questions.append((f"sizeof((({name} *)0)->{field})", ours.size))
        self.assertEqual(self.compiled([question for question, _ in questions]), [answer for _, answer in questions])

    def compiled(self, expressions: list[str]) -> list[int]:
        program = self.folder / "program.c"
        lines = "".join(f'    printf("%zu\\n", (size_t)({each}));\n' for each in expressions)
        program.write_text(
            f'#include "{HEADER}"\n#include <stdio.h>\nint main(void)\n{{\n{lines}    return 0;\n}}\n', encoding="utf-8"
        )
        subprocess.run(["cc", "-o", self.folder / "program", program], check=True)
        output = subprocess.run([self.folder / "program"], check=True, capture_output=True, text=True).stdout
        return [int(line) for line in output.split()]


if __name__ == "__main__":
    unittest.main()
