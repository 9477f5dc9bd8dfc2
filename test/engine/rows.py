"""The table: each pair of servers under each configuration, every answer compared with the single engine's."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import client
import model
import processes
from client import Answer
from processes import Failed, wait_for
from prompts import LENGTHS, prompts
from servers import PAGE_1, Configuration, Scene, Server

# In this order only one side is new each time; the control follows the third, and needs a new prefill server as well.
PAIRS = (("stock", "stock"), ("stock", "kvferry"), ("kvferry", "kvferry"), ("kvferry", "stock"))
CONTROLLED = ("kvferry", "kvferry")
TOLERANCE = 1e-4  # of a log probability; float32 and batches of other sizes differ by some 1e-6
CONTROL = 10 * TOLERANCE
TOGETHER = 8  # rooms that must have been open at once when 16 are asked for
AUX_BYTES = 64 + 64 + 64 + 512 + 512  # of a slot in SGLang's five buffers
FIGURES = ("answers", "worst", "rooms", "at once", "chunks", "most of a room", "bytes", "cached tokens")
CORRUPTION = {"KVFERRY_FAULT": "corrupt_page=all"}


@dataclass
class Row:
    """What was seen of a pair; None where that side can't tell."""

    prefill: str
    decode: str
    configuration: Configuration
    problem: str = ""
    compared: int = 0
    worst: float = 0.0
    rooms: int | None = None
    together: int | None = None
    chunks: int | None = None
    most_chunks: int | None = None
    bytes: int | None = None
    cached_tokens: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.prefill} -> {self.decode}  {self.configuration.name}"

    def figures(self) -> dict[str, str]:
        """Empty where neither side can tell."""
        counts = (self.rooms, self.together, self.chunks, self.most_chunks, self.bytes)
        told = ["" if count is None else str(count) for count in counts]
        return dict(
            zip(FIGURES, [str(self.compared), f"{self.worst:.1e}", *told, str(self.cached_tokens)], strict=True)
        )

    def summary(self) -> str:
        return ", ".join(f"{name} {figure}" for name, figure in self.figures().items() if figure)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


def _require_equal(what: str, seen: object, expected: object) -> None:
    _require(seen == expected, f"{what}: {seen}, expected {expected}")


@dataclass(frozen=True)
class Work:
    """What kvferry's scheduler says it has done; the difference of two is what some requests made it do."""

    rooms: int
    pages: int
    chunks: int  # sent, or received
    bytes: int  # written, on prefill

    def __sub__(self, other: "Work") -> "Work":
        return Work(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))


def _work(server: Server) -> Work:
    """Waits until the report is up to date: no room is open, and its statistics say so too."""

    def settled() -> Work | None:
        report = server.report()
        rooms, statistics = report["rooms"], report["statistics"]
        if rooms["open"] or statistics["rooms_open"] or rooms["succeeded"] != statistics["rooms_succeeded"]:
            return None
        # Each chunk has a notification, and each room one more for its aux record.
        received = statistics["notifications_received"] - rooms["succeeded"]
        chunks = report["chunks"] if server.role == "prefill" else received
        return Work(rooms["succeeded"], report["pages"], chunks, statistics["bytes_written"])

    return wait_for(f"no open room in the report of {server.name}", settled, 10, 0.1)


def _expected(lengths: Sequence[int], server: Server, configuration: Configuration, chunks: int) -> Work:
    pages = sum(map(configuration.pages, lengths))
    total = pages * model.bytes_of_a_page(configuration.page_size) + len(lengths) * AUX_BYTES
    return Work(len(lengths), pages, chunks, total if server.role == "prefill" else 0)


