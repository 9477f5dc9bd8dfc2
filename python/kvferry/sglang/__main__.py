"""python -m kvferry.sglang launch ARGUMENT...: sglang.launch_server with kvferry as its transfer backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from . import finder

OPTION = "--disaggregation-transfer-backend"
HOOK = "kvferry-sglang.pth"
USAGE = """usage: python -m kvferry.sglang launch ARGUMENT...
       python -m kvferry.sglang check

launch  runs `python -m sglang.launch_server ARGUMENT...` with kvferry as its NIXL backend
check   says whether that would work here, and with what
"""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["launch"]:
        return launch(arguments[1:])
    if arguments == ["check"]:
        return check()
    wants_help = arguments in (["-h"], ["--help"])
    print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


def launch(arguments: list[str]) -> int:
    """Becomes the server; comes back only with what is in the way."""
    os.environ[finder.SWITCH] = "1"
    problem = finder.refusal() or hook_problem() or option_problem(arguments)
    if problem:
        print(f"kvferry.sglang: {problem}", file=sys.stderr)
        return 1
    if not any(names_backend(each) for each in arguments):
        arguments = [*arguments, OPTION, "nixl"]
    command = [sys.executable, "-m", "sglang.launch_server", *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


def check() -> int:
    """Tells what a server would run with, after loading it."""
    os.environ[finder.SWITCH] = "1"
    problem = finder.refusal() or hook_problem()
    if problem:
        print(f"kvferry.sglang: {problem}", file=sys.stderr)
        return 1
    import kvferry
    from kvferry._library import library_path

    print(f"kvferry {kvferry.version()} for SGLang {finder.SUPPORTED}, UCX {kvferry.ucx_version()}, {library_path()}")
    return 0


def hook_problem() -> str:
    """Asks a fresh interpreter, such as each scheduler will be: without the hook it would silently load NIXL."""
    probe = f"import sys; sys.exit({finder.__name__!r} not in sys.modules)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0:
        return ""
    return (
        f"a new {sys.executable} doesn't read {Path(__file__).parents[2] / HOOK}, so SGLang's schedulers would load "
        "NIXL itself: install kvferry's wheel with pip into this environment (not with --target, not by PYTHONPATH)"
    )


def names_backend(argument: str) -> bool:
    return argument == OPTION or argument.startswith(OPTION + "=")


def option_problem(arguments: list[str]) -> str:
    """Another backend asked for by name is a contradiction, not a preference."""
    for position, argument in enumerate(arguments):
        if names_backend(argument):
            value = argument.partition("=")[2] or "".join(arguments[position + 1 : position + 2])
            if value != "nixl":
                return f"{OPTION} {value}: kvferry stands in for nixl; leave the option out"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
