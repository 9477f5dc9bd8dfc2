"""Managers, rooms and bootstrap servers as a Python program uses them."""

from __future__ import annotations

import gc
import multiprocessing
import select
import subprocess
import sys
import unittest

import kvferry
import numpy
from kvferry import KvferryError, Poll, Role, Safety, Status
from support import LIMIT, PAGE_BYTES, PAGES, wait_until

LOCAL = {"advertise_address": "127.0.0.1"}


def buffer(filled: bool) -> numpy.ndarray:
    values = numpy.arange(PAGES * PAGE_BYTES, dtype=numpy.uint32) % 251 if filled else numpy.zeros(PAGES * PAGE_BYTES)
    return values.astype(numpy.uint8).reshape(PAGES, PAGE_BYTES)


def open_manager(role: Role, pool, address: str = "", **settings: object) -> kvferry.Manager:
    given = {**LOCAL, **settings, **({"bootstrap_address": address} if address else {})}
    return kvferry.Manager(role, [kvferry.Buffer(pool, PAGE_BYTES)], settings=given)


def prefill_process(connection, address: str) -> None:
    """The other process of a hand-off: sends pages 1 to 100 in two chunks."""
    with open_manager(Role.PREFILL, buffer(True), address) as manager, manager.sender(7) as sender:
        sender.expect(100)
        sender.send(range(1, 51))
        sender.send(numpy.arange(51, 101, dtype=numpy.int32))
        connection.send((sender.wait(LIMIT), sender.poll(), manager.statistics()["pages_sent"]))
        connection.recv()


