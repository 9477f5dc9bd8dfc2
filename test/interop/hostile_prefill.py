"""A prefill rank that takes requests like a stock one and then sends whatever notifications it is told to.

Lines: {"notify":["hex",...]} sends each to the latest agent that asked, through an unmodified NIXL agent.
"""

import json
import os
import sys
import threading
import uuid

import zmq

_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def say(**answer: object) -> None:
    _out.write(json.dumps(answer) + "\n")


def main() -> None:
    from nixl._api import nixl_agent

    agent = nixl_agent(str(uuid.uuid4()))
    peers: list[str] = []
    socket = zmq.Context().socket(zmq.PULL)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def listen() -> None:
        while True:
            frames = socket.recv_multipart()
            agent.add_remote_agent(frames[4])
            peers.append(frames[5].decode("ascii"))
            say(requested=int(frames[1]))

    threading.Thread(target=listen, daemon=True).start()
    say(ready=True, role="hostile", port=port, pid=os.getpid())
    for line in sys.stdin:
        messages = json.loads(line).get("notify", [])
        for message in messages:
            agent.send_notif(peers[-1], bytes.fromhex(message))
        say(notified=len(messages))
    os._exit(0)


if __name__ == "__main__":
    main()
