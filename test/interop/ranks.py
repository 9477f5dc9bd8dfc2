"""Several ranks on each side: MLA with dummy requests, and dp groups."""

from dataclasses import dataclass, replace

from matrix import Cell, Numbers, PROFILES, check
from processes import Layout, Line, Place, Process, Scene, Server

CELL_SECONDS = 30.0
PAGES = 8
POOL = Layout(buffers=2, pages=64, item_length=2048, aux_slots=64)
CROSSED = (("stock", "kvferry"), ("kvferry", "stock"))


@dataclass(frozen=True)
class Ranks:
    """How many ranks each side has and which of them meet."""

    what: str
    prefill: Layout
    decode: Layout
    rooms: int

    def writers(self, room: int) -> dict[int, int]:
        """Which global prefill rank writes the bytes of each decode rank (spec: rank mapping, one decode group)."""
        group = room % self.prefill.dp
        per_group = self.prefill.tp // self.prefill.dp
        return {
            rank: group * per_group + rank * per_group // self.decode.tp for rank in range(self.decode.tp)
        }

    def involved(self, room: int) -> range:
        """The prefill ranks that take part, those that get a dummy included."""
        group, per_group = room % self.prefill.dp, self.prefill.tp // self.prefill.dp
        return range(group * per_group, (group + 1) * per_group)


KINDS = (
    Ranks("MLA, prefill tp4, decode tp2", replace(POOL, tp=4, mla=True), replace(POOL, tp=2, mla=True), 3),
    Ranks("MLA, prefill tp2, decode tp4", replace(POOL, tp=2, mla=True), replace(POOL, tp=4, mla=True), 3),
    Ranks("prefill tp4 in 2 dp groups, decode tp2", replace(POOL, tp=4, dp=2), replace(POOL, tp=2), 4),
)


def cells() -> list[Cell]:
    return [
        Cell(prefill, decode, profile, "tcp", kind.what)
        for profile in PROFILES
        for prefill, decode in CROSSED
        for kind in KINDS
    ]


def start(
    scene: Scene, kind: Ranks, server: Server, prefill: str, decode: str
) -> tuple[list[Process], list[Process]]:
    senders = [
        scene.worker(prefill, "prefill", server, replace(kind.prefill, rank=rank), "--seed", str(rank + 1))
        for rank in range(kind.prefill.tp)
    ]
    receivers = [
        scene.worker(decode, "decode", server, replace(kind.decode, rank=rank)) for rank in range(kind.decode.tp)
    ]
    scene.ready(*senders, *receivers)
    per_group = kind.prefill.tp // kind.prefill.dp
    server.await_ranks((rank // per_group, rank % per_group) for rank in range(kind.prefill.tp))
    return senders, receivers


def move_all(kind: Ranks, senders: list[Process], receivers: list[Process], rooms: list[int]) -> None:
    """Every rank of both sides opens each room that concerns it; all of them must end well."""
    for index, room in enumerate(rooms):
        source = {"range": [index * PAGES, PAGES]}
        target: Line = {"range": [kind.decode.pages - (index + 1) * PAGES, PAGES]}
        for rank in kind.involved(room):
            senders[rank].tell({"room": room, "pages": source, "chunks": [3, PAGES - 3], "aux_slot": index})
        for rank, writer in kind.writers(room).items():
            receivers[rank].tell(
                {
                    "room": room,
                    "pages": target,
                    "source_pages": source,
                    "source_seed": writer + 1,
                    "aux_slot": 20 + index,
                    "source_aux_slot": index,
                }
            )
    for receiver in receivers:
        check(receiver, receiver.await_rooms(rooms, CELL_SECONDS), verified=True)
    for rank, sender in enumerate(senders):
        mine = [room for room in rooms if rank in kind.involved(room)]
        check(sender, sender.await_rooms(mine, CELL_SECONDS), verified=None)


def run(place: Place, report) -> None:
    for cell in cells():
        if not report.wants(cell):
            continue
        kind = next(kind for kind in KINDS if kind.what == cell.what)
        numbers = Numbers()
        with report.trial(cell), Scene(place, cell.profile, "tcp") as scene:
            senders, receivers = start(scene, kind, scene.bootstrap(cell.prefill), cell.prefill, cell.decode)
            move_all(kind, senders, receivers, [numbers.take() for _ in range(kind.rooms)])
            scene.check_complaints()
