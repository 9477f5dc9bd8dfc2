"""Stands in for SGLang's helpers that the connector calls. Everything stays on the loopback interface."""

import os
import random
import socket


def get_ip() -> str:
    return "127.0.0.1"


def get_local_ip_by_remote() -> str:
    return "127.0.0.1"


def get_free_port() -> int:
    """Binds, closes and hopes, as SGLang's own; INTEROP_RANK_PORT plays a worker restarted on its old port.

    SGLang's lets the system choose, and then an outgoing connection may take the port before the connector
    binds it (known fault B10). Below the range of outgoing connections nobody does.
    """
    wanted = os.environ.get("INTEROP_RANK_PORT")
    if wanted:
        return int(wanted)
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
