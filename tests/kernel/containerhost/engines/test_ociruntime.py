# SPDX-License-Identifier: Apache-2.0
import contextlib
import errno
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import ociruntime, recordfiles
from containerhost.engines.docker.record import Record, Records
from tests.commands import script
from tests.unit.containerhost.engines.test_ociruntime import COMMON, ID
from tests.waiting import await_that

SCRIPT = Path(__file__).parents[4] / "bin/containerhost-docker-runtime"


class CommandLineTest(testtools.TestCase):
    def test_the_script_calls_what_the_command_is_for(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        for name in ("runc", "containerhost-ociruntime"):
            script(directory / name, f"echo {name}")
        shutil.copy(SCRIPT, directory)
        (directory / "link").mkdir()
        (directory / "link" / SCRIPT.name).symlink_to(directory / SCRIPT.name)
        path = f"{directory}:{os.environ['PATH']}"
        for place in (directory, directory / "link"):
            for words, more in ((["--version"], False), (["--root", "create", "kill", ID, "9"], False), ([], False),
                                ([*COMMON, "exec", "--process", "/p", ID, "create"], False),
                                (["--debug", *COMMON, "create", "--bundle", "/b c", ID], True),
                                ([*COMMON, "--systemd-cgroup", "delete", ID], True)):
                for own in ([], ["--records", "/r"]):
                    done = subprocess.run([place / SCRIPT.name, *own, *words], env={"PATH": path}, text=True,
                                          capture_output=True, check=True)
                    expected = ["containerhost-ociruntime", *own, *words] if more else ["runc", *words]
                    self.assertEqual(" ".join(expected), done.stdout.strip())


class RuncTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.records = Records(self.directory)
        (self.directory / "config.json").write_text(json.dumps({"linux": {}}))
        (self.directory / "pid").write_text("4711")
        self.words = [*COMMON, "create", "--bundle", str(self.directory), "--pid-file", str(self.directory / "pid"), ID]

    def test_a_creation_that_fails_afterwards_is_taken_back(self):
        self.records.write(ID, Record())
        with mock.patch.object(ociruntime, "runc", return_value=0) as runc, \
                mock.patch.object(ociruntime, "move_in", side_effect=OSError("no")):
            self.assertRaises(OSError, ociruntime.create, str(self.directory), self.words)
        self.assertEqual([self.words, [*COMMON, "delete", "--force", ID]], [call.args[0] for call in runc.mock_calls])

    def test_runc_is_killed_and_reaped_when_what_is_beside_it_fails(self):
        self.records.write(ID, Record())
        called = self.directory / "called"
        script(self.directory / "runc", f"""
echo $$ >> {called}
case "$*" in *create*) exec sleep 60;; esac
echo""")

        def fail(*_):
            await_that(lambda: called.exists() and called.read_text(), "runc is begun")
            raise OSError("no")

        with mock.patch.object(ociruntime, "RUNC", str(self.directory / "runc")), \
                mock.patch.object(ociruntime, "load", side_effect=fail):
            self.assertRaises(OSError, ociruntime.create, str(self.directory), self.words)
        create, delete = called.read_text().split()
        self.assertFalse(os.path.exists(f"/proc/{create}"))
        self.assertFalse(os.path.exists(f"/proc/{delete}"))

    def test_missing_runc_is_named(self):
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(self.directory)))
        self.assertIn("no runc", str(self.assertRaises(OSError, ociruntime.runc, ["--version"])))

    def test_start_waits_while_the_engine_changes_the_record(self):
        self.records.write(ID, Record())
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.docker.ociruntime.LOCK_TIMEOUT", 0.05))
        with ociruntime.lock(str(self.directory), ID).held(), mock.patch.object(ociruntime, "runc") as runc:
            self.assertRaises(TimeoutError, ociruntime.create, str(self.directory), self.words)
        runc.assert_not_called()

    def test_runcs_own_failure_is_passed_on(self):
        self.records.write(ID, Record())
        with mock.patch.object(ociruntime, "runc", return_value=3), mock.patch.object(ociruntime, "move_in") as move_in:
            self.assertEqual(3, ociruntime.create(str(self.directory), self.words))
        move_in.assert_not_called()

    def test_what_the_interfaces_need_is_there_when_runc_ends(self):
        self.records.write(ID, Record())
        order = []
        with mock.patch.object(ociruntime, "RUNC", "true"), \
                mock.patch.object(ociruntime, "move_in", side_effect=lambda *_: order.append("move_in")), \
                mock.patch.object(ociruntime, "load", side_effect=lambda *_: order.append("load")):
            self.assertEqual(0, ociruntime.create(str(self.directory), self.words))
        self.assertEqual(["load", "move_in"], order)

    def test_a_refused_deletion_leaves_the_interfaces(self):
        Path(recordfiles.namespace(str(self.directory), ID)).touch()
        for status, more, back in ((0, [], 1), (1, [], 0), (1, ["--force"], 1)):
            with mock.patch.object(ociruntime, "runc", return_value=status), \
                    mock.patch.object(ociruntime, "bring_back") as bring_back:
                self.assertEqual(status, ociruntime.delete(str(self.directory), [*COMMON, "delete", *more, ID]))
                self.assertEqual(back, bring_back.call_count)


