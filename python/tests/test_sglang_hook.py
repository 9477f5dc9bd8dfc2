"""How the backend comes into SGLang: the .pth, the finder, the launcher; and when it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import unittest

from support import FolderTest, pretend_sglang

IMPORT = """
import json, sys
import sglang.srt.disaggregation.nixl as nixl
print(json.dumps({"origin": nixl.__spec__.origin, "names": sorted(n for n in vars(nixl) if n.startswith("Nixl"))}))
"""
SERVER = """
import json, os, sys
json.dump([sys.argv[1:], os.environ["KVFERRY_SGLANG"], "kvferry.sglang.finder" in sys.modules], sys.stdout)
"""
SPAWNED = """
import multiprocessing, sys

def child(queue):
    import sglang.srt.disaggregation.nixl as nixl
    queue.put((nixl.__spec__.origin, nixl.NixlKVSender.__module__))

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(timeout=30))
    process.join()
"""


class HookTest(FolderTest):
    def run_python(self, *arguments: str, switch: str | None = "1") -> subprocess.CompletedProcess:
        variables = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        if switch is not None:
            variables["KVFERRY_SGLANG"] = switch
        return subprocess.run(
            [sys.executable, *arguments],
            env=variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def stock(self, version: str = "0.4.7") -> None:
        """A pretended SGLang with a NIXL backend of its own."""
        pretend_sglang(self.folder, version)
        backend = self.folder / "sglang" / "srt" / "disaggregation" / "nixl"
        backend.mkdir()
        (backend / "__init__.py").write_text("NixlKVStock = 1\n")

    def imported(self, switch: str | None) -> dict:
        result = self.run_python("-c", IMPORT, switch=switch)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)


class Hook(HookTest):
    def test_with_the_variable_the_backend_is_ours(self) -> None:
        self.stock()
        found = self.imported("1")
        self.assertEqual(found["origin"], "kvferry")
        self.assertEqual(found["names"], ["NixlKVBootstrapServer", "NixlKVManager", "NixlKVReceiver", "NixlKVSender"])

    def test_without_it_the_backend_is_stock_and_nothing_of_ours_is_loaded(self) -> None:
        self.stock()
        for switch in (None, "", "0"):
            self.assertEqual(self.imported(switch)["names"], ["NixlKVStock"])
        program = "import sys; sys.exit(any(name.startswith('kvferry') for name in sys.modules))"
        self.assertEqual(self.run_python("-c", program, switch=None).returncode, 0)

    def test_spawned_children_have_it_too(self) -> None:
        self.stock()
        (self.folder / "main.py").write_text(SPAWNED)
        result = self.run_python("main.py")
        self.assertEqual(result.stdout.split(), ["kvferry", "kvferry.sglang.backend"], result.stderr)

    def test_other_versions_are_refused_by_name(self) -> None:
        for version in ("0.4.7.post1", "0.4.6", "0.5.23"):
            with self.subTest(version):
                (self.folder / version).mkdir()
                pretend_sglang(self.folder / version, version)
                program = f"import sys; sys.path.insert(0, {version!r})\n{IMPORT}"
                result = self.run_python("-c", program)
                self.assertNotEqual(result.returncode, 0)
                last = result.stderr.strip().splitlines()[-1]
                self.assertRegex(last, f"ImportError: kvferry: .*SGLang 0.4.7, and {version} is installed.*unset")

    def test_no_sglang_and_a_mistyped_switch_are_refused_too(self) -> None:
        self.assertEqual(self.run_python("-m", "kvferry.sglang", "launch").returncode, 1)
        self.stock()
        result = self.run_python("-c", IMPORT, switch="yes")
        self.assertRegex(result.stderr, "ImportError: kvferry: KVFERRY_SGLANG is 'yes'")

    def test_other_imports_are_left_alone(self) -> None:
        self.stock()
        program = "import sys, sglang.srt.disaggregation, json; print(type(sys.meta_path[0]).__name__)"
        self.assertEqual(self.run_python("-c", program).stdout.strip(), "BackendFinder")


class Launcher(HookTest):
    def launch(self, *arguments: str) -> subprocess.CompletedProcess:
        self.stock()
        (self.folder / "sglang" / "launch_server.py").write_text(SERVER)
        return self.run_python("-m", "kvferry.sglang", "launch", *arguments, switch=None)

    def test_it_becomes_the_server_with_the_backend_chosen(self) -> None:
        result = self.launch("--model-path", "here", "--disaggregation-mode", "prefill")
        self.assertEqual(result.returncode, 0, result.stderr)
        arguments = ["--model-path", "here", "--disaggregation-mode", "prefill"]
        self.assertEqual(
            json.loads(result.stdout), [[*arguments, "--disaggregation-transfer-backend", "nixl"], "1", True]
        )

    def test_the_backend_may_be_named_and_not_be_another(self) -> None:
        result = self.launch("--disaggregation-transfer-backend=nixl")
        self.assertEqual(json.loads(result.stdout)[0], ["--disaggregation-transfer-backend=nixl"])
        result = self.run_python(
            "-m", "kvferry.sglang", "launch", "--disaggregation-transfer-backend", "mooncake", switch=None
        )
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("mooncake", result.stderr)

    def test_another_version_does_not_start(self) -> None:
        pretend_sglang(self.folder, "0.4.7.post1")
        result = self.run_python("-m", "kvferry.sglang", "launch", switch=None)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("0.4.7.post1", result.stderr)

    def test_check_loads_the_library(self) -> None:
        self.stock()
        result = self.run_python("-m", "kvferry.sglang", "check", switch=None)
        self.assertRegex(result.stdout, r"^kvferry \d\S+ for SGLang 0.4.7, UCX \d\S+, /\S+libkvferry.so.0$")

    def test_without_arguments_it_explains_itself(self) -> None:
        self.assertEqual(self.run_python("-m", "kvferry.sglang").returncode, 2)
        self.assertIn("launch", self.run_python("-m", "kvferry.sglang", "--help").stdout)


if __name__ == "__main__":
    unittest.main()
