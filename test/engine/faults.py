"""Faults under real schedulers: what the surviving side says, within what time, and that it goes on serving.

Requests are posted to both servers directly, with a room of the test's own, so that each side's own answer is seen: the
balancer waits for both. Beside it, what the stock backend does, watched for a bounded time.
"""

import itertools
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import client
import model
import requests
import rows
from client import Answer
from processes import Failed, family, wait_for
from prompts import prompts
from servers import BOOTSTRAP_PORT, PAGE_16, Scene, Server

DEADLINE = 5.0  # seconds; what the settings below say
SLACK = 1.0  # for HTTP and a scheduler's turn on two busy cores
STOCK_BOUND = 15.0  # how long the stock backend is watched
SETTLED = 1.5  # after a writer was stopped, until what it had posted lies there and is in the report
LATER = 5.0  # a server must still live this long after a fault
DEADLINES = {f"KVFERRY_{name}_TIMEOUT": f"{DEADLINE:g}s" for name in ("BOOTSTRAP", "WAITING", "HOLD", "FENCE")}
STALL = {"KVFERRY_FAULT": "transfer_stall=8"}  # the 8th chunk of the first room stays away
FREQUENT = {"KVFERRY_SGLANG_REPORT_INTERVAL": "2ms"}
FAILURE_PROBABILITY = {"DISAGGREGATION_TEST_FAILURE_PROB": "0.02"}
REQUESTS = 200
PROMPT = prompts()[-1]  # the longest: 2,000 tokens in 16 chunks

_rooms = itertools.count(random.Random(5).randrange(1 << 40))


@dataclass
class Outcome:
    name: str
    good: bool
    text: str
    seconds: float


@dataclass
class Ended:
    """How a request ended at one server."""

    text: str
    at: float
    answer: dict[str, Any] | None = None


def _post(server: Server, body: dict[str, Any], seconds: float) -> Ended:
    try:
        answer = requests.post(f"{server.url}/generate", json=body, timeout=seconds).json()
    except requests.Timeout:
        return Ended("no answer", time.monotonic())
    except (requests.RequestException, ValueError) as error:
        return Ended(f"connection lost: {type(error).__name__}", time.monotonic())
    return Ended(client.failure(answer) or "", time.monotonic(), answer)


class Both:
    """One request at both servers of a scene."""

    def __init__(
        self, scene: Scene, prompt: Sequence[int], bootstrap_port: int = BOOTSTRAP_PORT, seconds: float = 30
    ) -> None:
        body = client.body(prompt) | {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": bootstrap_port,
            "bootstrap_room": next(_rooms),
        }
        self._pool = ThreadPoolExecutor(2)
        self._futures: dict[str, Future[Ended]] = {
            role: self._pool.submit(_post, scene.running[role], body, seconds) for role in ("decode", "prefill")
        }

    def ended(self, role: str) -> Ended:
        return self._futures[role].result()

    def done(self, role: str) -> bool:
        return self._futures[role].done()


def _landed(server: Server) -> int:
    """Chunks whose notification a kvferry decode has counted."""
    return server.report()["statistics"]["notifications_received"]


def _check_failure(ended: Ended, server: Server, since: float) -> str:
    seconds = ended.at - since
    if "kvferry:" not in ended.text:
        raise Failed(f"{server.name} answered without kvferry's reason: {ended.text or ended.answer}")
    if seconds > DEADLINE + SLACK:
        raise Failed(f"{server.name} answered after {seconds:.1f} s: {ended.text}")
    reason = ended.text.rpartition("kvferry:")[2].strip()
    return f"{server.name} said after {seconds:.2f} s: {reason}"


def _check_goes_on(server: Server, since: float) -> None:
    server.await_idle()
    wait_for("five seconds to pass", lambda: time.monotonic() - since > LATER, LATER + 1)
    if not server.running:
        raise Failed(f"{server.name} has died: {server.last_words()}")


def _check_right(scene: Scene, reference: list[Answer], first: bool) -> None:
    """16 right answers behind the balancer."""
    for answer, expected in zip(
        client.ask_together(scene.running["balancer"].url, prompts(), 4), reference, strict=True
    ):
        difference = client.difference(answer, expected, first)
        if difference > rows.TOLERANCE:
            raise Failed(f"afterwards an answer was wrong, by {difference:g}: {answer}, expected {expected}")


