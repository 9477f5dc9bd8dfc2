"""The servers of a scene: SGLang's single engine, prefill and decode servers, stock or kvferry, and its balancer."""

import json
import os
import pathlib
import re
import subprocess
from dataclasses import dataclass, field
from typing import Any

import processes
import requests
from processes import Failed, wait_for

START = 420.0  # seconds until a server is up: each of its three processes imports all of torch, on busy cores too
PORTS = {"single": 30000, "prefill": 30001, "decode": 30002, "balancer": 30003}
BOOTSTRAP_PORT = 30998
HERE = pathlib.Path(__file__).resolve().parent


@dataclass(frozen=True)
class Place:
    """Where everything lies."""

    build: pathlib.Path

    @property
    def packages(self) -> pathlib.Path:
        return self.build / "engine"

    @property
    def model(self) -> pathlib.Path:
        return self.packages / "model"

    @property
    def logs(self) -> pathlib.Path:
        return self.packages / "logs"

    @property
    def reports(self) -> pathlib.Path:
        return self.packages / "reports"

    def python(self, kind: str) -> str:
        """kvferry's environment is the stock one with the wheel beside it."""
        return str(self.packages / ("kvferry" if kind == "kvferry" else "environment") / "bin" / "python")


@dataclass(frozen=True)
class Configuration:
    """How both servers of a pair are set."""

    name: str
    page_size: int
    radix_cache: bool
    chunk: int  # tokens; 0: a prompt is one chunk

    def options(self) -> list[str]:
        options = ["--page-size", str(self.page_size), "--chunked-prefill-size", str(self.chunk or -1)]
        return options + ([] if self.radix_cache else ["--disable-radix-cache"])

    def environment(self) -> dict[str, str]:
        # SGLang's allocator for larger pages is a Triton kernel; without a GPU it has to be interpreted.
        return {"TRITON_INTERPRET": "1"} if self.page_size > 1 else {}

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def chunks(self, tokens: int) -> int:
        """Of a prompt that is alone on the server, with nothing cached. SGLang cuts the first of several chunks
        shorter than the others, by all but one token of a page."""
        if not self.chunk or tokens <= self.chunk:
            return 1
        first = self.chunk - self.page_size + 1
        return 1 + -(-(tokens - first) // self.chunk)


PAGE_1 = Configuration("page 1", page_size=1, radix_cache=False, chunk=0)
PAGE_16 = Configuration("page 16", page_size=16, radix_cache=True, chunk=128)
CONFIGURATIONS = (PAGE_1, PAGE_16)

ENVIRONMENT = {
    "PYTHONPATH": str(HERE / "standins"),
    "USE_VLLM_CUSTOM_ALLREDUCE": "true",  # otherwise SGLang wants its CUDA kernels
    "SGLANG_HOST_IP": "127.0.0.1",
    "HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # nothing here is worth compiling; saves a fifth of each start
}


def _plain_environment() -> dict[str, str]:
    """Ours without what would steer a server unseen, or keep it from writing bytecode and so starting fast."""
    steering = ("UCX_", "KVFERRY_", "NIXL_", "SGLANG_", "DISAGGREGATION_", "TRITON_")
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return {key: value for key, value in os.environ.items() if not key.startswith(steering) and key not in dropped}


@dataclass
class Server:
    """A server process with its family."""

    name: str
    role: str
    kind: str
    port: int
    settings: dict[str, str]  # its environment
    command: list[str]
    child: subprocess.Popen[bytes]
    log: pathlib.Path
    reports: pathlib.Path
    pids: list[int] = field(default_factory=list)
    read_from: int = 0  # position in the log; earlier lines aren't looked at
    scheduler_pid: int = 0  # once it was seen

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _check_alive(self) -> None:
        if self.child.poll() is not None:
            raise Failed(f"{self.name} ended with status {self.child.returncode}: {self.last_words()}")

    def remember_family(self) -> None:
        """SGLang's schedulers outlive a killed parent: their pids must be known before."""
        self.pids = sorted(set(self.pids) | set(processes.family(self.child.pid)))

    def await_start(self) -> None:
        marker = b"Uvicorn running on" if self.role == "balancer" else b"The server is fired up and ready to roll"

        def started() -> bool:
            self._check_alive()
            self.remember_family()
            return marker in self.log.read_bytes()

        wait_for(f"start of {self.name}", started, START, 0.25)
        if self.role != "balancer":
            assert self.scheduler

    @property
    def running(self) -> bool:
        """All of it: SGLang's main process may live on for a while after its scheduler has died."""
        return self.child.poll() is None and processes.alive(self.scheduler)

    @property
    def scheduler(self) -> int:
        """Also when it has died since it was first asked for."""
        if self.scheduler_pid:
            return self.scheduler_pid
        for pid in self.pids:
            if processes.title(pid).startswith("sglang::scheduler"):
                self.scheduler_pid = pid
                return pid
        raise Failed(f"{self.name} has no scheduler: {self.last_words()}")

    def load(self) -> int:
        """Requests that SGLang's scheduler still holds."""
        answer = requests.get(f"{self.url}/get_server_info", timeout=10).json()
        states = answer["internal_states"]
        return sum(state["load"] for state in (states if isinstance(states, list) else [states]))

    def await_idle(self, seconds: float = 20) -> None:
        wait_for(f"load 0 at {self.name}", lambda: self.load() == 0, seconds, 0.1)

    def flush_cache(self) -> None:
        wait_for(
            f"{self.name} to flush its cache",
            lambda: requests.post(f"{self.url}/flush_cache", timeout=10).status_code == 200,
            20,
            0.2,
        )

    def mark_log(self) -> None:
        self.read_from = self.log.stat().st_size

    def said(self) -> str:
        """The log since the last mark."""
        with self.log.open("rb") as log:
            log.seek(self.read_from)
            return log.read().decode(errors="replace")

    def cached_tokens(self) -> int:
        """Prompt tokens that SGLang took from its radix cache since the last mark, as its scheduler logs them."""
        return sum(map(int, re.findall(r"#cached-token: (\d+)", self.said())))

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-4:])[-600:]

    def report(self) -> dict[str, Any]:
        """What kvferry's scheduler has written last; docs/sglang.md has the names."""
        path = self.reports / f"report-{self.role}-0-{self.scheduler}.json"
        try:
            return json.loads(path.read_text())
        except OSError as error:
            raise Failed(f"{self.name} wrote no report: {error}") from error

    def stop(self) -> None:
        self.remember_family()
        processes.end(self.pids)
        self.child.wait(10)


