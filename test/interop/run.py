"""Runs the matrix of stock and kvferry workers and says what was seen. scripts/interop.sh starts it."""

import argparse
import base64
import hashlib
import pathlib
import shutil
import sys
import time

import faults
import matrix
import ranks
import servers
import survival
from processes import Place
from report import Report

PARTS = (matrix, ranks, servers, survival, faults)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="stock and kvferry workers, every byte checked")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder with kvferry in it")
    parser.add_argument("--only", default="", help="only cells whose name holds all of these words, split at '/'")
    options = parser.parse_args()
    place = Place(options.build.resolve())
    check_connectors(place)
    shutil.rmtree(place.logs, ignore_errors=True)
    place.logs.mkdir(parents=True)
    report = Report(options.only)
    began = time.monotonic()
    listed = [cell for part in PARTS for cell in part.cells() if report.wants(cell)]
    for part in PARTS:
        part.run(place, report)
    good = sum(outcome.good for outcome in report.outcomes.values())
    print(f"{len(report.outcomes)} of {len(listed)} cells ran, {good} good, in {time.monotonic() - began:.0f} s")
    sys.exit(0 if good == len(listed) else 1)


if __name__ == "__main__":
    main()