class Survivor:
    """One pair in which kvferry stands on the side that is to survive."""

    def __init__(self, scene: Scene, prefill: str, decode: str, reference: list[Answer]) -> None:
        self.scene = scene
        self.kinds = {"prefill": prefill, "decode": decode}
        self.reference = reference
        self.environments = {
            role: DEADLINES | FREQUENT if kind == "kvferry" else {} for role, kind in self.kinds.items()
        }

    @property
    def name(self) -> str:
        return f"{self.kinds['prefill']} -> {self.kinds['decode']}"

    def bring(self) -> tuple[Server, Server]:
        """Both servers; a new prefill server of kvferry's will stall once. Out of the cache a prompt that was asked
        before would come in one chunk."""
        stall = STALL if self.kinds["prefill"] == "kvferry" else {}
        of_prefill = self.environments["prefill"] | stall
        self.scene.bring_pair(
            self.kinds["prefill"], self.kinds["decode"], PAGE_16, of_prefill, self.environments["decode"]
        )
        self.scene.running["prefill"].flush_cache()
        return self.scene.running["prefill"], self.scene.running["decode"]

    def check_right(self) -> None:
        _check_right(self.scene, self.reference, first=self.kinds["prefill"] == "kvferry")

    def afterwards(self, role: str) -> None:
        """The one that was killed starts again, on the same ports, and all is well."""
        self.scene.begin(role, self.kinds[role], PAGE_16, self.environments[role]).await_start()
        self.check_right()
        for server in (self.scene.running["prefill"], self.scene.running["decode"]):
            server.await_idle()

    def decode_killed(self) -> str:
        """A stalled chunk keeps the room open, so that the kill falls into its transfer."""
        prefill, decode = self.bring()
        request = Both(self.scene, PROMPT)
        chunks = PAGE_16.chunks(len(PROMPT))
        wait_for("all chunks to be sent but one to stall", lambda: prefill.report()["chunks"] == chunks, 20)
        total = PAGE_16.pages(len(PROMPT)) * model.bytes_of_a_page(PAGE_16.page_size)
        written = prefill.report()["statistics"]["bytes_written"]
        if not 0 < written < total:
            raise Failed(f"{written} of {total} bytes were written: not in mid-transfer")
        since = time.monotonic()
        decode.stop()
        said = _check_failure(request.ended("prefill"), prefill, since)
        _check_goes_on(prefill, since)
        self.afterwards("decode")
        return f"{written} of {total} bytes were written; {said}"

    def prefill_killed(self) -> str:
        """Stopped half-way, then killed. Of a stock prefill's chunks none need have been counted: stopped at its third
        it was seen to have notified of none."""
        prefill, decode = self.bring()
        already = _landed(decode)
        pids = family(prefill.scheduler)
        prefill.mark_log()
        request = Both(self.scene, PROMPT)
        chunks = PAGE_16.chunks(len(PROMPT))
        wait_for("half of the chunks", lambda: prefill.said().count("Prefill batch") >= chunks // 2, 20, 0.001)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        since = time.monotonic()
        wait_for("what was under way to land", lambda: time.monotonic() - since > SETTLED, 5)
        landed = _landed(decode) - already
        least = 1 if prefill.kind == "kvferry" else 0
        if not least <= landed < chunks:
            raise Failed(f"{landed} of {chunks} chunks were notified of: not in mid-transfer")
        prefill.stop()
        said = _check_failure(request.ended("decode"), decode, since)
        _check_goes_on(decode, since)
        self.afterwards("prefill")
        return f"{landed} of {chunks} chunks were notified of; {said}"

    def bootstrap_silent(self) -> str:
        """A port that accepts and says nothing."""
        self.bring()
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            since = time.monotonic()
            request = Both(self.scene, PROMPT, bootstrap_port=silent.getsockname()[1])
            said = [
                _check_failure(request.ended(role), self.scene.running[role], since)
                for role, kind in self.kinds.items()
                if kind == "kvferry"
            ]
            for role, kind in self.kinds.items():
                if kind == "kvferry":
                    _check_goes_on(self.scene.running[role], since)
        self.check_right()
        return "; ".join(said)


def _at_random(scene: Scene, reference: list[Answer]) -> str:
    """SGLang's own switch fails rooms at both sides: each request is right or fails with a reason."""
    both = DEADLINES | FAILURE_PROBABILITY
    scene.bring_pair("kvferry", "kvferry", PAGE_16, both, both)
    short = [number for number in range(len(prompts())) if len(prompts()[number]) <= 300]
    numbers = [short[index % len(short)] for index in range(REQUESTS)]
    since = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(lambda number: _both_ended(scene, number), numbers))
    counts: Counter[str] = Counter()
    for number, (prefill, decode) in zip(numbers, ended, strict=True):
        for side in (prefill, decode):
            if side.text and "with exception" not in side.text:
                raise Failed(f"a request failed without a reason: {side.text}")
        if decode.answer and not decode.text:
            difference = client.difference(client.read(decode.answer), reference[number], first=True)
            if difference > rows.TOLERANCE:
                raise Failed(f"an answer was wrong, by {difference:g}: {decode.answer}")
        counts["right" if not decode.text else "failed"] += 1
        counts["failed on prefill"] += bool(prefill.text)
    if not counts["right"] or not counts["failed"]:
        raise Failed(f"nothing was shown: {dict(counts)}")
    for server in (scene.running["prefill"], scene.running["decode"]):
        _check_goes_on(server, since)
    return f"of {REQUESTS} requests {counts['right']} were right, {counts['failed']} failed with a reason on decode"


