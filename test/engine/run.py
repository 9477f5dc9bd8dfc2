"""Runs real SGLang servers in pairs and says what was seen. scripts/engine.sh starts it, in namespaces of its own."""

import argparse
import os
import pathlib
import shutil
import signal
import sys
import time
from typing import NoReturn

import faults
import measure
import model
import namespace
import rows
from client import Answer
from servers import CONFIGURATIONS, Place, Scene


def say(good: bool, name: str, text: str, seconds: float) -> bool:
    print(f"{'ok    ' if good else 'FAILED'} {seconds:6.1f} s  {name}{': ' + text if text else ''}", flush=True)
    return good


def run_table(scene: Scene, reference: list[Answer], only: str) -> bool:
    """Every pair under both configurations, and the controls."""
    kept: list[rows.Row] = []
    good = True
    for configuration in CONFIGURATIONS:
        for prefill, decode in rows.PAIRS:
            row = rows.Row(prefill, decode, configuration)
            if only in row.name:
                rows.run_row(scene, row, reference)
                good &= say(not row.problem, row.name, row.problem or row.summary(), row.seconds)
                kept.append(row)
            if (prefill, decode) == rows.CONTROLLED:
                good &= run_control(scene, reference, rows.Control(configuration), only)
    print(*rows.table(kept), sep="\n", flush=True)
    return good


def run_control(scene: Scene, reference: list[Answer], control: rows.Control, only: str) -> bool:
    if only not in control.name:
        return True
    began = time.monotonic()
    control.run(scene, reference)
    return say(not control.problem, control.name, control.problem or control.summary(), time.monotonic() - began)


def run_faults(scene: Scene, reference: list[Answer], only: str) -> bool:
    good = True
    for outcome in faults.run(scene, reference, only):
        good &= say(outcome.good, outcome.name, outcome.text, outcome.seconds)
    return good


def end(number: int, _: object) -> NoReturn:
    """Process 1 of a namespace has no default action for a signal. Threads that wait for answers aren't joined."""
    namespace.end_all()
    namespace.remove_leftovers()
    os._exit(128 + number)


PARTS = {"table": run_table, "faults": run_faults}


def main() -> None:
    parser = argparse.ArgumentParser(description="real SGLang servers, stock and kvferry, in pairs")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder, prepared by engine.sh")
    parser.add_argument("--part", choices=[*PARTS, "measure"], help="this part only; measure runs only when named")
    parser.add_argument("--only", default="", help="only what has this in its name")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    namespace.prepare()
    place = Place(options.build.resolve())
    for folder in (place.logs, place.reports):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    model.write(place.model)
    began = time.monotonic()
    good = True
    try:
        with Scene(place) as scene:
            if options.part == "measure":
                measure.run(scene)
            else:
                reference = rows.single_engine(scene)
                for name, part in PARTS.items():
                    if options.part in (None, name):
                        good &= part(scene, reference, options.only)
    finally:
        namespace.remove_leftovers()
    print(f"engine: {'all is well' if good else 'not all is well'}, in {time.monotonic() - began:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
