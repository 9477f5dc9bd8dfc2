"""The backend's own settings, and that docs/sglang.md tells all of them with their defaults."""

from __future__ import annotations

import re
import unittest

from kvferry.sglang.options import PREFIX, Options
from support import SOURCE_ROOT


class Settings(unittest.TestCase):
    def test_values_are_read(self) -> None:
        given = {
            "ABORT_WAIT": "250ms",
            "BOOTSTRAP_HOST": "::",
            "REMEMBERED_ROOMS": "0",
            "REPORT": "/run/report",
            "REPORT_INTERVAL": "0",
        }
        options = Options.from_environment({PREFIX + name: text for name, text in given.items()})
        self.assertEqual(options, Options(0.25, "::", 0, "/run/report", 0.0))

    def test_other_variables_are_none_of_its_business(self) -> None:
        self.assertEqual(Options.from_environment({"KVFERRY_SGLANG": "1", "KVFERRY_CONTROL_PORT": "1"}), Options())

    def test_wrong_ones_are_refused_by_name(self) -> None:
        for variable, text in (
            ("ABORT_WAIT", "1"),
            ("ABORT_WAIT", "1 s"),
            ("ABORT_WAIT", "-1s"),
            ("REMEMBERED_ROOMS", "many"),
            ("REMEMBERED_ROOMS", "²"),
            ("ABORT", "1s"),
        ):
            with self.subTest(variable, text=text), self.assertRaisesRegex(ValueError, PREFIX + variable):
                Options.from_environment({PREFIX + variable: text})

    def test_the_manual_has_them_all_with_their_defaults(self) -> None:
        manual = (SOURCE_ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
        rows = dict(re.findall(rf"^\| `{PREFIX}(\w+)` \| (\S+) \|", manual, flags=re.MULTILINE))
        given = {PREFIX + name: text for name, text in rows.items() if text != "unset"}
        self.assertEqual({name.lower() for name in rows}, set(vars(Options())))
        self.assertEqual(Options.from_environment(given), Options())


if __name__ == "__main__":
    unittest.main()
