"""The backend in the hands of what SGLang 0.4.7's schedulers do, in spawned processes over real UCX."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy
from kvferry.sglang import backend
from support import AUX_BYTES, LAYERS, PAGE_BYTES, PAGES, Worker, environment, pattern, pretend_sglang, wait_until

FAILED, BOOTSTRAPPING, WAITING, SUCCESS = 0, 1, 2, 4


class SchedulerTest(unittest.TestCase):
    """A bootstrap server here, as in SGLang's main process. A pair of schedulers is shared by the tests of a class;
    those that kill, stop or configure one spawn their own."""

    settings: dict[str, str] = {}
    _pair: tuple[Worker, Worker] | None = None

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix="kvferry-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        pretend_sglang(cls.folder, "0.4.7")
        # Spawned processes are given this one's path.
        sys.path.insert(0, str(cls.folder))
        cls.addClassCleanup(sys.path.remove, str(cls.folder))
        variables = environment(
            KVFERRY_SGLANG="1",
            SGLANG_HOST_IP="127.0.0.1",
            KVFERRY_SGLANG_BOOTSTRAP_HOST="127.0.0.1",
            KVFERRY_LOG_LEVEL="off",
            **cls.settings,
        )
        variables.__enter__()
        cls.addClassCleanup(variables.__exit__, None, None, None)
        cls.server = backend.NixlKVBootstrapServer(0)
        cls.addClassCleanup(cls.server.close)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def worker(self, role: str, rank: int = 0, tp_size: int = 1) -> Worker:
        """A scheduler for this test alone, which then has a bootstrap server of its own too."""
        if "server" not in vars(self):
            self.server = backend.NixlKVBootstrapServer(0)
            self.addCleanup(self.server.close)
        worker = Worker(role, self.server.port, rank, tp_size)
        self.addCleanup(worker.stop)
        return worker

    def pair(self) -> tuple[Worker, Worker]:
        """The class's own: a test leaves no room open in them."""
        cls = type(self)
        if cls._pair is None:
            cls._pair = (Worker("prefill", cls.server.port), Worker("decode", cls.server.port))
            for worker in cls._pair:
                cls.addClassCleanup(worker.stop)
        for worker in cls._pair:
            worker.reset_counters()
        return cls._pair

    def fresh_pair(self) -> tuple[Worker, Worker]:
        return self.worker("prefill"), self.worker("decode")

    def ready(self, prefill: Worker, decode: Worker, room: int, pages, slots: tuple[int, int]) -> None:
        """Up to where the prefill scheduler may send."""
        decode.open(room, self.address)
        prefill.open(room)
        self.assertLessEqual(set(decode.await_poll(room, WAITING)), {BOOTSTRAPPING, WAITING})
        decode.init(room, list(pages), slots[1])
        self.assertLessEqual(set(prefill.await_poll(room, WAITING)), {BOOTSTRAPPING, WAITING})
        prefill.init(room, len(pages), slots[0])

    def check_bytes(self, decode: Worker, source, target, slots: tuple[int, int], rank: int = 0) -> None:
        layers, aux = decode.bytes_at(list(target), slots[1])
        for layer, found in enumerate(layers):
            numpy.testing.assert_array_equal(found, pattern(rank, layer, list(source)))
        for index, found in enumerate(aux):
            self.assertEqual(set(found.tolist()), {slots[0] * 16 + index + 1}, f"aux buffer {index}")


