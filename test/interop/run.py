"""Runs the matrix of stock and kvferry workers and says what was seen. scripts/interop.sh starts it."""

import argparse
import base64
import hashlib
import pathlib
import shutil
import subprocess
import sys
import time

import bare
import document
import faults
import matrix
import ranks
import servers
import speed
import survival
import ucx
from processes import Place
from report import Report

PARTS = {
    "Main matrix": matrix,
    "Several ranks": ranks,
    "Bootstrap servers and restarts": servers,
    "A later room completes at the stock peer": survival,
    "Known faults while a stock peer has a room open": faults,
    "UCX releases": ucx,
    "The data plane alone": bare,
    "Speed": speed,
}


def check_connectors(place: Place) -> None:
    """The stock files must be those of the published wheels."""
    for profile in matrix.PROFILES:
        folder = place.packages / f"sglang-{profile}" / "lib"
        rows = (folder / "RECORD").read_text().splitlines()
        names = {row.rpartition(",")[0]: row.rpartition(",")[2] for row in rows}
        for path in (folder / "sglang").rglob("*.py"):
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            if names.pop(str(path.relative_to(folder)), None) != f"sha256={digest}":
                sys.exit(f"interop: {path} isn't the published file")
        if not folder.is_dir() or any(name.endswith(".py") for name in names):
            sys.exit(f"interop: files of sglang=={profile} are missing: {sorted(names)}")


def our_versions(place: Place) -> dict[str, str]:
    said = subprocess.run([place.build / "kvferry", "--version"], capture_output=True, text=True, timeout=20)
    return dict(line.split(" ", 1) for line in said.stdout.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description="stock and kvferry workers, every byte checked")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder with kvferry in it")
    parser.add_argument("--only", default="", help="only cells whose name holds all of these words, split at '/'")
    parser.add_argument("--document", type=pathlib.Path, help="write the tables there, if all cells ran")
    options = parser.parse_args()
    place = Place(options.build.resolve())
    check_connectors(place)
    shutil.rmtree(place.logs, ignore_errors=True)
    place.logs.mkdir(parents=True, exist_ok=True)
    report = Report(options.only)
    began = time.monotonic()
    listed = [cell for part in PARTS.values() for cell in part.cells() if report.wants(cell)]
    for part in PARTS.values():
        part.run(place, report)
    for cell, seconds in report.speeds.items():
        print(f"{cell.prefill} -> {cell.decode}  {cell.transport}  {cell.what}: {seconds * 1e3:.0f} ms")
    good = sum(outcome.good for outcome in report.outcomes.values())
    print(f"{len(report.outcomes)} of {len(listed)} cells ran, {good} good, in {time.monotonic() - began:.0f} s")
    if options.document and not options.only and good == len(listed):
        ours = our_versions(place)
        report.versions |= {"stock SGLang": " and ".join(matrix.PROFILES)}
        report.versions |= {"kvferry": f"{ours['kvferry']}, with UCX {ours['UCX']} unless said otherwise"}
        document.write(options.document, report, {title: part.cells() for title, part in PARTS.items()})
    sys.exit(0 if good == len(listed) else 1)


if __name__ == "__main__":
    main()
