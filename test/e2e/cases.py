"""The cases: what is broken, and what must hold all the same. Each is called with a fresh Stage."""

import contextlib
import itertools
import os
import pathlib
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from processes import (
    NOTICED,
    POOL,
    SMALL,
    TRANSPORTS,
    Failed,
    Line,
    Process,
    Stage,
    begin,
    drawn,
    ends_well,
    good_room,
    receive,
    stopped,
)

Case = Callable[[Stage], str | None]  # returns what was measured
Room = tuple[Process, Process, int]  # prefill, decode, number

# Pieces so small, and so few at a time, that a transfer can be met in its middle.
SLOW = {"write_size": "4KiB", "outstanding_bytes": "4KiB"}
LARGE = 480  # pages of a room that takes a while
# The chunks of a room are written in turns: when the small one has ended, most of the others is still to come.
PARTS = {"chunks": [4, 236, 240]}


class Four:
    """Two prefills and two decodes, so that there is somebody whom a fault doesn't concern."""

    def __init__(self, stage: Stage, first: dict[str, str], second: dict[str, str], **common: str) -> None:
        """`first` are the settings of prefill a, `second` those of prefill b."""
        self.stage = stage
        self.prefill_settings = first | common
        self.common = common
        self.addresses = [stage.bootstrap(f"bootstrap {side}") for side in "ab"]
        self.prefill = stage.worker("prefill", self.addresses[0], "prefill a", **self.prefill_settings)
        self.other_prefill = stage.worker("prefill", self.addresses[1], "prefill b", **(second | common))
        self.decode = stage.worker("decode", self.addresses[0], "decode a", **common)
        self.other_decode = stage.worker("decode", self.addresses[0], "decode b", **common)

    def begin(self, pairs: list[tuple[Process, Process]], count: int = SMALL) -> list[Room]:
        """Good rooms, all at once."""
        return [
            (prefill, decode, begin(prefill, decode, count=count, address=self.addresses[prefill is self.other_prefill]))
            for prefill, decode in pairs
        ]

    def bring_back(self, role: str) -> None:
        """The victim, as a new process on the same port."""
        if role == "prefill":
            self.prefill = self.stage.worker("prefill", self.addresses[0], "prefill a", **self.prefill_settings)
        else:
            self.decode = self.stage.worker("decode", self.addresses[0], "decode a", **self.common)

    def quit(self) -> None:
        for process in (self.prefill, self.other_prefill, self.decode, self.other_decode):
            process.quit()


def _begin_large(prefill: Process, decode: Process, room: int) -> None:
    asked, given = drawn(room, prefill, LARGE, **PARTS)
    decode.tell(asked)
    prefill.tell(given)


def _never_ending(earlier: int) -> dict[str, str]:
    """Settings of a prefill whose large room doesn't get to its end, where so many transfers come before it: else a fault
    that is to meet its middle may come too late."""
    return {"fault": f"transfer_stall={earlier + len(PARTS['chunks'])}"}


def _reach_middle(prefill: Process, decode: Process, room: int, beside: int = 0) -> None:
    """Begins a large room, and returns when some of its pages have been sent and all its transfers are posted: a later one
    would be the one that doesn't end. `beside` it there are so many pages of another room that is under way, in one
    transfer; pages count when theirs has ended."""
    before = prefill.statistics()["pages_sent"]
    if before >= beside:
        beside = 0  # it has ended already: nothing as large came before it
    first, second, third = PARTS["chunks"]
    left = {first: 2, first + second: 1, first + third: 1}  # whichever of the last two doesn't end
    left |= {pages + beside: count for pages, count in left.items()} | (
        {pages: count + 1 for pages, count in left.items()} if beside else {}
    )
    _begin_large(prefill, decode, room)
    prefill.until(
        f"room {room} is under way",
        lambda now: now["transfers_active"] == left.get(now["pages_sent"] - before),
    )


def _end_well(rooms: list[Room], count: int = SMALL) -> list[Line]:
    return [ends_well(prefill, decode, room, count=count) for prefill, decode, room in rooms]


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


# A closed connection tells of a kill; heartbeats would take a minute. Silence tells of a stopped process.
HEARTBEATS = {"KILL": "60s", "STOP": "1s"}
NOTICED_WITHIN = {"KILL": 5.0, "STOP": 1.0 + 0.2 + 2.0}  # heartbeat_timeout, heartbeat_interval, a busy machine
FENCE = 2.0  # fence_timeout

