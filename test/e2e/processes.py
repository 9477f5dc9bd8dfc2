"""Real kvferry processes, driven by JSON lines. Whatever happens, none of them outlives the test."""

import contextlib
import ctypes
import itertools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Line = dict[str, Any]

START = 60.0  # seconds for a process to say that it is ready; sanitizers are slow
ANSWER = 30.0
TRANSPORTS = {"shm": "posix,sysv,cma,self", "tcp": "tcp,self"}
POOL = {"buffers": 4, "pages": 1024, "item-len": 4096, "aux-slots": 64, "aux-item-len": 64}
PAGE_BYTES = POOL["buffers"] * POOL["item-len"]

# Short, so that a run is; docs/failures.md has the defaults, and how long they take.
SETTINGS = {
    "advertise_address": "127.0.0.1",
    "heartbeat_interval": "200ms",
    "heartbeat_timeout": "1s",
    "bootstrap_timeout": "20s",
    "waiting_timeout": "20s",
    "fence_timeout": "2s",
    "registration_check": "100ms",
    "log_level": "error",
}
NOTICED = 4.0  # seconds within which a lost peer is noticed with these, on a busy machine
SETTLED = 4.0  # seconds within which a failed room's pages are settled
COMPLAINTS = ("Sanitizer", "runtime error")  # in the standard error of any process: a finding

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Failed(Exception):
    """Something didn't happen as it should."""


