"""The data plane without SGLang: one kvferry agent and one agent of each stock NIXL, one way at a time."""

from matrix import TRANSPORTS, Cell
from processes import HERE, Failed, Place, Process, Scene

SECONDS = 25.0
# The flavour of each release on the wire, and the kind of memory it takes a host's for.
RELEASES = {"0.3.1": ("p031", "VRAM"), "0.5.1": ("p051", "DRAM"), "0.7.1": ("p060", "DRAM"), "1.5.1": ("p060", "DRAM")}
# From 0.4.1 on NIXL makes its endpoints in UCX's error mode PEER, even those to itself, which the FIFOs of shared
# memory don't offer: such an agent doesn't start on them, whoever the peer is.
KINDS = {"DRAM": "0", "VRAM": "1"}
LENGTH = 1 << 20


def cells() -> list[Cell]:
    return [
        Cell(initiator, target, "none", transport, f"bare NIXL {release}")
        for release in RELEASES
        for initiator, target in (("stock", "kvferry"), ("kvferry", "stock"))
        for transport in TRANSPORTS
        if transport != "shm" or release == "0.3.1"
    ]


def agent(scene: Scene, kind: str, role: str, release: str) -> Process:
    flavour, memory = RELEASES[release]
    if kind == "kvferry":
        command = [str(scene.place.build / "bare_agent"), role, flavour, KINDS[memory]]
        return scene.start(f"kvferry {role}", command)
    path = [HERE / "standins", scene.place.packages / f"nixl-{release}" / "lib"]
    command = [scene.place.python, str(HERE / "bare_agent.py"), role, memory]
    return scene.start(
        f"stock {role}",
        command,
        PYTHONPATH=":".join(map(str, path)),
        LD_LIBRARY_PATH=str(scene.place.packages / "no-cuda"),
    )


def play(scene: Scene, cell: Cell) -> None:
    release = cell.what.rpartition(" ")[2]
    target = agent(scene, cell.decode, "target", release)
    offer = target.await_answer("metadata", lambda line: "metadata" in line or "error" in line, SECONDS)
    if "error" in offer:
        raise Failed(f"{target.name}: {offer['error']}")
    initiator = agent(scene, cell.prefill, "initiator", release)
    initiator.tell_text(offer["metadata"] if cell.prefill == "kvferry" else None, offer)
    written = initiator.await_answer("end of the write", lambda line: "written" in line or "error" in line, SECONDS)
    if "error" in written:
        raise Failed(f"{initiator.name}: {written['error']}")
    seen = target.await_answer("notification", lambda line: "notification" in line or "error" in line, SECONDS)
    if seen.get("notification") != "7_kv_0_1" or seen["verified"] is not True:
        raise Failed(f"{target.name}: {seen}")
    initiator.stop()


def run(place: Place, report) -> None:
    for cell in cells():
        if report.wants(cell):
            with report.trial(cell), Scene(place, "0.4.7", TRANSPORTS[cell.transport]) as scene:
                play(scene, cell)
