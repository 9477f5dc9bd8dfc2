"""The processes of one scene: stock and kvferry workers and bootstrap servers, driven by JSON lines."""

import ctypes
import itertools
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import requests

Line = dict[str, Any]

START = 60.0  # seconds for a process to say that it is ready
HERE = pathlib.Path(__file__).resolve().parent
_PR_SET_PDEATHSIG = 1
_numbers = itertools.count(1)


class Failed(Exception):
    """Something didn't happen as it should; the text goes into the table."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class Place:
    """Where everything lies."""

    build: pathlib.Path

    @property
    def packages(self) -> pathlib.Path:
        return self.build / "interop"

    @property
    def old_build(self) -> pathlib.Path:
        """kvferry, built against the system's UCX."""
        return self.packages / "system"

    @property
    def python(self) -> str:
        return str(self.packages / "environment" / "bin" / "python")

    @property
    def logs(self) -> pathlib.Path:
        return self.packages / "logs"


class Process:
    """A child whose standard output is JSON lines. All its answers are kept."""

    def __init__(self, place: Place, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.log = place.logs / f"{next(_numbers):04d}-{name.replace(' ', '-')}.log"
        base = {key: value for key, value in os.environ.items() if not key.startswith(("UCX_", "KVFERRY_", "NIXL_"))}
        with self.log.open("w") as log:
            log.write(f"{' '.join(command)}\n{environment}\n")
            log.flush()
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=base | environment,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._child.pid
        self.answers: list[Line] = []
        self._changed = threading.Condition()
        self._ended = False
        self._read_to = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout
        for text in self._child.stdout:
            try:
                answer = json.loads(text)
            except ValueError:
                answer = {"text": text.strip()}
            with self._changed:
                self.answers.append(answer)
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
            raise Failed(f"{self.name} is gone: {self._last_words()}") from error

    def tell_text(self, text: str | None, line: Line) -> None:
        """Plain text where it is given, else a line of JSON."""
        if text is None:
            self.tell(line)
            return
        assert self._child.stdin
        self._child.stdin.write(text + "\n")
        self._child.stdin.flush()

    def await_answer(self, what: str, found: Callable[[Line], bool], seconds: float) -> Line:
        """The first answer, old or new, for which `found` holds."""
        deadline = time.monotonic() + seconds
        position = 0
        with self._changed:
            while True:
                while position < len(self.answers):
                    if found(self.answers[position]):
                        return self.answers[position]
                    position += 1
                if self._ended:
                    raise Failed(f"{self.name} ended, {what} still missing: {self._last_words()}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Failed(f"{self.name}: no {what} within {seconds:g} s")
                self._changed.wait(left)

    def await_rooms(self, rooms: Iterable[int], seconds: float) -> dict[int, Line]:
        """How each of these rooms ended; Failed when one doesn't in time."""
        missing = set(rooms)
        outcomes: dict[int, Line] = {}
        total = len(missing)

        def last_found(answer: Line) -> bool:
            number = answer.get("room")
            if number in missing and "state" in answer:
                missing.discard(number)
                outcomes[number] = answer
            return not missing

        if missing:
            self.await_answer(f"end of {total} rooms", last_found, seconds)
        return outcomes

    def complaints(self) -> list[str]:
        """What a stock worker says when a part of it has died."""
        with self._changed:
            return [str(answer) for answer in self.answers if "died" in answer or "thread_died" in answer]

    def _last_words(self) -> str:
        said = [str(answer) for answer in self.answers if "died" in answer or "error" in answer]
        tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        return "; ".join(said[-1:] + tail)

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def signal(self, number: int) -> None:
        self._child.send_signal(number)

    def stop(self) -> int:
        """Ends the process, politely first. Returns its exit status, negative for a signal."""
        if self.running:
            try:
                self.tell({"quit": True})
                assert self._child.stdin
                self._child.stdin.close()
            except (Failed, OSError):
                pass
            try:
                return self._child.wait(5)
            except subprocess.TimeoutExpired:
                self._child.kill()
        return self._child.wait(10)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(10)


@dataclass(frozen=True)
class Layout:
    """The pool of a worker and where the worker stands among its ranks."""

    buffers: int = 4
    pages: int = 4096
    item_length: int = 2048
    aux: int = 5
    aux_slots: int = 1024
    rank: int = 0
    tp: int = 1
    dp: int = 1
    mla: bool = False

    def options(self) -> list[str]:
        row = {
            "buffers": self.buffers,
            "pages": self.pages,
            "item-len": self.item_length,
            "aux": self.aux,
            "aux-slots": self.aux_slots,
            "rank": self.rank,
            "tp": self.tp,
            "dp": self.dp,
            "device": self.rank,
        }
        options = [word for name, value in row.items() for word in (f"--{name}", str(value))]
        return options + (["--mla"] if self.mla else [])


@dataclass
class Scene:
    """Starts processes and sees to it that all of them are gone at the end."""

    place: Place
    profile: str  # "0.4.7" or "0.4.7.post1"
    transport: str | None  # UCX_TLS, or None for all
    nixl: str = "0.3.1"
    old_build: bool = False  # kvferry as built against the system's UCX
    ucx: pathlib.Path | None = None  # libraries that kvferry is to run on instead of those it was built with
    processes: list[Process] = field(default_factory=list)

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.running:
                process.kill()

    def check_complaints(self) -> None:
        for process in self.processes:
            for complaint in process.complaints():
                raise Failed(f"{process.name}: {complaint}")

    def _environment(self) -> dict[str, str]:
        return {} if self.transport is None else {"UCX_TLS": self.transport}

    def _keep(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    def _stock(self, name: str, arguments: list[str], **environment: str) -> Process:
        packages = self.place.packages
        path = [HERE / "standins", packages / f"sglang-{self.profile}" / "lib", packages / f"nixl-{self.nixl}" / "lib"]
        environment = self._environment() | {"PYTHONPATH": ":".join(map(str, path))} | environment
        command = [self.place.python, str(HERE / "stock_worker.py"), *arguments]
        return self._keep(Process(self.place, name, command, environment))

    def _kvferry(self, name: str, arguments: list[str], **environment: str) -> Process:
        environment = self._environment() | environment
        if self.ucx:
            environment["LD_LIBRARY_PATH"] = str(self.ucx)
        folder = self.place.old_build if self.old_build else self.place.build
        return self._keep(Process(self.place, name, [str(folder / "kvferry"), *arguments], environment))

    def bootstrap(self, kind: str, port: int = 0) -> "Server":
        if kind == "stock":
            process = self._stock("stock bootstrap", ["bootstrap"], INTEROP_LISTEN_PORT=str(port))
            answer = process.await_answer("port", lambda line: "port" in line, START)
            return Server(kind, process, answer["port"])
        process = self._kvferry("kvferry bootstrap", ["bootstrap", "--listen", f"127.0.0.1:{port}"])
        answer = process.await_answer("port", lambda line: "127.0.0.1:" in str(line.get("text", "")), START)
        return Server(kind, process, int(answer["text"].rpartition("127.0.0.1:")[2].split()[0]))

    def worker(
        self, kind: str, role: str, server: "Server", layout: Layout, *more: str, port: int = 0, **settings: str
    ) -> Process:
        """Starts a worker; `ready` waits for it."""
        arguments = [role, *layout.options(), "--bootstrap", server.address, *more]
        name = f"{kind} {role} {layout.rank}"
        if kind == "stock":
            return self._stock(name, arguments, **({"INTEROP_RANK_PORT": str(port)} if port else {}))
        settings = {"profile": f"sglang-{self.profile}", "advertise_address": "127.0.0.1"} | settings
        if port:
            settings["control_port"] = str(port)
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        return self._kvferry(name, arguments)

    def start(self, name: str, command: list[str], **environment: str) -> Process:
        return self._keep(Process(self.place, name, command, self._environment() | environment))

    def hostile(self) -> Process:
        """A prefill rank that sends notifications of every kind."""
        packages = self.place.packages
        environment = self._environment() | {"PYTHONPATH": f"{HERE / 'standins'}:{packages / f'nixl-{self.nixl}' / 'lib'}"}
        command = [self.place.python, str(HERE / "hostile_prefill.py")]
        return self._keep(Process(self.place, "hostile prefill", command, environment))

    @staticmethod
    def ready(*processes: Process) -> None:
        for process in processes:
            process.await_answer("readiness", lambda line: line.get("ready") is True, START)


@dataclass
class Server:
    """A bootstrap server that runs."""

    kind: str
    process: Process
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def await_port(self, prefill: Process, seconds: float = 20) -> None:
        """Waits until the row of rank 0 names this prefill's port, so that a restarted one isn't taken for the old."""
        wanted = next(answer["port"] for answer in prefill.answers if answer.get("ready"))
        deadline = time.monotonic() + seconds
        while True:
            answer = requests.get(
                f"http://{self.address}/route", params={"engine_rank": 0, "target_dp_group": 0}, timeout=5
            )
            if answer.status_code == 200 and answer.json()["rank_port"] == wanted:
                return
            if time.monotonic() > deadline:
                raise Failed(f"{prefill.name} didn't register its new port at the {self.kind} bootstrap server")
            time.sleep(0.02)

    def await_ranks(self, wanted: Iterable[tuple[int, int]], seconds: float = 20) -> None:
        """Waits until each (dp group, rank in the group) has a row: a stock decode asks once and never again."""
        deadline = time.monotonic() + seconds
        for group, rank in wanted:
            while True:
                answer = requests.get(
                    f"http://{self.address}/route",
                    params={"engine_rank": rank, "target_dp_group": group},
                    timeout=5,
                )
                if answer.status_code == 200:
                    break
                if time.monotonic() > deadline:
                    raise Failed(f"rank {rank} of group {group} never registered at the {self.kind} bootstrap server")
                time.sleep(0.02)