class NodesTest(testtools.TestCase):
    def test_volumes_of_an_image_are_directories_of_the_root(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "rootfs").mkdir()
        (directory / "elsewhere").mkdir()
        (directory / "rootfs/link").symlink_to(directory / "elsewhere")
        ours = {"destination": "/media", "source": "/var/lib/onedock/one-1/media"}
        mounts = [{"destination": path, "source": f"/var/lib/docker/volumes/{ID}/_data"}
                  for path in ("/srv/data", "/link/attack")]
        (directory / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}, "linux": {},
                                                           "mounts": [ours, *mounts]}))
        ociruntime.rewrite(str(directory / "config.json"), (), None, volumes_in_root=True)
        self.assertEqual([ours], json.loads((directory / "config.json").read_text())["mounts"])
        self.assertTrue((directory / "rootfs/srv/data").is_dir())
        self.assertEqual([], list((directory / "elsewhere").iterdir()))

    def test_full_root_starts_without_the_volumes_of_its_image(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "rootfs").mkdir()
        mount = {"destination": "/srv/data", "source": f"/var/lib/docker/volumes/{ID}/_data"}
        (directory / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}, "linux": {}, "mounts": [mount]}))
        said = io.StringIO()
        with (contextlib.redirect_stderr(said),
              mock.patch("os.mkdir", side_effect=OSError(errno.EDQUOT, "Disk quota exceeded"))):
            ociruntime.rewrite(str(directory / "config.json"), (), None, volumes_in_root=True)
        self.assertEqual([], json.loads((directory / "config.json").read_text())["mounts"])
        self.assertIn("/srv/data is not as Docker would have it: Disk quota exceeded", said.getvalue())

    def test_files_that_docker_keeps_are_copied_into_the_root(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        kept = directory / "containers" / ID
        kept.mkdir(parents=True)
        (kept / "hosts").write_text("127.0.0.1 localhost")
        (directory / "rootfs/etc").mkdir(parents=True)
        (directory / "victim").write_text("mine")
        (directory / "rootfs/etc/hosts").symlink_to(directory / "victim")
        ours = {"destination": "/etc/resolv.conf", "source": "/var/lib/onedock/one-1/resolv.conf"}
        mounts = [{"destination": f"/etc/{name}", "source": str(kept / name)} for name in ("hosts", "hostname")]
        (directory / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}, "linux": {},
                                                           "mounts": [ours, *mounts]}))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            ociruntime.rewrite(str(directory / "config.json"), (), None)
        self.assertEqual([ours], json.loads((directory / "config.json").read_text())["mounts"])
        self.assertEqual("127.0.0.1 localhost", (directory / "rootfs/etc/hosts").read_text())
        self.assertEqual("mine", (directory / "victim").read_text())
        self.assertIn("/etc/hostname is not as Docker would have it: No such file", said.getvalue())