class Transfers(SchedulerTest):
    def test_chunks_arrive_with_all_aux_buffers(self) -> None:
        prefill, decode = self.pair()
        written = prefill.statistics()["bytes_written"]
        source, target = range(1, 61), range(200, 140, -1)
        self.ready(prefill, decode, 11, target, (3, 5))
        for start in (0, 25, 50):
            prefill.send(11, list(source[start : start + 25]))
        self.assertNotIn(BOOTSTRAPPING, prefill.await_poll(11, SUCCESS))
        self.assertNotIn(BOOTSTRAPPING, decode.await_poll(11, SUCCESS))
        self.check_bytes(decode, source, target, (3, 5))
        for side in (prefill, decode):
            side.clear(11)
            side.clear(11)
            rooms = side.counters()
            self.assertEqual([rooms[each] for each in ("open", "opened", "succeeded", "failed")], [0, 1, 1, 0])
            self.assertEqual(rooms["pages"], 60)
            self.assertEqual(side.poll(11), SUCCESS)
        self.assertEqual(prefill.counters()["chunks"], 3)
        self.assertEqual(prefill.statistics()["bytes_written"] - written, 60 * LAYERS * PAGE_BYTES + sum(AUX_BYTES))

    def test_many_rooms_at_once(self) -> None:
        prefill, decode = self.pair()
        rooms = range(100, 116)
        pages = {room: range(1 + 10 * index, 11 + 10 * index) for index, room in enumerate(rooms)}
        for room in rooms:
            decode.open(room, self.address)
        for room in reversed(rooms):
            prefill.open(room)
        for index, room in enumerate(rooms):
            decode.await_poll(room, WAITING)
            decode.init(room, list(pages[room]), index % 8)
        for index, room in enumerate(rooms):
            prefill.await_poll(room, WAITING)
            prefill.init(room, 10, index % 8)
            prefill.send(room, list(pages[room]))
        for room in rooms:
            prefill.await_poll(room, SUCCESS)
            decode.await_poll(room, SUCCESS)
            self.check_layers(decode, pages[room])
            prefill.clear(room)
            decode.clear(room)
        self.assertEqual(prefill.counters()["open_most"], 16)
        self.assertEqual(decode.counters()["open_most"], 16)

    def check_layers(self, decode: Worker, pages) -> None:
        for layer, found in enumerate(decode.bytes_at(list(pages), 0)[0]):
            numpy.testing.assert_array_equal(found, pattern(0, layer, list(pages)))

    def test_the_schedulers_run_on_our_library(self) -> None:
        for worker in self.pair():
            mapped, origin, hooked = worker.loaded()
            self.assertTrue(any(name.endswith("/kvferry/lib/libkvferry.so.0") for name in mapped), mapped)
            self.assertEqual((origin, hooked), ("kvferry", True))

    def test_two_ranks_on_each_side(self) -> None:
        prefills = [self.worker("prefill", rank, 2) for rank in (0, 1)]
        decodes = [self.worker("decode", rank, 2) for rank in (0, 1)]
        for prefill, decode in zip(prefills, decodes):
            self.ready(prefill, decode, 21, range(30, 40), (1, 2))
        for rank, (prefill, decode) in enumerate(zip(prefills, decodes)):
            prefill.send(21, list(range(1, 11)))
            prefill.await_poll(21, SUCCESS)
            decode.await_poll(21, SUCCESS)
            self.check_bytes(decode, range(1, 11), range(30, 40), (1, 2), rank)