# What proves that room 1's pages are safe, where they are (docs/fence.md). A stopped process goes on one day and writes
# past an inbox by CMA, so nothing does there. What was handed to a stopped decode may or may not get through.
PROOFS = {
    ("KILL", "prefill", "shm"): ("writer exited",),
    ("KILL", "prefill", "tcp"): ("receiver closed",),
    ("STOP", "prefill", "shm"): ("none",),
    ("STOP", "prefill", "tcp"): ("receiver closed",),
    ("KILL", "decode", "shm"): ("transport done",),
    ("KILL", "decode", "tcp"): ("transport done",),
    ("STOP", "decode", "shm"): ("transport done", "none"),
    ("STOP", "decode", "tcp"): ("transport done", "none"),
}
# UCX 1.13.1 never ends a write that is under way to a process that dies, nor a flush behind it, over shared memory.
OLD_PROOFS = PROOFS | {("KILL", "decode", "shm"): ("transport done", "none")}


@dataclass
class Death:
    """One of the four is killed or stopped while room 1 of prefill a and decode a is before, in, or after its transfer,
    and rooms of the other pairs are in theirs."""

    four: Four
    signal_name: str
    victim: str
    phase: str

    @property
    def dying(self) -> Process:
        return self.four.prefill if self.victim == "prefill" else self.four.decode

    @property
    def survivor(self) -> Process:
        return self.four.decode if self.victim == "prefill" else self.four.prefill

    @property
    def others(self) -> list[tuple[Process, Process]]:
        """The pairs whom it doesn't concern."""
        four = self.four
        survivors = (four.other_prefill, four.decode) if self.victim == "prefill" else (four.prefill, four.other_decode)
        return [survivors, (four.other_prefill, four.other_decode)]

    @property
    def proofs(self) -> tuple[str, ...]:
        stage = self.four.stage
        return (OLD_PROOFS if stage.ucx < (1, 19) else PROOFS)[self.signal_name, self.victim, stage.transport]

    @property
    def is_open(self) -> bool:
        """Whether room 1 is open on the side that survives: a request that is only held has no sender."""
        return self.phase == "during" or (self.victim, self.phase) == ("prefill", "before")

    def reach(self) -> list[Room]:
        """Rooms of the others are in transfer, and room 1 is in its phase."""
        count = LARGE if self.phase == "during" else SMALL
        others = [] if self.phase == "after" else self._begin_others(count)
        if self.phase == "before":  # asked for, and nobody sends
            held = self.four.prefill.statistics()["requests_held"]
            self.four.decode.tell(receive(1))
            self.four.prefill.until("room 1 is held", lambda counters: counters["requests_held"] == held + 1)
            return others
        if self.phase == "during":
            _reach_middle(self.four.prefill, self.four.decode, 1, beside=0 if self.victim == "prefill" else LARGE)
            return others
        _begin_large(self.four.prefill, self.four.decode, 1)
        ends_well(self.four.prefill, self.four.decode, 1, count=LARGE)
        return self._begin_others(count)

    def _begin_others(self, count: int) -> list[Room]:
        """Their transfers are posted, and held for a while (except prefill a's where room 1 is in its transfer)."""
        before = [prefill.statistics()["messages_received"] for prefill, _ in self.others]
        asked = 2 if self.victim == "prefill" else 1  # both rooms are prefill b's then
        rooms = self.four.begin(self.others, count)
        for (prefill, _), messages in zip(self.others, before, strict=True):
            prefill.until(
                "the others' transfers are posted",
                lambda counters: counters["messages_received"] >= messages + asked and counters["requests_held"] == 0,
            )
        return rooms

    def notice(self, since: int) -> str:
        """What the other side says of room 1, how soon, and when and why its pages are safe."""
        within = NOTICED_WITHIN[self.signal_name]
        if not self.is_open:
            self.survivor.until("the peer is lost", lambda counters: counters["peers_lost"] == 1, within)
            self.survivor.until("room 1 isn't held any more", lambda counters: counters["requests_held"] == 0, within)
            return f"noticed after {(time.monotonic_ns() - since) / 1e9:.3f} s"
        # Who writes may see its write fail first.
        statuses = ("peer gone",) if self.victim == "prefill" else ("peer gone", "transport")
        line = self.survivor.failed(1, statuses, within)
        seconds = (line["ended_ns"] - since) / 1e9
        settled = self.survivor.settled(1)
        since_settled = (settled.get("settled_ns", line["ended_ns"]) - since) / 1e9
        if seconds > within or settled["proof"] not in self.proofs:
            raise Failed(f"after {seconds:.3f} s: {line}; after {since_settled:.3f} s: {settled}")
        early = since_settled - seconds < FENCE - 0.1 if settled["proof"] == "none" else since_settled > within + FENCE
        if early:
            raise Failed(f"settled after {since_settled:.3f} s, failed after {seconds:.3f} s: {settled}")
        proof = settled["proof"] if settled["safety"] == "safe" else "released, unproven"
        return f"Failed after {seconds:.3f} s, settled after {since_settled:.3f} s ({proof})"

    def others_go_on(self, rooms: list[Room], since: int) -> None:
        """Rooms across the death, and rooms after it."""
        lines = _end_well(rooms, LARGE if self.phase == "during" else SMALL)
        for (prefill, _, room), line in zip(rooms, lines, strict=True):
            held = self.phase != "during" or prefill is self.four.other_prefill
            if held and line["ended_ns"] < since:
                raise Failed(f"room {room} was to be in transfer, but had ended before: {line}")
        _end_well(self.four.begin(self.others))

    def kill(self) -> str:
        rooms = self.reach()
        since = self.dying.signal(signal.SIGKILL)
        notice = self.notice(since)
        self.others_go_on(rooms, since)
        self.dying.reap()
        self.four.bring_back(self.victim)
        return notice

    def stop(self) -> str:
        rooms = self.reach()
        with stopped(self.dying) as since:
            notice = self.notice(since)
            self.others_go_on(rooms, since)
        # A room that it begins before it has seen that it was given up goes down with the old connection.
        self.dying.until("it sees that it was given up", lambda counters: counters["peers_lost"] >= 1, NOTICED)
        if self.phase == "during" or (self.victim, self.phase) == ("decode", "before"):
            # A decode may hear of it by the closed connection or, where that still works, by the prefill's letter.
            self.dying.failed(1, ("peer gone",) if self.victim == "prefill" else ("peer gone", "peer failed"))
            self.dying.settled(1)
        return notice


