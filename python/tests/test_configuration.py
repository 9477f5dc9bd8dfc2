"""What SGLang's arguments and environment mean for a manager."""

from __future__ import annotations

import types
import unittest

from kvferry import Memory, Role
from kvferry.sglang.configuration import buffers_of, endpoint, manager_settings, memory_of
from support import environment

QUIET = {name: None for name in ("SGLANG_HOST_IP", "HOST_IP", "KVFERRY_ADVERTISE_ADDRESS", "KVFERRY_BOOTSTRAP_ADDRESS")}


def settings(role: Role, rank: int = 0, dist_init_addr: str | None = None, **variables: str) -> dict:
    arguments = types.SimpleNamespace(dist_init_addr=dist_init_addr, disaggregation_bootstrap_port=8998)
    with environment(**{**QUIET, **variables}):
        return manager_settings(role, arguments, rank)


class Configuration(unittest.TestCase):
    def test_prefill_registers_at_its_own_address(self) -> None:
        found = settings(Role.PREFILL, SGLANG_HOST_IP="10.0.0.7", HOST_IP="10.0.0.8")
        self.assertEqual(found, {"advertise_address": "10.0.0.7", "bootstrap_address": "10.0.0.7:8998"})
        found = settings(Role.PREFILL, HOST_IP="fd00::1")
        self.assertEqual(found, {"advertise_address": "fd00::1", "bootstrap_address": "[fd00::1]:8998"})
        self.assertRegex(settings(Role.PREFILL)["bootstrap_address"], r"^\S+:8998$")

    def test_several_nodes_register_at_the_first(self) -> None:
        for address, server in (("node0:5000", "node0:8998"), ("[fd00::1]:5000", "[fd00::1]:8998")):
            found = settings(Role.PREFILL, 1, address, SGLANG_HOST_IP="10.0.0.9")
            self.assertEqual(found, {"advertise_address": "10.0.0.9", "bootstrap_address": server})

    def test_decode_registers_nowhere(self) -> None:
        self.assertEqual(settings(Role.DECODE), {})
        self.assertEqual(settings(Role.DECODE, HOST_IP="10.0.0.8"), {"advertise_address": "10.0.0.8"})

    def test_the_library_s_own_settings_win(self) -> None:
        found = settings(
            Role.PREFILL,
            SGLANG_HOST_IP="10.0.0.7",
            KVFERRY_ADVERTISE_ADDRESS="10.1.1.1",
            KVFERRY_BOOTSTRAP_ADDRESS="10.1.1.2:9",
        )
        self.assertEqual(found, {})

    def test_each_rank_has_a_control_port(self) -> None:
        found = settings(Role.DECODE, 3, KVFERRY_CONTROL_PORT="7000")
        self.assertEqual(found, {"control_port": 7003})

    def test_the_pool_lies_on_the_server_s_device(self) -> None:
        self.assertEqual([memory_of(each) for each in ("cpu", "cuda", "cuda:1")], [Memory.HOST, *[Memory.CUDA] * 2])
        with self.assertRaisesRegex(ValueError, "npu"):
            memory_of("npu")
        (buffer,) = buffers_of([4096], [640], [64], Memory.CUDA, 5)
        self.assertEqual((buffer.address, buffer.length, buffer.item_length, buffer.device), (4096, 640, 64, 5))

    def test_endpoints_bracket_ipv6_once(self) -> None:
        self.assertEqual(endpoint("0.0.0.0", 1), "0.0.0.0:1")
        self.assertEqual([endpoint(host, 1) for host in ("::", "[::]")], ["[::]:1", "[::]:1"])


if __name__ == "__main__":
    unittest.main()
