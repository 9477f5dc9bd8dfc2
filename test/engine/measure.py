"""Figures for the record: time to first token and CPU of each thread, stock and kvferry in turn. Runs only when named.

Idle schedulers of SGLang take a core each, so only one pair is up at a time; it is started when its turn comes.
"""

import statistics
from collections import defaultdict

import client
import processes
from processes import Thread
from prompts import prompts
from servers import PAGE_1, Scene, Server

TURNS = ("stock", "kvferry", "kvferry", "stock") * 5
WARM_UP = 3  # batches of 16 requests that aren't counted
BATCHES = 10
QUIET = 0.02  # CPU seconds below which a thread isn't listed


def _threads(server: Server) -> dict[int, Thread]:
    return processes.threads(server.scheduler)


def _spent(before: dict[int, Thread], after: dict[int, Thread], main: int) -> dict[str, float]:
    """CPU seconds of each thread, those of one name together. NIXL's threads have the process's name; but the one that
    UCX starts, `async`, and all younger ones were made by the backend or after it."""
    first = min((number for number, thread in after.items() if thread.name == "async"), default=main)
    spent: dict[str, float] = defaultdict(float)
    for number, thread in after.items():
        name = "scheduler's loop" if number == main else thread.name
        age = "transfer" if number >= first and number != main else "engine"
        spent[f"{age}: {name}"] += thread.seconds - (before[number].seconds if number in before else 0)
    return spent


def _turn(scene: Scene) -> tuple[float, dict[str, dict[str, float]]]:
    """Median time to first token of all requests of all batches, and what each side's threads spent meanwhile."""
    url = scene.running["balancer"].url
    for _ in range(WARM_UP):
        client.first_token_seconds(url, prompts())
    sides = [scene.running["prefill"], scene.running["decode"]]
    before = [_threads(server) for server in sides]
    seconds = [second for _ in range(BATCHES) for second in client.first_token_seconds(url, prompts())]
    spent = {server.role: _spent(earlier, _threads(server), server.scheduler) for server, earlier in zip(sides, before)}
    return statistics.median(seconds), spent


def run(scene: Scene) -> None:
    medians: dict[str, list[float]] = defaultdict(list)
    totals: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for kind in TURNS:
        scene.bring_pair(kind, kind, PAGE_1)
        median, spent = _turn(scene)
        medians[kind].append(median)
        print(f"{kind}: median time to first token of {BATCHES} x 16 requests {median * 1e3:.1f} ms", flush=True)
        for role, threads in spent.items():
            for name, seconds in threads.items():
                totals[kind, role, name].append(seconds)
    for kind, values in medians.items():
        middle = statistics.median(values) * 1e3
        print(f"{kind}: {middle:.1f} ms, from {min(values) * 1e3:.1f} to {max(values) * 1e3:.1f}, {len(values)} turns")
    print(f"CPU seconds of {BATCHES} x 16 requests, per thread name; medians over the turns:")
    for (kind, role, name), values in sorted(totals.items()):
        if statistics.median(values) >= QUIET or name.startswith("transfer"):
            print(f"  {kind} {role}  {name}: {statistics.median(values):.2f}")
