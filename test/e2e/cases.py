"""The cases: what is broken, and what must hold all the same. Each is called with a fresh Stage."""

import os
import resource
import signal
import time
from collections.abc import Callable

from processes import NOTICED, POOL, TRANSPORTS, Failed, Process, Stage, drawn, ends_well, good_room, receive, send, stopped

Case = Callable[[Stage], str | None]  # returns what was measured

GONE = ("peer gone", "transport")

# Pieces so small, and so few at a time, that a transfer can be met in its middle.
SLOW = {"write_size": "4KiB", "outstanding_bytes": "4KiB"}
LARGE = 480  # pages of a room that takes a while
PARTS = {"chunks": [40] * 12}


class Four:
    """Two prefills and two decodes, so that there is somebody whom a fault doesn't concern."""

    def __init__(self, stage: Stage, **prefill_settings: str) -> None:
        self.stage = stage
        self.prefill_settings = prefill_settings
        self.addresses = [stage.bootstrap(f"bootstrap {side}") for side in "ab"]
        self.prefill = stage.worker("prefill", self.addresses[0], "prefill a", **prefill_settings)
        self.other_prefill = stage.worker("prefill", self.addresses[1], "prefill b")
        self.decode = stage.worker("decode", self.addresses[0], "decode a")
        self.other_decode = stage.worker("decode", self.addresses[0], "decode b")
        good_room(self.other_prefill, self.decode, address=self.addresses[1])
        good_room(self.other_prefill, self.other_decode, address=self.addresses[1])

    def bring_back(self, role: str) -> None:
        """The victim, as a new process on the same port."""
        if role == "prefill":
            self.prefill = self.stage.worker("prefill", self.addresses[0], "prefill a", **self.prefill_settings)
        else:
            self.decode = self.stage.worker("decode", self.addresses[0], "decode a")

    def quit(self) -> None:
        for process in (self.prefill, self.other_prefill, self.decode, self.other_decode):
            process.quit()


# ---- The checks themselves --------------------------------------------------------------------------------------


def _must_fail(what: str, step: Callable[[], object], word: str) -> None:
    try:
        step()
    except Failed as failure:
        if word not in str(failure):
            raise Failed(f"{what} failed, but not for it: {failure}") from failure
        return
    raise Failed(f"{what} wasn't noticed")


def _check_places(prefill: Process) -> None:
    """Each of very many good rooms changes every byte of its pages and its aux slot."""
    pages: dict[int, int] = {}
    slots: dict[int, int] = {}
    for room in range(3000):
        line = drawn(room, prefill)[0]
        (first, count), (source, _) = line["pages"]["range"], line["source_pages"]["range"]
        after = {first + i: source + i for i in range(count)}
        if any(pages.get(page) == bytes_of for page, bytes_of in after.items()) or first + count > POOL["pages"]:
            raise Failed(f"room {room} finds its bytes there already, or lies outside: {line}")
        if slots.get(line["aux_slot"]) == line["source_aux_slot"]:
            raise Failed(f"room {room} finds its aux record there already: {line}")
        pages |= after
        slots[line["aux_slot"]] = line["source_aux_slot"]


def _controls(stage: Stage) -> None:
    """Wrong bytes, a sanitizer's exit status and its complaint make a case fail."""
    address = stage.bootstrap()
    decode = stage.worker("decode", address)
    prefill = stage.worker("prefill", address)
    _check_places(prefill)
    for _ in range(3):
        good_room(prefill, decode)
    prefill.quit()
    prefill = stage.worker("prefill", address, fault="corrupt=2")
    good_room(prefill, decode)
    _must_fail("a wrong byte", lambda: good_room(prefill, decode), "'verified': False")
    _must_fail("another seed", lambda: good_room(prefill, decode, source_seed=77), "'verified': False")
    good_room(prefill, decode)
    prefill.quit()
    decode.quit()
    _must_fail("a sanitizer's exit status", stage.start("99", ["sh", "-c", "read line; exit 99"]).quit, "with 99")
    for complaint in ("==1==ERROR: AddressSanitizer: heap-use-after-free", "x.c:1:2: runtime error: overflow"):
        _must_fail("a complaint", lambda: _complain(stage, complaint), "complained of")


def _complain(stage: Stage, complaint: str) -> None:
    with Stage(stage.build, stage.transport, []) as other:
        process = other.start("complains", ["sh", "-c", 'echo "$1" >&2; read line', "sh", complaint])
        process.quit()


# ---- SIGKILL and SIGSTOP of either side, before, during and after a transfer ------------------------------------