class Rooms(unittest.TestCase):
    def setUp(self) -> None:
        self.server = kvferry.BootstrapServer("127.0.0.1:0")
        self.addCleanup(self.server.close)
        self.address = f"127.0.0.1:{self.server.port}"

    def manager(self, role: Role, **settings: object) -> kvferry.Manager:
        pool = buffer(role is Role.PREFILL)
        manager = open_manager(role, pool, self.address if role is Role.PREFILL else "", **settings)
        self.addCleanup(manager.close)
        return manager

    def test_pages_move_between_two_processes(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        connection, other = spawn.Pipe()
        process = spawn.Process(target=prefill_process, args=(other, self.address), daemon=True)
        process.start()
        self.addCleanup(process.join, LIMIT)
        pool = buffer(False)
        with open_manager(Role.DECODE, pool) as manager, manager.receiver(self.address, 7) as receiver:
            receiver.expect(range(150, 250))
            self.assertEqual(receiver.wait(LIMIT), Safety.SAFE, receiver.failure_text)
            self.assertEqual(receiver.poll(), Poll.SUCCESS)
            numpy.testing.assert_array_equal(pool[150:250], buffer(True)[1:101])
            self.assertFalse(pool[:150].any() or pool[250:].any())
            self.assertTrue(connection.poll(LIMIT))
            self.assertEqual(connection.recv(), (Safety.SAFE, Poll.SUCCESS, 100))
        connection.send("end")

    def test_events_tell_every_change_and_the_descriptor_wakes(self) -> None:
        sender_side, receiver_side = self.manager(Role.PREFILL), self.manager(Role.DECODE)
        sender, receiver = sender_side.sender(1), receiver_side.receiver(self.address, 1)
        sender.expect(3)
        receiver.expect([4, 5, 6])
        sender.send([1, 2, 3])
        last = None
        while last is None or last.state not in (Poll.SUCCESS, Poll.FAILED):
            self.assertTrue(select.select([receiver_side], [], [], LIMIT)[0], "no event")
            for last in receiver_side.wait(0):
                self.assertEqual(last.room, 1)
        self.assertEqual((last.state, last.status, last.safety), (Poll.SUCCESS, Status.OK, Safety.SAFE))
        self.assertEqual(last.bytes, 3 * PAGE_BYTES)

    def test_bytes_are_verified_where_that_is_asked_for(self) -> None:
        sender_side, receiver_side = self.manager(Role.PREFILL), self.manager(Role.DECODE)
        for room, verify in enumerate((kvferry.Verify.OFF, kvferry.Verify.REQUIRED)):
            sender, receiver = sender_side.sender(room), receiver_side.receiver(self.address, room, verify=verify)
            sender.expect(3)
            receiver.expect([4, 5, 6])
            sender.send([1, 2, 3])
            self.assertEqual(receiver.wait(LIMIT), Safety.SAFE, receiver.failure_text)
            (event,) = receiver_side.wait(LIMIT)
            self.assertEqual((event.state, event.verified), (Poll.SUCCESS, verify is kvferry.Verify.REQUIRED))

    def test_failing_calls_say_why_and_change_nothing(self) -> None:
        manager = self.manager(Role.PREFILL)
        sender = manager.sender(2)
        refusals = {
            Status.BUSY: lambda: manager.sender(2),
            Status.INVALID_ARGUMENT: lambda: manager.sender(1 << 63),
            Status.WRONG_STATE: lambda: sender.send([1]),
            Status.OUT_OF_RANGE: lambda: sender.expect(-1),
        }
        for status, call in refusals.items():
            with self.subTest(status.name), self.assertRaises(KvferryError) as caught:
                call()
            self.assertEqual(caught.exception.status, status)
            self.assertTrue(caught.exception.text)
        sender.expect(2)
        with self.assertRaisesRegex(KvferryError, "out of range"):
            sender.send([PAGES])
        self.assertEqual(sender.poll(), Poll.BOOTSTRAPPING)
        manager.sender(numpy.int64(9)).close()
        for room in (-1, "7", None, 1.0):
            with self.assertRaises(KvferryError):
                manager.sender(room)

    def test_an_abort_ends_a_room_with_its_reason(self) -> None:
        sender = self.manager(Role.PREFILL).sender(3)
        sender.abort()
        self.assertEqual(sender.wait(LIMIT), Safety.SAFE)
        self.assertEqual((sender.poll(), sender.status), (Poll.FAILED, Status.ABORTED))
        self.assertTrue(sender.failure_text)
        text = sender.failure_text
        sender.close()
        self.assertEqual((sender.poll(), sender.status, sender.failure_text), (Poll.FAILED, Status.ABORTED, text))

    def test_a_deadline_ends_a_room(self) -> None:
        receiver = self.manager(Role.DECODE, bootstrap_timeout="100ms").receiver(self.address, 4)
        receiver.wait(LIMIT)
        self.assertEqual(receiver.poll(), Poll.FAILED)
        self.assertIn(receiver.status, (Status.TIMEOUT, Status.BOOTSTRAP))

    def test_closing_the_manager_ends_its_rooms_for_good(self) -> None:
        manager = self.manager(Role.PREFILL)
        sender = manager.sender(5)
        manager.close()
        self.assertEqual((sender.poll(), sender.status), (Poll.FAILED, Status.SHUTDOWN))
        for call in (sender.abort, lambda: sender.send([1]), lambda: manager.sender(6), manager.statistics):
            self.assertRaises(kvferry.ClosedError, call)
        sender.close()
        manager.close()

    def test_a_dropped_room_is_closed(self) -> None:
        manager = self.manager(Role.PREFILL)
        sender = manager.sender(6)
        self.assertEqual(manager.statistics()["rooms_open"], 1)
        del sender
        gc.collect()
        wait_until(lambda: manager.statistics()["rooms_open"] == 0, "the room is gone")
        manager.sender(6).close()

    def test_a_dropped_manager_frees_its_control_port(self) -> None:
        manager = self.manager(Role.PREFILL)
        port = manager.port
        self.assertNotEqual(port, 0)
        manager.close()
        self.assertEqual(self.manager(Role.PREFILL, control_port=port).port, port)

    def test_a_program_may_end_with_everything_open(self) -> None:
        program = (
            "import kvferry; pool = bytearray(4096); buffers = [kvferry.Buffer(pool, 64)]\n"
            "server = kvferry.BootstrapServer('127.0.0.1:0')\n"
            "settings = {'bootstrap_address': f'127.0.0.1:{server.port}', 'advertise_address': '127.0.0.1'}\n"
            "manager = kvferry.Manager(kvferry.Role.PREFILL, buffers, settings=settings)\n"
            "rooms = [manager.sender(number) for number in range(10)]\n"
            "print(manager.statistics()['rooms_open'])"
        )
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "10\n", ""))

    def test_settings_come_from_the_table(self) -> None:
        names = [row.name for row in kvferry.describe_settings()]
        self.assertIn("control_port", names)
        self.assertEqual(kvferry.setting_value("control_port"), "0")
        self.assertEqual(kvferry.setting_value("waiting_timeout", {"waiting_timeout": "5s"}), "5s")
        with self.assertRaisesRegex(KvferryError, "control_prot"):
            kvferry.setting_value("control_port", {"control_prot": 1})

    def test_the_bootstrap_server_is_closed_once(self) -> None:
        with kvferry.BootstrapServer("127.0.0.1:0") as server, self.assertRaises(KvferryError) as caught:
            kvferry.BootstrapServer(f"127.0.0.1:{server.port}")
        self.assertEqual(caught.exception.status, Status.ADDRESS_IN_USE)
        server.close()
        self.assertRaises(kvferry.ClosedError, lambda: server.port)


if __name__ == "__main__":
    unittest.main()
