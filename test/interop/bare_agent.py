"""A stock NIXL agent by itself, against test/interop/bare_agent.c.

Usage: bare_agent.py target|initiator DRAM|VRAM. Target: prints its metadata and waits. Initiator: reads
{"metadata":hex,"address":N} and writes to it.
"""

import json
import os
import sys
import time

import numpy as np

LENGTH = 1 << 20
_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def say(**answer: object) -> None:
    _out.write(json.dumps(answer) + "\n")


def pattern() -> np.ndarray:
    number = np.arange(LENGTH, dtype=np.uint64)
    return (number * np.uint64(7) + number // np.uint64(4096)).astype(np.uint8)


def main() -> None:
    from nixl._api import nixl_agent

    role, kind = sys.argv[1:]
    agent = nixl_agent("stock-bare")
    memory = np.full(LENGTH, 0xA5, dtype=np.uint8)
    if not agent.register_memory([(memory.ctypes.data, LENGTH, 0, "")], kind):
        raise RuntimeError("the stock agent can't register memory")
    deadline = time.monotonic() + 20
    if role == "target":
        say(address=memory.ctypes.data, length=LENGTH, metadata=agent.get_agent_metadata().hex())
        while time.monotonic() < deadline:
            for messages in agent.get_new_notifs().values():
                say(notification=messages[0].decode(), verified=bool((memory == pattern()).all()))
                os._exit(0)
            time.sleep(0.001)
        raise TimeoutError("no notification")
    memory[:] = pattern()
    peer = json.loads(sys.stdin.readline())
    name = agent.add_remote_agent(bytes.fromhex(peer["metadata"]))
    name = name.decode() if isinstance(name, bytes) else name
    source = agent.get_xfer_descs([(memory.ctypes.data, LENGTH, 0)], kind)
    target = agent.get_xfer_descs([(peer["address"], LENGTH, 0)], kind)
    transfer = agent.initialize_xfer("WRITE", source, target, name, b"7_kv_0_1")
    state = agent.transfer(transfer)
    while state != "DONE" and time.monotonic() < deadline:
        state = agent.check_xfer_state(transfer)
        time.sleep(0.001)
    say(written=LENGTH, state=state)
    sys.stdin.readline()  # the peer may still want an answer of ours
    os._exit(0)  # NIXL 1.5.1 crashes at the interpreter's end where there is no GPU


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        say(error=f"{type(error).__name__}: {error}")
        os._exit(1)
