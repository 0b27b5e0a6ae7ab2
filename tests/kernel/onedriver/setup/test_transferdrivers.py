# SPDX-License-Identifier: Apache-2.0
"""Lines in OpenNebula's own transfer drivers: where they are, and what they do, with scripts in their place."""

import shutil
import subprocess
from pathlib import Path

import fixtures
import testtools

from onedriver.setup import transferdrivers
from tests.commands import script

BASH = "#!/bin/bash\n\n# A comment.\necho \"bash: $*\"\ncat\n"
RUBY = "#!/usr/bin/env ruby\n\nputs \"ruby: #{ARGV.join(' ')}\"\nputs $stdin.read\n"
SCRIPTS = {"local/cpds": RUBY, "local/snap_create_live": RUBY, "ssh/cpds": BASH, "ssh/snap_create_live": BASH,
           "qcow2/cpds": BASH, "qcow2/snap_create_live": BASH, "qcow2/cpds.ssh": BASH, "qcow2/clone": BASH}
DRIVERS = ("local", "ssh", "shared", "qcow2")
CHANGED = [Path("tm") / name for name in ("local/cpds", "local/snap_create_live", "ssh/cpds", "ssh/snap_create_live",
                                          "shared/cpds", "shared/cpds.ssh", "shared/snap_create_live")]


class TransferDriversTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.remotes = Path(self.useFixture(fixtures.TempDir()).path) / "remotes"
        for name, text in SCRIPTS.items():
            self.write(name, text)
        (self.remotes / "tm/shared").symlink_to("qcow2")
        self.hook = self.remotes / "tm/lxdone/live"
        self.hook.parent.mkdir()

    def write(self, name: str, text: str) -> None:
        file = self.remotes / "tm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o750)

    def install(self) -> list[Path]:
        return transferdrivers.install(self.remotes, "lxdone", DRIVERS)

    def texts(self) -> dict[str, str]:
        return {name: (self.remotes / "tm" / name).read_text() for name in SCRIPTS}

    def called(self, name: str) -> tuple[int, str]:
        done = subprocess.run([self.remotes / "tm" / name, "a b", "c"], input="input", capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout

    def test_each_script_is_changed_once_and_changed_back(self) -> None:
        self.assertEqual(CHANGED, self.install())
        self.assertEqual([], self.install())
        for name, text in self.texts().items():
            self.assertEqual(0 if name.endswith("clone") else 1, text.count("/lxdone/live"))
            self.assertEqual(SCRIPTS[name].splitlines()[0], text.splitlines()[0])
            self.assertEqual(0o750, (self.remotes / "tm" / name).stat().st_mode & 0o777)
        self.assertTrue((self.remotes / "tm/shared").is_symlink())
        self.assertEqual(CHANGED, transferdrivers.uninstall(self.remotes, "lxdone", DRIVERS))
        self.assertEqual(SCRIPTS, self.texts())
        self.assertEqual([], transferdrivers.uninstall(self.remotes, "lxdone", DRIVERS))

    def test_what_is_not_there_or_of_another_language_is_left(self) -> None:
        shutil.rmtree(self.remotes / "tm/ssh")
        self.write("local/cpds", "#!/usr/bin/python3\n")
        self.write("local/snap_create_live", "")
        self.assertEqual(CHANGED[4:], self.install())
        shutil.rmtree(self.remotes / "tm")
        self.assertEqual([], self.install())

    def test_script_goes_on_unless_the_request_was_done(self) -> None:
        self.install()
        names = [name for name in SCRIPTS if shutil.which("ruby") or not name.startswith("local")]
        plain = {name: (0, f"{'ruby' if name.startswith('local') else 'bash'}: a b c\ninput") for name in names}
        for status, expected in ((3, None), (1, None), (127, None), (0, 0), (100, 1)):
            script(self.hook, f"echo live; exit {status};")
            for name in names:
                code, out = self.called(name)
                if name == "qcow2/clone":
                    self.assertEqual((0, plain[name][1]), (code, out))
                elif expected is None:
                    self.assertEqual((0, f"live\n{plain[name][1]}"), (code, out.rstrip()), name)
                else:
                    self.assertEqual((expected, "live\n"), (code, out), name)

    def test_script_goes_on_where_nothing_answers(self) -> None:
        self.install()
        for command in (None, "kill -9 $$;"):
            if command:
                script(self.hook, command)
            for name in ("ssh/cpds", "shared/cpds.ssh", *(["local/cpds"] if shutil.which("ruby") else [])):
                self.assertIn(": a b c\ninput", self.called(name)[1])

    def test_script_says_what_it_was_asked(self) -> None:
        self.install()
        script(self.hook, "printf '%s|'")
        self.assertEqual((0, "cpds.ssh|a b|c|"), self.called("shared/cpds.ssh"))
        if shutil.which("ruby"):
            self.assertEqual((0, "snap_create_live|a b|c|"), self.called("local/snap_create_live"))