def _reach(four: Four, phase: str) -> None:
    """Room 1 of prefill a and decode a is before, in, or after its transfer."""
    if phase == "before":  # asked for, and nobody sends
        four.decode.tell(receive(1))
        four.prefill.until("room 1 is held", lambda counters: counters["requests_held"] == 1)
        return
    asked, given = drawn(1, four.prefill, LARGE, **PARTS)
    four.decode.tell(asked)
    four.prefill.tell(given)
    if phase == "during":
        four.prefill.until("room 1 is under way", lambda counters: counters["pages_sent"] >= 40)
    else:
        four.decode.succeeded(1)
        four.prefill.succeeded(1)


def _survivor_notices(survivor: Process, since: int, phase: str) -> str | None:
    """What became of room 1 on the other side, and how soon."""
    if phase == "after":
        return None
    line = survivor.failed(1, GONE, NOTICED)
    seconds = (line["ended_ns"] - since) / 1e9
    settled = survivor.settled(1)
    since_settled = (settled.get("settled_ns", line["ended_ns"]) - since) / 1e9
    proof = settled["proof"] if settled["safety"] == "safe" else "released, unproven"
    return f"Failed after {seconds:.3f} s, settled after {since_settled:.3f} s ({proof})"


def _others_go_on(four: Four, victim: str) -> None:
    """Who has nothing to do with the victim is not disturbed."""
    if victim == "prefill":
        good_room(four.other_prefill, four.decode, address=four.addresses[1])
    else:
        good_room(four.prefill, four.other_decode)
    good_room(four.other_prefill, four.other_decode, address=four.addresses[1])


def _kill(four: Four, victim: str, phase: str) -> str | None:
    _reach(four, phase)
    dying, survivor = (four.prefill, four.decode) if victim == "prefill" else (four.decode, four.prefill)
    since = dying.signal(signal.SIGKILL)
    # A request that is only held has no sender that could fail.
    notice = None if (victim, phase) == ("decode", "before") else _survivor_notices(survivor, since, phase)
    _others_go_on(four, victim)
    dying.reap()
    four.bring_back(victim)
    return notice


def _stop(four: Four, victim: str, phase: str) -> str | None:
    _reach(four, phase)
    stopping, survivor = (four.prefill, four.decode) if victim == "prefill" else (four.decode, four.prefill)
    with stopped(stopping) as since:
        notice = None if (victim, phase) == ("decode", "before") else _survivor_notices(survivor, since, phase)
        _others_go_on(four, victim)
        if notice is None:  # nobody has told yet that the peer counts as lost
            survivor.until("the peer is lost", lambda counters: counters["peers_lost"] >= 1, NOTICED)
    if phase == "after":  # a room that it begins before it has seen that goes down with the old connection
        stopping.until("it sees that it was given up", lambda counters: counters["peers_lost"] >= 1, NOTICED)
    if phase != "after" and not (victim, phase) == ("prefill", "before"):
        stopping.failed(1, (*GONE, "peer failed"))  # it ends on the side that was stopped as well
        stopping.settled(1)
    return notice


def _death(victim: str, signal_name: str, phase: str) -> Case:
    # In room 1 nobody gets to the end: the fault is in its middle, however fast the machine is.
    endless = {"fault": f"transfer_stall={len(PARTS['chunks'])}"} if phase == "during" else {}

    def run(stage: Stage) -> str | None:
        four = Four(stage, **SLOW, **endless)
        notice = (_kill if signal_name == "KILL" else _stop)(four, victim, phase)
        good_room(four.prefill, four.decode)
        four.quit()
        return notice

    return run


# ---- The bootstrap server, and restarts ------------------------------------------------------------------------


def _prefill_restarts(stage: Stage) -> None:
    """Asked to quit with a room under way, and back on the same port, again and again."""
    four = Four(stage, **SLOW)
    for room in range(1, 4):
        asked, given = drawn(room, four.prefill, LARGE, **PARTS)
        four.decode.tell(asked)
        four.prefill.tell(given)
        four.prefill.until("it is under way", lambda counters: counters["pages_sent"] >= 40)
        four.prefill.quit()
        line = four.decode.room(room, NOTICED)
        if line["state"] == "success":
            four.decode.succeeded(room)
        four.decode.settled(room)
        four.bring_back("prefill")
        good_room(four.prefill, four.decode)
    four.quit()


