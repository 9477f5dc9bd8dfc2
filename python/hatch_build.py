"""Gives the wheel what stands elsewhere in the tree: the version, the UCX it needs, the library."""

import os
import re
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# Set by scripts/wheel.sh: the root of the sources, and the library that was built from them.
SOURCE_ROOT = Path(os.environ["KVF_SOURCE_ROOT"])
LIBRARY = os.environ["KVF_LIBRARY"]


def first_match(pattern, path):
    return re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE).group(1)


class Metadata(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata):
        metadata["version"] = first_match(r"^project\(kvferry VERSION ([0-9.]+)", SOURCE_ROOT / "CMakeLists.txt")
        ucx = first_match(r"^(libucx-cu12==[0-9.]+)", SOURCE_ROOT / "packaging" / "ucx-wheel.txt")
        metadata["dependencies"] = [ucx]


class Wheel(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        machine = os.uname().machine
        # For any Python 3: the library is loaded with ctypes and knows nothing of Python.
        build_data["tag"] = f"py3-none-linux_{machine}"
        build_data["pure_python"] = False
        build_data["force_include"][LIBRARY] = "kvferry/lib/libkvferry.so.0"
