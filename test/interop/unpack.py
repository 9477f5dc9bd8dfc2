"""Unpacks the files of a wheel below one prefix, each only if it is what the wheel's RECORD says.

Usage: unpack.py WHEEL FOLDER PREFIX
"""

import base64
import csv
import hashlib
import io
import pathlib
import sys
import zipfile


def main() -> None:
    wheel, folder, prefix = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    with zipfile.ZipFile(wheel) as archive:
        record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = csv.reader(io.TextIOWrapper(archive.open(record), "utf-8"))
        wanted = {row[0]: row[1] for row in rows if row[0].startswith(prefix)}
        if not wanted:
            sys.exit(f"{wheel} holds nothing below {prefix}")
        for name, promised in wanted.items():
            content = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            if promised != f"sha256={digest}":
                sys.exit(f"{wheel}: {name} isn't what RECORD says")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        (folder / "RECORD").write_text("".join(f"{name},{promised}\n" for name, promised in wanted.items()))


if __name__ == "__main__":
    main()
