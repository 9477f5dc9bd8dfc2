"""docs/compatibility.md, from what was measured."""

import functools
import pathlib
import re
import subprocess
from collections import defaultdict

from matrix import PAIRS, Cell
from report import Report

HEAD = """# Compatibility

`make interop` writes this page. It runs kvferry against the unmodified connector files of SGLang's published wheels, over
NIXL's published wheels, on one machine's host memory, poisons the decode pool first and compares every byte. What has not
been measured isn't claimed.

| measured | version |
| --- | --- |
"""

OTHERS = """
## Not yet

| dialect | SGLang releases | what happens |
| --- | --- | --- |
| registration and request apart | 0.4.8.post1 to 0.5.6 | not yet; refused, and the reason names the releases |
| notifications that name their producer | after 0.5.6, to 0.5.22 | not yet; refused in the same way |
| no notifications | 0.5.23 | not yet; refused in the same way |

RDMA and CUDA memory have not been measured with stock peers.
"""


def verdict(report: Report, cells: list[Cell]) -> str:
    good = sum(report.outcomes[cell].good for cell in cells if cell in report.outcomes)
    bad = [report.outcomes[cell].text for cell in cells if cell in report.outcomes and not report.outcomes[cell].good]
    noted = [report.notes[cell] for cell in cells if cell in report.notes]
    if noted:
        return "**does not work**; kvferry says so"
    return f"{good} of {len(cells)} cells, every byte" if not bad else f"{good} of {len(cells)}: {bad[0][:120]}"


def table(report: Report, cells: list[Cell]) -> str:
    rows: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        rows[(cell.prefill, cell.decode, cell.profile, cell.transport)].append(cell)
    text = "| prefill | decode | SGLang | transport | verified |\n| --- | --- | --- | --- | --- |\n"
    return text + "".join(f"| {' | '.join(row)} | {verdict(report, mine)} |\n" for row, mine in rows.items())


@functools.cache
def system_ucx() -> str:
    asked = subprocess.run(["pkg-config", "--modversion", "ucx"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "of unknown version"


def named(what: str) -> str:
    """The system's UCX by its version, which says more to a reader on another system."""
    return what.replace("UCX system", f"UCX {system_ucx()} (the system's)")


def single_rows(report: Report, cells: list[Cell]) -> str:
    text = "| prefill | decode | SGLang | transport | what | verified |\n| --- | --- | --- | --- | --- | --- |\n"
    for cell in cells:
        text += f"| {cell.prefill} | {cell.decode} | {cell.profile} | {cell.transport} | {named(cell.what)} | "
        text += f"{verdict(report, [cell])} |\n"
    return text


def impersonal(said: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "AGENT", re.sub(r"(127\.0\.0\.1):\d+", r"\1:PORT", said))


def speeds(report: Report) -> str:
    transports = dict.fromkeys(cell.transport for cell in report.speeds)
    text = f"| transport | {' | '.join(f'{a} → {b}' for a, b in PAIRS)} |\n| --- |{' ---: |' * len(PAIRS)}\n"
    for transport in transports:
        times = {(cell.prefill, cell.decode): seconds for cell, seconds in report.speeds.items() if cell.transport == transport}
        text += f"| {transport} | {' | '.join(f'{times[pair] * 1e3:.0f} ms' for pair in PAIRS)} |\n"
    return text


def write(path: pathlib.Path, report: Report, parts: dict[str, list[Cell]]) -> None:
    text = HEAD + "".join(f"| {name} | {version} |\n" for name, version in report.versions.items())
    text += "\nTransports: `tcp`; `shm+cma` is UCX left to choose on one machine; `shm` is `posix,sysv,self`.\n"
    for title, cells in parts.items():
        if title == "Speed":
            text += "\n## Speed\n\nOne room of 4096 scattered pages of 2 KiB in 64 buffers (0.54 GB), from decode's request until"
            text += " its last byte, the median of two rooms over shared memory, one over TCP, all in one run.\n\n" + speeds(report)
        elif title == "Main matrix":
            text += f"\n## {title}\n\n" + table(report, cells)
        else:
            text += f"\n## {title}\n\n" + single_rows(report, cells)
    if report.notes:
        text += "\n## What kvferry says where a pair does not work\n\n"
        for cell, said in report.notes.items():
            text += f"- {cell.prefill} → {cell.decode}, {cell.transport}, {named(cell.what)}: {impersonal(said)}\n"
    path.write_text(text + OTHERS)