def _bootstrap_restarts(stage: Stage) -> None:
    """Rooms of known prefills don't need it; a new decode waits for it; it learns of the ranks again."""
    address = stage.bootstrap()
    prefill = stage.worker("prefill", address)
    decode = stage.worker("decode", address)
    good_room(prefill, decode)
    server = stage.named("bootstrap")
    server.signal(signal.SIGKILL)
    server.reap()
    good_room(prefill, decode)
    late = stage.worker("decode", address, "late decode", http_attempts="1000", retry_interval="20ms")
    asked, given = drawn(1, prefill)
    late.tell(asked)
    prefill.tell(given)
    if stage.bootstrap() != address:
        raise Failed("the bootstrap server is back on another port")
    late.succeeded(1)
    prefill.succeeded(1)
    hopeless = stage.worker("decode", address, "decode c")
    good_room(prefill, hopeless)
    for process in (prefill, decode, late, hopeless):
        process.quit()


# ---- What runs out ----------------------------------------------------------------------------------------------


def _full_disk(stage: Stage) -> None:
    """Their logs lie on a full disk of 1 MiB, and they have much to say."""
    disk = stage.folder / "disk"
    disk.mkdir()
    script = (
        f'mount -t tmpfs -o size=1m none "{disk}" && ! head -c 2M /dev/zero 2>/dev/null >"{disk}/full" &&'
        f' exec "$@" 2>"{disk}/log"'
    )
    prefix = ("unshare", "--mount", "sh", "-c", script, "sh")
    address = stage.bootstrap(prefix=prefix)
    prefill = stage.worker("prefill", address, prefix=prefix, log_level="debug")
    decode = stage.worker("decode", address, prefix=prefix, log_level="debug")
    for _ in range(20):
        good_room(prefill, decode)
    decode.tell(receive(1))
    prefill.until("room 1 is held", lambda counters: counters["requests_held"] == 1)
    decode.tell({"abort": 1})
    decode.failed(1, ("aborted",))
    decode.settled(1)
    good_room(prefill, decode)
    decode.quit()
    prefill.quit()


def _used_descriptors(process: Process) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{process.pid}/fd")) + 1


def _descriptors(stage: Stage) -> None:
    """What is connected goes on without a descriptor to spare; what isn't fails with a reason; then all is well."""
    four = Four(stage)
    good_room(four.prefill, four.decode)
    third = stage.bootstrap("bootstrap c")
    stranger = stage.worker("prefill", third, "prefill c")
    unlimited = resource.prlimit(four.decode.pid, resource.RLIMIT_NOFILE)
    used = _used_descriptors(four.decode)
    resource.prlimit(four.decode.pid, resource.RLIMIT_NOFILE, (used, unlimited[1]))
    four.decode.tell(receive(1, address=third))
    good_room(four.prefill, four.decode)
    line = four.decode.failed(1, ("bootstrap", "system", "timeout", "transport", "limit", "no memory"))
    if four.decode.settled(1)["safety"] != "safe":
        raise Failed(f"nobody was told of the pages: {line}")
    resource.prlimit(four.decode.pid, resource.RLIMIT_NOFILE, unlimited)
    good_room(stranger, four.decode, address=third)
    stranger.quit()
    four.quit()


def _limits(stage: Stage) -> None:
    """Each limit refuses what is too much, and nothing else."""
    address = stage.bootstrap()
    prefill = stage.worker("prefill", address, max_held_requests="2")
    decode = stage.worker("decode", address, max_rooms="4", max_pages="64")
    good_room(prefill, decode)
    decode.tell(receive(1, count=65))
    decode.failed(1, ("limit",))
    pairs = {room: drawn(room, prefill) for room in range(2, 7)}
    decode.tell(*(asked for asked, _ in pairs.values()))
    decode.failed(6, ("limit",))  # max_rooms
    refused = [room for room in range(2, 6) if room > 3]
    for room in refused:  # max_held_requests: the other side says so
        decode.failed(room, ("peer failed",))
        if decode.settled(room)["safety"] != "safe":
            raise Failed(f"room {room} was refused before the first byte")
    prefill.tell(pairs[2][1], pairs[3][1])
    for room in (2, 3):
        ends_well(prefill, decode, room)
    for _ in range(4):
        good_room(prefill, decode)
    decode.quit()
    prefill.quit()


# ---- A network that is cut, and healed --------------------------------------------------------------------------


