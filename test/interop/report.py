"""Which cells ran, what was seen in them, and the tables made of that."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from matrix import Cell
from processes import Failed, Process


@dataclass
class Outcome:
    good: bool
    text: str
    seconds: float


@dataclass
class Report:
    only: str = ""
    outcomes: dict[Cell, Outcome] = field(default_factory=dict)
    speeds: dict[Cell, float] = field(default_factory=dict)  # seconds of a room
    notes: dict[Cell, str] = field(default_factory=dict)  # what kvferry said where a pair is known not to work
    versions: dict[str, str] = field(default_factory=dict)

    def wants(self, cell: Cell) -> bool:
        text = f"{cell.prefill}>{cell.decode} {cell.profile} {cell.transport} {cell.what}"
        return all(word in text for word in self.only.split("/"))

    def put(self, cell: Cell, good: bool, text: str, seconds: float) -> None:
        if cell in self.outcomes and not self.outcomes[cell].good:
            return
        self.outcomes[cell] = Outcome(good, text, seconds)
        name = f"{cell.prefill} -> {cell.decode}  {cell.profile}  {cell.transport}  {cell.what}"
        print(f"{'ok    ' if good else 'FAILED'} {seconds:6.2f} s  {name}{'' if good else ': ' + text}", flush=True)

    @contextmanager
    def trial(self, cell: Cell) -> Iterator[None]:
        """Runs one cell; what goes wrong in it is written down and ends it alone."""
        began = time.monotonic()
        try:
            yield
        except Failed as failure:
            self.put(cell, False, str(failure), time.monotonic() - began)
        else:
            self.put(cell, True, "", time.monotonic() - began)

    @contextmanager
    def together(self, cells: list[Cell]) -> Iterator[None]:
        """What goes wrong before a cell's own trial is the fault of all of them that have not run."""
        began = time.monotonic()
        try:
            yield
        except Failed as failure:
            for cell in cells:
                if self.wants(cell) and cell not in self.outcomes:
                    self.put(cell, False, str(failure), time.monotonic() - began)

    def version(self, *workers: Process) -> None:
        for worker in workers:
            for answer in worker.answers:
                if answer.get("ready") and "nixl" in answer:
                    self.versions["stock NIXL"] = f"{answer['nixl']}, with UCX {answer['ucx']}"