def _both_ended(scene: Scene, number: int) -> tuple[Ended, Ended]:
    request = Both(scene, prompts()[number])
    return request.ended("prefill"), request.ended("decode")


class Stock:
    """The same faults where both sides are stock. Nothing is demanded, only told. Each has servers of its own: those
    of the one before may be stuck."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def _bring(self) -> None:
        for role in ("prefill", "decode"):
            self.scene.stop(role)
        self.scene.bring_pair("stock", "stock", PAGE_16)

    def _in_transfer(self) -> Both:
        """A request of which the prefill server has begun to compute the chunks."""
        self._bring()
        prefill = self.scene.running["prefill"]
        prefill.mark_log()
        request = Both(self.scene, PROMPT)
        wait_for("the first chunk", lambda: "Prefill batch" in prefill.said(), 20, 0.001)
        return request

    def _watch(self, role: str, request: Both) -> str:
        server = self.scene.running[role]
        since = time.monotonic()
        while time.monotonic() - since < STOCK_BOUND and not request.done(role) and server.running:
            time.sleep(0.1)  # a bounded watch: there is nothing that must come
        seconds = time.monotonic() - since
        if not server.running:
            return f"{server.name}'s scheduler died after {seconds:.1f} s"
        if request.done(role):
            return f"{server.name} answered after {seconds:.1f} s: {request.ended(role).text or 'as if all were well'}"
        return f"{server.name} had not answered after {seconds:.0f} s"

    def decode_killed(self) -> str:
        request = self._in_transfer()
        self.scene.stop("decode")
        return self._watch("prefill", request)

    def prefill_killed(self) -> str:
        request = self._in_transfer()
        self.scene.stop("prefill")
        return self._watch("decode", request)

    def bootstrap_silent(self) -> str:
        self._bring()
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            said = self._watch("decode", Both(self.scene, PROMPT, bootstrap_port=silent.getsockname()[1]))
            ended = Both(self.scene, PROMPT, seconds=STOCK_BOUND).ended("decode")
        return f"{said}; another request there meanwhile: {ended.text or 'answered'}"


def _trials(scene: Scene, reference: list[Answer]) -> Iterator[tuple[str, Callable[[], str]]]:
    """In an order in which most servers serve several trials."""
    both = Survivor(scene, "kvferry", "kvferry", reference)
    decode = Survivor(scene, "stock", "kvferry", reference)
    prefill = Survivor(scene, "kvferry", "stock", reference)
    stock = Stock(scene)
    yield f"decode killed  {both.name}", both.decode_killed
    yield f"bootstrap silent  {both.name}", both.bootstrap_silent
    yield f"prefill killed  {both.name}", both.prefill_killed
    yield f"prefill killed  {decode.name}", decode.prefill_killed
    yield f"bootstrap silent  {decode.name}", decode.bootstrap_silent
    yield f"decode killed  {prefill.name}", prefill.decode_killed
    yield f"failed at random  {both.name}", lambda: _at_random(scene, reference)
    yield "bootstrap silent  stock -> stock", stock.bootstrap_silent
    yield "decode killed  stock -> stock", stock.decode_killed
    yield "prefill killed  stock -> stock", stock.prefill_killed


def run(scene: Scene, reference: list[Answer], only: str) -> Iterator[Outcome]:
    for name, trial in _trials(scene, reference):
        if only not in name:
            continue
        began = time.monotonic()
        try:
            good, text = True, trial()
        except Failed as failure:
            good, text = False, str(failure)
            for role in ("prefill", "decode"):  # in whatever state it left them
                scene.stop(role)
        yield Outcome(name, good, text, time.monotonic() - began)