class Failures(SchedulerTest):
    settings = {"KVFERRY_BOOTSTRAP_TIMEOUT": "3s", "KVFERRY_WAITING_TIMEOUT": "3s"}

    def assert_fails(self, worker: Worker, room, pattern_of_text: str) -> str:
        worker.await_poll(room, FAILED)
        text = worker.failure(room)
        self.assertRegex(text, pattern_of_text)
        self.assertEqual(worker.failure(room), text, "a second call has the same words")
        worker.clear(room)
        self.assertEqual(worker.poll(room), FAILED)
        self.assertEqual(worker.counters()["open"], 0)
        return text

    def test_unusable_rooms_fail_and_nothing_raises(self) -> None:
        for role in ("prefill", "decode"):
            worker = self.worker(role)
            for room in (1 << 63, -1, "7", None):
                with self.subTest(role, room=room):
                    worker.open(room, self.address)
                    self.assertEqual(worker.poll(room), FAILED)
                    worker.init(room, 3 if role == "prefill" else [1, 2, 3], 0)
                    if role == "prefill":
                        worker.send(room, [1, 2, 3])
                    self.assert_fails(worker, room, rf"^kvferry: room {room} failed on {role} rank 0: invalid argument")
            self.assertGreaterEqual(worker.counters()["failures"]["invalid argument"], 4)

    def test_bad_addresses_fail(self) -> None:
        decode = self.worker("decode")
        for room, address in enumerate(("None:None", "nowhere", "", None, "127.0.0.1:1")):
            with self.subTest(address):
                decode.open(room, address)
                self.assert_fails(decode, room, f"room {room} failed on decode rank 0: ")

    def test_unusable_pages_fail_the_room_and_the_other_side_hears_of_it(self) -> None:
        prefill, decode = self.pair()
        self.ready(prefill, decode, 31, range(10, 14), (0, 0))
        prefill.send(31, [1, PAGES])
        prefill.send(31, [1])
        self.assert_fails(prefill, 31, "out of range: .*pages safe")
        self.assert_fails(decode, 31, "room 31 failed on decode rank 0: ")
        for room, pages in ((32, [PAGES]), (33, [1, 1]), (34, [-1])):
            decode.open(room, self.address)
            decode.await_poll(room, WAITING)
            decode.init(room, pages, 0)
            self.assert_fails(decode, room, "out of range|invalid argument")

    def test_a_wrong_kind_of_page_list_fails_the_room(self) -> None:
        prefill, decode = self.pair()
        for room, pages in ((35, None), (36, "ab"), (37, numpy.array([1.5]))):
            self.ready(prefill, decode, room, [10], (0, 0))
            prefill.send_raw(room, pages)
            self.assert_fails(prefill, room, "invalid argument")
            self.assert_fails(decode, room, f"room {room}")

    def test_a_healthy_room_is_aborted_by_failure_exception(self) -> None:
        """And the other side, whose room is healthy too, is told."""
        prefill, decode = self.pair()
        for room, first, second in ((41, decode, prefill), (42, prefill, decode)):
            self.ready(prefill, decode, room, range(10, 14), (0, 0))
            self.assertRegex(first.failure(room), "this rank was healthy.*pages safe")
            self.assertEqual(first.poll(room), FAILED)
            self.assert_fails(second, room, "peer failed: .*pages safe")
        for worker in (prefill, decode):
            wait_until(lambda: worker.statistics()["rooms_open"] == 0, "the rooms are released")
            self.assertEqual(worker.counters()["unproven"], 0)

    def test_delivered_rooms_that_another_rank_failed(self) -> None:
        prefill, decode = self.pair()
        self.ready(prefill, decode, 43, [10], (0, 0))
        prefill.send(43, [1])
        for worker in (prefill, decode):
            worker.await_poll(43, SUCCESS)
            self.assertRegex(worker.failure(43), "this rank had delivered.*pages safe")
            self.assertEqual(worker.poll(43), SUCCESS)

    def test_a_twin_of_an_open_room_fails_alone(self) -> None:
        prefill, decode = self.pair()
        self.ready(prefill, decode, 51, [10], (0, 0))
        self.assertRegex(decode.open_twin(51, self.address), "room 51 failed on decode rank 0: busy")
        self.assertRegex(prefill.open_twin(51, ""), "busy")
        prefill.send(51, [1])
        for worker in (prefill, decode):
            worker.await_poll(51, SUCCESS)
            worker.clear(51)

    def test_a_retracted_request_fails_at_once_with_that_reason(self) -> None:
        prefill, decode = self.pair()
        self.ready(prefill, decode, 52, [10], (0, 0))
        prefill.send(52, [1])
        for worker in (decode, prefill):
            worker.await_poll(52, SUCCESS)
            worker.clear(52)
        decode.open(52, self.address)
        self.assertEqual(decode.poll(52), FAILED)
        self.assertRegex(decode.failure(52), "retracted")

    def test_dropped_rooms_are_closed(self) -> None:
        prefill, decode = self.pair()
        prefill.open(61)
        decode.open(62, self.address)
        self.ready(prefill, decode, 63, [10], (0, 0))
        prefill.drop(61)
        decode.drop(62)
        prefill.drop(63)
        for worker, dropped in ((prefill, 2), (decode, 1)):
            self.assertEqual(worker.counters()["dropped"], dropped)
        wait_until(lambda: prefill.statistics()["rooms_open"] == 0, "prefill's rooms are released")
        self.assert_fails(decode, 63, "room 63 failed on decode rank 0: ")

    def test_a_room_nobody_answers_fails_at_its_deadline(self) -> None:
        prefill, decode = self.pair()
        decode.open(71, self.address)
        decode.await_poll(71, WAITING)
        decode.init(71, [10, 11], 0)
        prefill.open(72)
        self.assert_fails(decode, 71, r"timeout: .*given up [34]\.")
        self.assert_fails(prefill, 72, "timeout: ")

    def test_a_killed_prefill_fails_the_room_and_a_new_one_serves(self) -> None:
        prefill, decode = self.fresh_pair()
        self.ready(prefill, decode, 81, range(10, 14), (0, 0))
        prefill.send(81, [1, 2])
        prefill.process.kill()
        decode.await_poll(81, FAILED, 10)
        self.assertRegex(decode.failure(81), "room 81 failed on decode rank 0: peer gone")
        again = self.worker("prefill")
        self.ready(again, decode, 82, range(10, 14), (1, 1))
        again.send(82, [1, 2, 3, 4])
        decode.await_poll(82, SUCCESS)
        self.check_bytes(decode, range(1, 5), range(10, 14), (1, 1))

    def test_a_killed_decode_fails_the_room_on_prefill(self) -> None:
        prefill, decode = self.fresh_pair()
        self.ready(prefill, decode, 83, range(10, 14), (0, 0))
        prefill.send(83, [1, 2])
        decode.process.kill()
        prefill.await_poll(83, FAILED, 10)
        self.assertRegex(prefill.failure(83), "room 83 failed on prefill rank 0: peer gone.*pages safe")