def _prepare_child() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Process:
    """A child whose standard output is lines. All of them are kept."""

    def __init__(self, name: str, command: list[str], log: pathlib.Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        self.seed = 0  # of a prefill's bytes
        self.decodes = False  # it looks at what it gets
        self.lines: list[Line] = []
        self._ended = False
        self._changed = threading.Condition()
        with log.open("ab") as stream:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=environment,
                preexec_fn=_prepare_child,
            )
        self.pid = self._child.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout
        for text in self._child.stdout:
            line = json.loads(text) if text.startswith("{") else {"text": text.strip()}
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def tell(self, *lines: Line) -> None:
        assert self._child.stdin
        try:
            self._child.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
            self._child.stdin.flush()
        except OSError as error:
            raise Failed(f"{self.name} is gone: {self.last_words()}") from error

    def wait_for(self, what: str, found: Callable[[Line], bool], seconds: float = ANSWER, start: int = 0) -> Line:
        """The first line from the `start`-th on for which `found` holds."""
        deadline = time.monotonic() + seconds
        position = start
        with self._changed:
            while True:
                while position < len(self.lines):
                    if found(self.lines[position]):
                        return self.lines[position]
                    position += 1
                left = deadline - time.monotonic()
                if self._ended:
                    raise Failed(f"{self.name} ended; {what} is missing: {self.last_words()}")
                if left <= 0:
                    raise Failed(f"{self.name}: no {what} within {seconds:g} s; last: {self.lines[-1:]}")
                self._changed.wait(left)

    def room(self, room: int, seconds: float = ANSWER) -> Line:
        """How the room ended."""
        return self.wait_for(f"end of room {room}", lambda line: line.get("room") == room and "state" in line, seconds)

    def succeeded(self, room: int, seconds: float = ANSWER) -> Line:
        line = self.room(room, seconds)
        if line["state"] != "success" or line["verified"] is not (True if self.decodes else None):
            raise Failed(f"{self.name}: room {room} should have succeeded: {line}")
        return line

    def failed(self, room: int, statuses: tuple[str, ...], seconds: float = ANSWER) -> Line:
        line = self.room(room, seconds)
        if line["state"] != "failed" or line["status"] not in statuses or not line["reason"]:
            raise Failed(f"{self.name}: room {room} should have failed with one of {statuses}: {line}")
        return line

    def settled(self, room: int, seconds: float = SETTLED) -> Line:
        """The line that says that the pages of a room are not in use any more: its first or its second one."""
        line = self.wait_for(
            f"settling of room {room}",
            lambda line: line.get("room") == room and line.get("safety", "in use") != "in use",
            seconds,
        )
        if (line["safety"] == "safe") != (line["proof"] != "none"):
            raise Failed(f"{self.name}: {line} is safe without a proof, or proven without being safe")
        return line

    def safe(self, room: int, why: str) -> None:
        """The pages of the room are proven safe."""
        line = self.settled(room)
        if line["safety"] != "safe":
            raise Failed(f"{self.name}: room {room} has no proof, although {why}: {line}")

    def statistics(self, seconds: float = ANSWER) -> Line:
        start = len(self.lines)
        self.tell({"statistics": True})
        return self.wait_for("statistics", lambda line: "statistics" in line, seconds, start)["statistics"]

    def until(self, what: str, holds: Callable[[Line], bool], seconds: float = ANSWER) -> Line:
        """Asks for the counters until they are as wanted."""
        deadline = time.monotonic() + seconds
        while not holds(counters := self.statistics()):
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: never {what}: {counters}")
        return counters

    def last_words(self) -> str:
        return "; ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])

    def signal(self, number: int) -> int:
        """Sends a signal; returns when, on the clock of `ended_ns`."""
        when = time.monotonic_ns()
        os.kill(self.pid, number)
        return when

    def quit(self) -> None:
        """It must end by itself, neither by a signal nor with a sanitizer's complaint."""
        self.tell({"quit": True})
        assert self._child.stdin
        self._child.stdin.close()
        try:
            status = self._child.wait(ANSWER)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.name} doesn't quit") from error
        if status not in (0, 1):  # 1: a room has failed, as it should have
            raise Failed(f"{self.name} ended with {status}: {self.last_words()}")

    def reap(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._child.poll() is None:
                os.kill(self.pid, signal.SIGKILL)  # ends stopped ones, too
        self._child.wait(ANSWER)
        self._reader.join(ANSWER)
        for stream in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                assert stream
                stream.close()

    @property
    def running(self) -> bool:
        return self._child.poll() is None


def ucx_version(build: pathlib.Path) -> tuple[int, int]:
    words = subprocess.run([build / "kvferry", "--version"], capture_output=True, text=True, check=True).stdout.split()
    major, minor, *_ = words[words.index("UCX") + 1].split(".")
    return int(major), int(minor)


class Stage:
    """Starts processes and sees to it that all of them are gone at the end."""

    def __init__(self, build: pathlib.Path, transport: str, under: list[str]) -> None:
        self.build = build
        self.ucx = ucx_version(build)
        self.tool = [*under, str(build / "kvferry")]
        self.slow = bool(under)
        self.transport = transport
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvferry-e2e-"))
        self.processes: list[Process] = []
        self._ports: dict[str, int] = {}
        self._seeds: dict[str, int] = {}

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        for process in self.processes:
            process.reap()
        logs = {process.name: process.log.read_text(errors="replace") for process in self.processes}
        shutil.rmtree(self.folder)
        for name, text in logs.items():
            if any(complaint in text for complaint in COMPLAINTS):
                raise Failed(f"{name} was complained of: {text[-4000:]}") from exception

    def tell_state(self) -> None:
        """What each worker that still answers counts, and its last rooms: for whoever looks for why a case failed."""
        for process in self.processes:
            with contextlib.suppress(Failed):
                if process.running and process.lines and process.lines[0].get("ready"):
                    counters = process.statistics(seconds=2)
                    print(f"{process.name}: {counters}, {[line for line in process.lines if 'room' in line][-3:]}", flush=True)

    def start(self, name: str, command: list[str]) -> Process:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("UCX_", "KVFERRY_"))}
        environment |= {"UCX_KEEPALIVE_INTERVAL": "1s", "UCX_LOG_LEVEL": "fatal"}
        for options in ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):  # else 1, as for a failed room
            environment[options] = ":".join(filter(None, (environment.get(options), "exitcode=99")))
        process = Process(name, command, self.folder / f"{name}.log", environment)
        self.processes.append(process)
        return process

    def bootstrap(self, name: str = "bootstrap", host: str = "127.0.0.1", prefix: tuple[str, ...] = ()) -> str:
        """Starts one, on the port one of this name had before. Returns its address."""
        port = self._ports.get(name, 0)
        process = self.start(name, [*prefix, *self.tool, "bootstrap", "--listen", f"{host}:{port}"])
        line = process.wait_for("address", lambda line: "listening" in line.get("text", ""), START)
        self._ports[name] = int(line["text"].rpartition(":")[2])
        return line["text"].rpartition(" ")[2]

    def worker(self, role: str, bootstrap: str, name: str = "", prefix: tuple[str, ...] = (), **settings: str) -> Process:
        """Starts one, on the control port that one of this name had before, and waits until it is ready."""
        name = name or role
        command = [*prefix, *self.tool, role, "--bootstrap", bootstrap]
        for key, value in POOL.items():
            command += [f"--{key}", str(value)]
        seed = self._seeds.setdefault(name, 2 + len(self._seeds))  # 1 is everybody's
        if role == "prefill":
            command += ["--seed", str(seed)]
        values = SETTINGS | {"transports": TRANSPORTS[self.transport]} | settings
        if name in self._ports:
            values["control_port"] = str(self._ports[name])
        for key, value in values.items():
            command += ["--set", f"{key}={value}"]
        process = self.start(name, command)
        process.seed = seed
        process.decodes = role == "decode"
        line = process.wait_for("readiness", lambda line: line.get("ready") is True, START)
        self._ports[name] = line["port"]
        return process

    def named(self, name: str) -> Process:
        """The latest process of this name."""
        return next(process for process in reversed(self.processes) if process.name == name)


