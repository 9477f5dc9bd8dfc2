"""Stands in for SGLang's helpers that the connector calls. Everything stays on the loopback interface."""

import os
import socket


def get_ip() -> str:
    return "127.0.0.1"


def get_local_ip_by_remote() -> str:
    return "127.0.0.1"


def get_free_port() -> int:
    """Binds, closes and hopes, as SGLang's own; INTEROP_RANK_PORT plays a worker restarted on its old port."""
    wanted = os.environ.get("INTEROP_RANK_PORT")
    if wanted:
        return int(wanted)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