def _death(victim: str, signal_name: str, phase: str) -> Case:
    hold_ms = 1000 if signal_name == "KILL" else 2000
    # Before room 1's transfers there is one to each decode that prefill a has to know, and one that is to get through
    # meanwhile.
    endless = _never_ending(earlier=1 if victim == "prefill" else 3)

    def run(stage: Stage) -> str | None:
        held = {"fault": f"hold_ms={hold_ms * (5 if stage.slow else 1)}"}
        first = endless if phase == "during" else held if victim == "decode" else {}
        four = Four(stage, SLOW | first, held, heartbeat_timeout=HEARTBEATS[signal_name])
        death = Death(four, signal_name, victim, phase)
        _end_well(four.begin([(four.prefill, four.decode), *death.others]))
        notice = death.kill() if signal_name == "KILL" else death.stop()
        good_room(four.prefill, four.decode)
        four.quit()
        return notice

    return run


# ---- The bootstrap server, and restarts ------------------------------------------------------------------------


def _prefill_restarts(stage: Stage) -> None:
    """Asked to quit with a room under way, and back on the same port, again and again. It says why it goes."""
    four = Four(stage, SLOW | _never_ending(earlier=0), {})  # of the later rooms the middle chunk stalls
    for room in range(1, 4):
        _reach_middle(four.prefill, four.decode, room)
        four.prefill.quit()
        four.decode.failed(room, ("peer failed", "peer gone"), NOTICED)
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
    for process in (prefill, decode):  # in its own mount namespace
        log = pathlib.Path(f"/proc/{process.pid}/root{disk}/log")
        if os.statvfs(log).f_bavail != 0:
            raise Failed(f"{process.name}'s disk isn't full")
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


@contextlib.contextmanager
def _starved(process: Process) -> Iterator[None]:
    """The process finds no descriptor, not even one that was given back: the limit is its lowest free one."""
    used = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    lowest = next(number for number in itertools.count() if number not in used)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


def _descriptors(stage: Stage) -> None:
    """What is connected goes on without a descriptor to spare; what isn't fails with a reason; then all is well."""
    four = Four(stage, {}, {})
    good_room(four.prefill, four.decode)
    third = stage.bootstrap("bootstrap c")
    stranger = stage.worker("prefill", third, "prefill c")
    with _starved(four.decode):
        four.decode.tell(receive(1, address=third))
        good_room(four.prefill, four.decode)
        four.decode.failed(1, ("bootstrap", "system", "timeout", "transport"))
        four.decode.safe(1, "nobody was told of the pages")
    good_room(stranger, four.decode, address=third)
    newcomer = stage.worker("decode", four.addresses[0], "decode c", bootstrap_timeout="3s")
    with _starved(four.prefill):  # it can't accept anybody
        newcomer.tell(receive(1))
        good_room(four.prefill, four.decode)
        newcomer.failed(1, ("timeout", "peer gone"))
        newcomer.safe(1, "nobody was told of the pages")
    good_room(four.prefill, newcomer)
    newcomer.quit()
    stranger.quit()
    four.quit()