class Network:
    """Two network namespaces with a cable between them."""

    HOSTS = ("10.99.7.1", "10.99.7.2")

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        script = "ip link set lo up; echo ready; exec sleep infinity"
        self.ends = [stage.start(f"namespace {i}", ["unshare", "--net", "sh", "-c", script]) for i in (0, 1)]
        for end in self.ends:
            end.wait_for("a namespace", lambda line: line.get("text") == "ready")
        self.inside(0, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(self.ends[1].pid))
        for i, host in enumerate(self.HOSTS):
            self.inside(i, "ip", "address", "add", f"{host}/24", "dev", "cable")
            self.inside(i, "ip", "link", "set", "cable", "up")

    def prefix(self, end: int) -> tuple[str, ...]:
        """UCX finds the network devices in /sys, which shows those of the namespace it was mounted in."""
        script = 'mount -t sysfs sysfs /sys && exec "$@"'
        return (*self._enter(end), "unshare", "--mount", "sh", "-c", script, "sh")

    def _enter(self, end: int) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.ends[end].pid), "--net")

    def inside(self, end: int, *command: str) -> None:
        process = self.stage.start(f"ip {time.monotonic_ns()}", [*self._enter(end), *command])
        if process._child.wait(20) != 0:
            raise Failed(f"{' '.join(command)}: {process.last_words()}")

    def cut(self) -> int:
        self.inside(0, "ip", "link", "set", "cable", "down")
        return time.monotonic_ns()

    def heal(self) -> None:
        self.inside(0, "ip", "link", "set", "cable", "up")


def _partition(stage: Stage) -> str:
    """Both sides notice, every room ends, and all is well after the healing. Shared memory is there, but isn't
    offered: across namespaces UCX can't wake its reader."""
    network = Network(stage)
    near, far = network.HOSTS
    address = stage.bootstrap(host=near, prefix=network.prefix(0))
    common = {"transports": f"{TRANSPORTS['shm']},tcp"} if stage.transport == "shm" else {}
    prefill = stage.worker("prefill", address, prefix=network.prefix(0), **(SLOW | {"advertise_address": near} | common))
    decode = stage.worker("decode", address, prefix=network.prefix(1), **({"advertise_address": far} | common))
    good_room(prefill, decode)
    decode.tell(receive(1, count=LARGE), receive(2, first=500, count=4))
    prefill.tell(send(1, count=LARGE, **PARTS))
    prefill.until("room 1 is under way", lambda counters: counters["pages_sent"] >= 40)
    since = network.cut()
    lines = [decode.failed(room, GONE, NOTICED) for room in (1, 2)] + [prefill.failed(1, GONE, NOTICED)]
    slowest = max((line["ended_ns"] - since) / 1e9 for line in lines)
    for room in (1, 2):
        if decode.settled(room)["safety"] != "safe":
            raise Failed(f"room {room} has no proof, although its inbox can be closed")
    prefill.settled(1)
    network.heal()
    good_room(prefill, decode)
    decode.quit()
    prefill.quit()
    return f"Failed after {slowest:.3f} s"


# ---- Killed in the middle of a write, many times ----------------------------------------------------------------


def _kills_in_mid_write(stage: Stage, times: int = 50) -> str:
    """The decode process outlives all its prefills."""
    address = stage.bootstrap()
    decode = stage.worker("decode", address)
    cut_short = 0
    worst = 0.0
    for room in range(1, times + 1):
        prefill = stage.worker("prefill", address, "prefill", **SLOW)
        asked, given = drawn(room, prefill, LARGE, **PARTS)
        decode.tell(asked)
        prefill.tell(given)
        prefill.until("it is under way", lambda counters: counters["pages_sent"] >= 40)
        since = prefill.signal(signal.SIGKILL)
        line = decode.room(room, NOTICED)
        if line["state"] == "failed":
            decode.failed(room, GONE)
            cut_short += 1
            worst = max(worst, (line["ended_ns"] - since) / 1e9)
        else:
            decode.succeeded(room)
        if decode.settled(room)["safety"] != "safe":
            raise Failed(f"room {room} has no proof, although its writer is dead")
        prefill.reap()
    if cut_short < times // 2:
        raise Failed(f"only {cut_short} of {times} kills met a transfer in its middle")
    prefill = stage.worker("prefill", address, "prefill")
    good_room(prefill, decode)
    prefill.quit()
    decode.quit()
    return f"{cut_short} of {times} in the middle of the transfer; Failed after {worst:.3f} s at worst"


# ---- All of them --------------------------------------------------------------------------------------------------

CASES: dict[str, Case] = {
    f"{signal_name} {victim} {phase}": _death(victim, signal_name, phase)
    for victim in ("prefill", "decode")
    for signal_name in ("KILL", "STOP")
    for phase in ("before", "during", "after")
} | {
    "controls": _controls,
    "prefill restarts": _prefill_restarts,
    "bootstrap restarts": _bootstrap_restarts,
    "network cut": _partition,
    "full disk": _full_disk,
    "descriptors": _descriptors,
    "limits": _limits,
    "kills in mid-write": _kills_in_mid_write,
}

# Fifty new processes take a while; over shared memory one kill shows as much.
TCP_ONLY = ["kills in mid-write"]

# For other builds: each kind of fault once.
SIX = ["KILL prefill during", "KILL decode during", "STOP prefill during", "bootstrap restarts", "descriptors", "limits"]