class Scene:
    """Starts servers and sees to it that all of them are gone at the end."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.running: dict[str, Server] = {}
        self._number = 0

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *_: object) -> None:
        for role in list(self.running):
            self.stop(role)

    def stop(self, role: str) -> None:
        if server := self.running.pop(role, None):
            server.stop()

    def begin(
        self, role: str, kind: str, configuration: Configuration, environment: dict[str, str] | None = None
    ) -> Server:
        """Starts a server without waiting until it is up; an earlier one of this role is ended first."""
        command, settings = self._launch(role, kind, configuration, environment or {})
        return self._start(role, kind, PORTS[role], command, settings)

    def bring_pair(
        self,
        prefill: str,
        decode: str,
        configuration: Configuration,
        of_prefill: dict[str, str] | None = None,
        of_decode: dict[str, str] | None = None,
    ) -> set[str]:
        """Both servers and the balancer, up. Those that run as wanted are kept; says which roles are new."""
        wanted = {"prefill": (prefill, of_prefill or {}), "decode": (decode, of_decode or {})}
        fresh = {
            role
            for role, (kind, environment) in wanted.items()
            if not self._runs_as(role, kind, configuration, environment)
        }
        if "prefill" in fresh and decode == "stock":
            fresh.add("decode")  # it remembers the old one's port for ever
        for role in fresh:
            self.begin(role, wanted[role][0], configuration, wanted[role][1])
        if "balancer" not in self.running:
            self.begin_balancer()
        for role in ("prefill", "decode", "balancer"):
            self.running[role].await_start()
        return fresh

    def _runs_as(self, role: str, kind: str, configuration: Configuration, environment: dict[str, str]) -> bool:
        server = self.running.get(role)
        launch = self._launch(role, kind, configuration, environment)
        return server is not None and server.running and (server.command, server.settings) == launch

    def _launch(
        self, role: str, kind: str, configuration: Configuration, environment: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Command line and environment."""
        launch = ["-m", "kvferry.sglang", "launch"] if kind == "kvferry" else ["-m", "sglang.launch_server"]
        command = [self.place.python(kind), *launch]
        command += ["--model-path", str(self.place.model), "--device", "cpu", "--dtype", "float32"]
        command += ["--attention-backend", "torch_native", "--host", "127.0.0.1", "--port", str(PORTS[role])]
        command += ["--max-total-tokens", "65536", *configuration.options()]
        if role != "single":
            command += ["--disaggregation-transfer-backend", "nixl", "--disaggregation-mode", role]
        if role == "prefill":
            command += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
        ours = {"KVFERRY_SGLANG_REPORT": str(self.place.reports / "report")} if kind == "kvferry" else {}
        return command, ENVIRONMENT | configuration.environment() | ours | environment

    def begin_balancer(self) -> Server:
        command = [self.place.python("stock"), "-m", "sglang.srt.disaggregation.mini_lb"]
        command += [
            "--prefill",
            f"http://127.0.0.1:{PORTS['prefill']}",
            "--prefill-bootstrap-ports",
            str(BOOTSTRAP_PORT),
        ]
        command += ["--decode", f"http://127.0.0.1:{PORTS['decode']}", "--host", "127.0.0.1"]
        command += ["--port", str(PORTS["balancer"])]
        return self._start("balancer", "stock", PORTS["balancer"], command, ENVIRONMENT)

    def _start(self, role: str, kind: str, port: int, command: list[str], settings: dict[str, str]) -> Server:
        self.stop(role)
        self._number += 1
        name = f"{kind} {role}"
        log = self.place.logs / f"{self._number:03d}-{name.replace(' ', '-')}.log"
        bytecode = {"PYTHONPYCACHEPREFIX": str(self.place.packages / "bytecode")}
        with log.open("w") as file:
            file.write(f"{' '.join(command)}\n{settings}\n")
            file.flush()
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_plain_environment() | bytecode | settings,
            )
        server = Server(name, role, kind, port, settings, command, child, log, self.place.reports, [child.pid])
        self.running[role] = server
        return server