class UnprovenPages(SchedulerTest):
    """A prefill process that is stopped answers nothing, and may go on writing when it is continued."""

    settings = {"KVFERRY_FENCE_TIMEOUT": "1s", "KVFERRY_SGLANG_ABORT_WAIT": "100ms"}

    def setUp(self) -> None:
        super().setUp()
        self.prefill, self.decode = self.fresh_pair()
        self.ready(self.prefill, self.decode, 95, range(10, 14), (0, 0))
        os.kill(self.prefill.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.prefill.pid, signal.SIGCONT)

    def test_failed_is_told_only_when_the_pages_are_ours_again(self) -> None:
        self.decode.init(95, [20], 0)  # for the second time: gives the room up
        self.assertEqual(self.decode.await_poll(95, FAILED), [WAITING, FAILED])
        self.assertRegex(self.decode.failure(95), "wrong state: .*pages (released, unproven|safe)")

    def test_failure_exception_waits_its_time_and_counts(self) -> None:
        start = time.monotonic()
        self.assertRegex(self.decode.failure(95), "this rank was healthy.*pages still in use")
        self.assertLess(time.monotonic() - start, 0.9)
        self.assertEqual(self.decode.counters()["unproven"], 1)


class Configuration(SchedulerTest):
    def test_one_control_port_serves_all_ranks(self) -> None:
        first = self.worker("prefill")
        port = first.describe()["control_port"]
        first.stop()
        with environment(KVFERRY_CONTROL_PORT=str(port)):
            self.assertEqual(self.worker("prefill").describe()["control_port"], port)
            self.assertEqual(self.worker("prefill", 1, 2).describe()["control_port"], port + 1)

    def test_a_manager_that_cannot_be_made_says_why(self) -> None:
        with environment(KVFERRY_SGLANG_ABORT_WAIT="soon"), self.assertRaisesRegex(Exception, "ABORT_WAIT=soon"):
            backend.NixlKVManager(None, None, None)
        with environment(KVFERRY_SGLANG_NOTHING="1"), self.assertRaisesRegex(ValueError, "there is no setting"):
            backend.NixlKVBootstrapServer(0)


class Report(SchedulerTest):
    settings = {"KVFERRY_SGLANG_REPORT_INTERVAL": "1ms"}

    def setUp(self) -> None:
        variables = environment(KVFERRY_SGLANG_REPORT=str(self.folder / "report"))
        variables.__enter__()
        self.addCleanup(variables.__exit__, None, None, None)

    def report_of(self, worker: Worker, role: str) -> dict:
        path = self.folder / f"report-{role}-0-{worker.pid}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def test_it_tells_from_outside_what_a_scheduler_did(self) -> None:
        prefill, decode = self.fresh_pair()
        self.ready(prefill, decode, 91, range(10, 14), (0, 0))
        wait_until(lambda: self.report_of(decode, "decode").get("rooms", {}).get("open") == 1, "an open room is told")
        prefill.send(91, [1, 2])
        prefill.send(91, [3, 4])
        for worker, role in ((prefill, "prefill"), (decode, "decode")):
            worker.await_poll(91, SUCCESS)
            worker.clear(91)
            wait_until(lambda: self.report_of(worker, role)["rooms"]["succeeded"] == 1, "the success is told")
            report = self.report_of(worker, role)
            self.assertEqual((report["role"], report["pid"], report["pages"]), (role, worker.pid, 4))
            self.assertEqual((report["rooms"]["open"], report["rooms"]["open_most"]), (0, 1))
            self.assertIn(report["library"], worker.loaded()[0])
        wait_until(lambda: self.report_of(prefill, "prefill")["statistics"]["registered"] == 1, "registered is told")
        self.assertEqual(self.report_of(prefill, "prefill")["chunks"], 2)
        self.assertEqual(sorted(path.suffix for path in self.folder.glob("report-*")), [".json", ".json"])


if __name__ == "__main__":
    unittest.main()
