"""Answers the import of SGLang's NIXL backend with kvferry's.

kvferry-sglang.pth loads this in every interpreter that starts with KVFERRY_SGLANG set, SGLang's spawned schedulers
included; the hooks of a parent would be gone in them. So it stays small, and loads nothing before SGLang asks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Sequence

SWITCH = "KVFERRY_SGLANG"
BACKEND = "sglang.srt.disaggregation.nixl"
SUPPORTED = "0.4.7"
CLASSES = ("NixlKVManager", "NixlKVSender", "NixlKVReceiver", "NixlKVBootstrapServer")


def install() -> None:
    """Puts the finder first, once."""
    if not any(isinstance(finder, BackendFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, BackendFinder())


def refusal() -> str:
    """Why kvferry can't be the backend here; empty when it can. Asks the metadata: importing sglang takes seconds and
    does a lot."""
    switch = os.environ.get(SWITCH, "")
    if switch != "1":
        return f"{SWITCH} is {switch!r}; it is 1 (kvferry is SGLang's NIXL backend) or unset (NIXL itself is)"
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return f"SGLang isn't installed in {sys.prefix}: pip install --no-deps sglang=={SUPPORTED}"
    if version != SUPPORTED:
        return (
            f"this kvferry works under SGLang {SUPPORTED}, and {version} is installed, whose backends are called "
            f"otherwise. Install sglang=={SUPPORTED}, or unset {SWITCH} to go on with NIXL itself"
        )
    return ""


class BackendFinder(MetaPathFinder):
    """Finds one module, and leaves every other name to the finders behind it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != BACKEND:
            return None
        reason = refusal()
        if reason:
            raise ImportError(f"kvferry: {reason}", name=name)
        return ModuleSpec(name, BackendLoader(), origin="kvferry", is_package=True)


class BackendLoader(Loader):
    """Fills the module with the four classes that SGLang takes from it."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        backend = importlib.import_module("kvferry.sglang.backend")
        for name in CLASSES:
            setattr(module, name, getattr(backend, name))