def send(room: int, first: int = 0, count: int = 64, **more: Any) -> Line:
    return {"room": room, "pages": {"range": [first, count]}} | more


def receive(room: int, first: int = 0, count: int = 64, source: int = 0, **more: Any) -> Line:
    return {
        "room": room,
        "pages": {"range": [first, count]},
        "source_pages": {"range": [source, count]},
    } | more


FIRST_GOOD = 1000  # rooms from here on are good ones; the cases number those that they break from 1 on
_rooms = itertools.count(FIRST_GOOD)
SMALL = 64  # pages of a good room


def drawn(room: int, prefill: Process, count: int = SMALL, **more: Any) -> tuple[Line, Line]:
    """The decode's and the prefill's line for a room whose bytes are to be looked at. Its places and the prefill's
    seed see to it that no page and no aux slot holds from an earlier room what it is to be given now. Good rooms
    and those of SMALL pages lie above all others, so they never meet the pages of a room that is broken."""
    source = room * 37 % (POOL["pages"] - count + 1)
    above = 512 if room >= FIRST_GOOD or count == SMALL else 0
    first = above + SMALL * (room % 8) if count == SMALL else above
    slots = {"aux_slot": 1 + room % 63, "source_aux_slot": room * 5 % 61}
    asked = receive(room, first, count, source, source_seed=prefill.seed, **slots)
    given = {key: more.pop(key) for key in ("chunks",) if key in more}
    return asked | more, send(room, source, count, aux_slot=slots["source_aux_slot"]) | given


def begin(prefill: Process, decode: Process, count: int = SMALL, **more: Any) -> int:
    """Opens both sides of a good room."""
    room = next(_rooms)
    asked, given = drawn(room, prefill, count, **more)
    decode.tell(asked)
    prefill.tell(given)
    return room


def ends_well(prefill: Process, decode: Process, room: int, seconds: float = ANSWER, count: int = SMALL) -> Line:
    """Every byte of it has come."""
    line = decode.succeeded(room, seconds)
    for side in (line, prefill.succeeded(room, seconds)):
        if side["bytes"] != count * PAGE_BYTES + POOL["aux-item-len"]:
            raise Failed(f"room {room} has {count} pages and an aux record, which are other bytes: {side}")
    return line


def good_room(prefill: Process, decode: Process, seconds: float = ANSWER, **more: Any) -> None:
    """A room that must succeed, every byte of it."""
    ends_well(prefill, decode, begin(prefill, decode, **more), seconds)


@contextlib.contextmanager
def stopped(process: Process) -> Iterator[int]:
    """The process doesn't run meanwhile. Gives the time since when."""
    when = process.signal(signal.SIGSTOP)
    try:
        yield when
    finally:
        process.signal(signal.SIGCONT)
