"""What SGLang's arguments mean for a manager of kvferry's."""

from __future__ import annotations

import os
import socket
from typing import Any

import kvferry
from kvferry import Memory, Role


def memory_of(device: str) -> Memory:
    """SGLang names no memory kind: its pool lies on the server's device."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return Memory.HOST
    if kind == "cuda":
        return Memory.CUDA
    raise ValueError(f"kvferry moves caches in host and CUDA memory; this server's device is {device}")


def buffers_of(pointers: list, lengths: list, items: list, memory: Memory, device: int) -> list[kvferry.Buffer]:
    return [
        kvferry.Buffer(None, item, memory, device, address=pointer, length=length)
        for pointer, length, item in zip(pointers, lengths, items)
    ]


def manager_settings(role: Role, server_args: Any, rank: int) -> dict[str, object]:
    """What SGLang's own arguments say, where the environment's KVFERRY_* doesn't say otherwise."""
    settings: dict[str, object] = {}
    host = os.environ.get("SGLANG_HOST_IP") or os.environ.get("HOST_IP") or ""
    if host and not kvferry.setting_value("advertise_address"):
        settings["advertise_address"] = host
    if role is Role.PREFILL and not kvferry.setting_value("bootstrap_address"):
        server = _dist_init_host(server_args.dist_init_addr) or host or _own_address()
        settings["bootstrap_address"] = endpoint(server, server_args.disaggregation_bootstrap_port)
    port = int(kvferry.setting_value("control_port"))
    if port != 0:
        settings["control_port"] = port + rank  # one variable serves all ranks of a machine
    return settings


def _dist_init_host(address: str | None) -> str:
    """The first node's host, where the bootstrap server of a prefill server of several nodes runs."""
    return (address or "").rpartition(":")[0].strip("[]")


def _own_address() -> str:
    """The address this machine is reached at: the source of its default route. Connecting UDP sends nothing."""
    for family, target in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 80))
                return probe.getsockname()[0]
        except OSError:
            continue
    return "127.0.0.1"


def endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