def _budget(stage: Stage) -> None:
    """The memory that peers may take on a prefill: whoever wants more hears of it at once, and nobody else is disturbed. (Where
    the system has none left: test/no_memory_test.c.)"""
    address = stage.bootstrap()
    prefill = stage.worker("prefill", address, max_held_bytes="4KiB", max_peers="2")
    decode = stage.worker("decode", address)
    second = stage.worker("decode", address, "second decode")
    good_room(prefill, decode)
    good_room(prefill, second)
    pairs = {room: drawn(room, prefill) for room in range(1, 9)}
    decode.tell(*(asked for asked, _ in pairs.values()))
    counters = prefill.until("all were judged", lambda counters: counters["requests_held"] + counters["messages_dropped"] == 8)
    held = counters["requests_held"]
    if held not in range(1, 8):
        raise Failed(f"of 8 requests {held} are held")
    for room in range(held + 1, 9):
        _names(decode.failed(room, ("peer failed",), NOTICED), "max_held_bytes")
        decode.safe(room, "it was refused before the first byte")
    asked, given = drawn(9, prefill)
    prefill.tell(given)  # first: nothing has to be held then
    prefill.until("its sender is open", lambda counters: counters["rooms_open"] == 1)
    second.tell(asked)
    ends_well(prefill, second, 9)
    for room in range(1, held + 1):
        prefill.tell(pairs[room][1])
        ends_well(prefill, decode, room)
    third = stage.worker("decode", address, "third decode")
    third.tell(receive(1))
    _names(third.failed(1, ("peer failed",), NOTICED), "max_peers")
    third.safe(1, "it was refused before the first byte")
    second.quit()
    prefill.until("the second decode is gone", lambda counters: counters["peers"] == 1, NOTICED)
    good_room(prefill, third)
    good_room(prefill, decode)
    for process in (third, decode, prefill):
        process.quit()


def _names(line: Line, setting: str) -> None:
    if setting not in line["reason"]:
        raise Failed(f"the reason doesn't name {setting}: {line}")


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
        decode.safe(room, "it was refused before the first byte")
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
    slow = SLOW | _never_ending(earlier=1) | {"advertise_address": near}
    prefill = stage.worker("prefill", address, prefix=network.prefix(0), **(slow | common))
    decode = stage.worker("decode", address, prefix=network.prefix(1), **({"advertise_address": far} | common))
    good_room(prefill, decode)
    decode.tell(receive(2, first=500, count=4))
    _reach_middle(prefill, decode, 1)
    since = network.cut()
    lines = [side.failed(room, ("peer gone",), NOTICED) for side, room in ((decode, 1), (decode, 2), (prefill, 1))]
    slowest = max((line["ended_ns"] - since) / 1e9 for line in lines)
    for room in (1, 2):
        decode.safe(room, "its inbox can be closed")
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
    worst = 0.0
    for room in range(1, times + 1):
        prefill = stage.worker("prefill", address, "prefill", **(SLOW | _never_ending(earlier=0)))
        _reach_middle(prefill, decode, room)
        since = prefill.signal(signal.SIGKILL)
        line = decode.failed(room, ("peer gone",), NOTICED)
        worst = max(worst, (line["ended_ns"] - since) / 1e9)
        decode.safe(room, "its writer is dead")
        prefill.reap()
    prefill = stage.worker("prefill", address, "prefill")
    good_room(prefill, decode)
    prefill.quit()
    decode.quit()
    return f"{times} kills; Failed after {worst:.3f} s at worst"


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
    "budget": _budget,
    "kills in mid-write": _kills_in_mid_write,
}

# Fifty new processes take a while; over shared memory one kill shows as much.
TCP_ONLY = ["kills in mid-write"]

# Somebody loses a peer.
LOSING = [
    *(name for name in CASES if name.startswith(("KILL", "STOP"))),
    "prefill restarts",
    "network cut",
    "kills in mid-write",
]

# For other builds: each kind of fault once.
SIX = ["KILL prefill during", "KILL decode during", "STOP prefill during", "bootstrap restarts", "descriptors", "budget"]