@dataclass
class Trial:
    """A pair that runs, and what is asked of it."""

    scene: Scene
    row: Row
    reference: list[Answer]
    fresh: set[str]  # roles whose servers were started for this row
    asked: list[int] = field(default_factory=list)  # lengths of all prompts so far

    @property
    def url(self) -> str:
        return self.scene.running["balancer"].url

    @property
    def sides(self) -> tuple[Server, Server]:
        return self.scene.running["prefill"], self.scene.running["decode"]

    @property
    def kvferry_sides(self) -> list[Server]:
        return [server for server in self.sides if server.kind == "kvferry"]

    def compare(self, what: str, answers: Sequence[Answer], reference: Sequence[Answer]) -> None:
        moves_all_aux = self.row.prefill == "kvferry"
        for answer, expected in zip(answers, reference, strict=True):
            difference = client.difference(answer, expected, first=moves_all_aux)
            _require(
                difference <= TOLERANCE, f"{what}: log probabilities differ by {difference:g}: {answer}, {expected}"
            )
            self.row.worst = max(self.row.worst, difference)
            self.row.compared += 1

    def ask(
        self, what: str, order: Sequence[int], at_once: int, how: Callable[[str, Sequence[int]], Answer] = client.ask
    ) -> None:
        """Asks these of the prompts, in this order, and compares."""
        asked = [prompts()[number] for number in order]
        self.asked += map(len, asked)
        answers = client.ask_together(self.url, asked, at_once, how)
        self.compare(what, answers, [self.reference[number] for number in order])

    def check_libraries(self) -> None:
        for server in self.sides:
            mapped = processes.libraries(server.scheduler)
            ours = any(name.startswith("libkvferry") for name in mapped)
            theirs = any(name.startswith("libnixl") for name in mapped)
            expected = (True, False) if server.kind == "kvferry" else (False, True)
            _require_equal(f"{server.name} maps libkvferry, libnixl", (ours, theirs), expected)

    def check_one_at_a_time(self, before: list[Work]) -> None:
        """Alone on the servers and with nothing cached, even the number of chunks is known."""
        lengths = self.asked
        chunks = sum(map(self.row.configuration.chunks, lengths))
        for server, work in zip(self.kvferry_sides, before):
            expected = _expected(lengths, server, self.row.configuration, chunks)
            _require_equal(f"{server.name}, asked one at a time", _work(server) - work, expected)
            self.row.most_chunks = max(map(self.row.configuration.chunks, lengths))

    def check_all(self, before: list[Work]) -> None:
        """Requests that run together share the chunks' budget of tokens, so that there may be more of them."""
        for server, work in zip(self.kvferry_sides, before):
            done = _work(server) - work
            _require_equal(server.name, done, _expected(self.asked, server, self.row.configuration, done.chunks))
            _require(done.chunks >= len(self.asked), f"{server.name}: {done.chunks} chunks in {len(self.asked)} rooms")
            self.row.rooms, self.row.chunks = done.rooms, done.chunks
            if server.role in self.fresh:  # it counts since its start
                self.row.together = server.report()["rooms"]["open_most"]
                _require(
                    self.row.together >= TOGETHER, f"{server.name}: at most {self.row.together} rooms were open at once"
                )
            self.row.bytes = done.pages * model.bytes_of_a_page(self.row.configuration.page_size)
            if server.role == "prefill":
                self.row.bytes = done.bytes
        if self.row.configuration.chunk and self.kvferry_sides:
            _require((self.row.most_chunks or 0) >= 2, "no prompt came in more than one chunk")

    def check_cache(self) -> None:
        self.row.cached_tokens = self.sides[0].cached_tokens()
        cached = self.row.cached_tokens > 0
        _require_equal("tokens came from the radix cache", cached, self.row.configuration.radix_cache)

    def run(self) -> None:
        everything = range(len(LENGTHS))
        longest_first = sorted(everything, key=lambda number: -LENGTHS[number])
        # A server that stays from the row before has that row's prompts in its cache.
        for server in self.sides:
            server.flush_cache()
            server.mark_log()
        before = [_work(server) for server in self.kvferry_sides]
        self.ask("one at a time", everything, 1)
        self.check_one_at_a_time(before)
        self.ask("4 at once", everything, 4)
        self.ask("16 at once", longest_first, 16)
        self.ask("streaming, 4 at once", everything[::2], 4, client.ask_streaming)
        self.asked.append(LENGTHS[-2])
        client.go_away(self.url, prompts()[-2])
        for server in self.sides:
            server.await_idle()
        self.ask("after a client went away", everything[-2:], 2)
        self.check_all(before)
        self.check_cache()
        self.check_libraries()
        for server in self.sides:
            server.await_idle()
            _require(server.running, f"{server.name} has died: {server.last_words()}")


def single_engine(scene: Scene) -> list[Answer]:
    """What is right: one engine, one request at a time, nothing in chunks or from a cache."""
    server = scene.begin("single", "stock", PAGE_1)
    server.await_start()
    reference = client.ask_together(server.url, prompts(), 1)
    scene.stop("single")
    return reference


def run_row(scene: Scene, row: Row, reference: list[Answer]) -> None:
    began = time.monotonic()
    try:
        fresh = scene.bring_pair(row.prefill, row.decode, row.configuration)
        Trial(scene, row, reference, fresh).run()
    except Failed as failure:
        row.problem = str(failure)
    row.seconds = time.monotonic() - began


@dataclass
class Control:
    """What the comparison says when one middle page of one layer is wrong."""

    configuration: Configuration
    problem: str = ""
    differences: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"control: {' -> '.join(CONTROLLED)}  {self.configuration.name}, a page of one layer corrupted"

    def run(self, scene: Scene, reference: list[Answer]) -> None:
        try:
            scene.bring_pair(*CONTROLLED, self.configuration, of_prefill=CORRUPTION)
            answers = client.ask_together(scene.running["balancer"].url, prompts(), 1)
            # The first token comes from the prefill server, which has computed it from pages that are right.
            self.differences = [client.difference(a, b, first=False) for a, b in zip(answers, reference, strict=True)]
            least = min(self.differences)
            _require(least >= CONTROL, f"a prompt's log probabilities differ by {least:g} only: {self.differences}")
        except Failed as failure:
            self.problem = str(failure)

    def summary(self) -> str:
        other = sum(map(math.isinf, self.differences))
        finite = [difference for difference in self.differences if math.isfinite(difference)]
        least = f", the others' log probabilities by {min(finite):.3g} at least" if finite else ""
        return f"{other} of {len(self.differences)} answers have other tokens{least}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| prefill | decode | configuration | " + " | ".join(FIGURES) + " |"
    yield "| --- " * (3 + len(FIGURES)) + "|"
    for row in rows:
        yield " | ".join(["| " + row.prefill, row.decode, row.configuration.name, *row.figures().values()]) + " |"
