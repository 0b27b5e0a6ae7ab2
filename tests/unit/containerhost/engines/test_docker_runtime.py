import contextlib
import io
import json
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import runtime
from containerhost.engines.docker.record import Node, Record, Records

ID = "cd" * 32
COMMON = ["--root", "/run/x", "--log", "/run/log.json", "--log-format", "json"]
RECORD = Record(nodes=frozenset({Node("/dev/nvidia0", 195, 0)}))
DEVICE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666, "uid": 0, "gid": 0}
RULE = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}


class CommandLineTest(testtools.TestCase):
    def test_the_command_is_found_behind_options_and_their_values(self):
        for words, command in (
            ([*COMMON, "create", "--bundle", "/b", ID], "create"),
            (["--root", "create", "--debug", "--systemd-cgroup", "delete", ID], "delete"),
            (["--version"], None),
            (["--root"], None),
            ([], None),
        ):
            self.assertEqual(command, runtime.command_of(words))

    def test_values_and_common_options(self):
        words = [*COMMON, "create", "--bundle", "/b", "--pid-file", "/p", ID]
        self.assertEqual(("/b", "/p", None),
                         tuple(runtime.value_of(words, name) for name in ("--bundle", "--pid-file", "--criu")))
        self.assertEqual(COMMON, runtime.common(words))

    def test_everything_else_is_runcs(self):
        with mock.patch("os.execvp", side_effect=SystemExit) as replaced:
            for words in (["--version"], [*COMMON, "kill", ID, "9"]):
                self.assertRaises(SystemExit, runtime.main, ["--records", "/r", *words])
                self.assertEqual(["runc", *words], replaced.call_args.args[1])

    def test_docker_is_told_why(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        log = folder / "log.json"
        with contextlib.redirect_stderr(io.StringIO()):
            status = runtime.main(["--records", str(folder), "--log", str(log), "create", "--bundle", "/b", ID])
        self.assertEqual(1, status)
        line = json.loads(log.read_text())
        self.assertEqual("error", line["level"])
        self.assertIn("there is no record", line["msg"])


class RuncTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.records = Records(self.folder)
        (self.folder / "config.json").write_text(json.dumps({"linux": {}}))
        (self.folder / "pid").write_text("4711")
        self.words = [*COMMON, "create", "--bundle", str(self.folder), "--pid-file", str(self.folder / "pid"), ID]

    def test_a_creation_that_fails_afterwards_is_taken_back(self):
        self.records.write(ID, Record())
        with mock.patch.object(runtime, "runc", return_value=0) as runc, \
                mock.patch.object(runtime, "lend", side_effect=OSError("no")):
            self.assertRaises(OSError, runtime.create, self.records, self.words)
        self.assertEqual([self.words, [*COMMON, "delete", "--force", ID]], [call.args[0] for call in runc.mock_calls])

    def test_runcs_own_failure_is_passed_on(self):
        self.records.write(ID, Record())
        with mock.patch.object(runtime, "runc", return_value=3), mock.patch.object(runtime, "lend") as lend:
            self.assertEqual(3, runtime.create(self.records, self.words))
        lend.assert_not_called()

    def test_a_refused_deletion_leaves_the_interfaces(self):
        for status, more, back in ((0, [], 1), (1, [], 0), (1, ["--force"], 1)):
            with mock.patch.object(runtime, "runc", return_value=status), \
                    mock.patch.object(runtime, "bring_back") as bring_back:
                self.assertEqual(status, runtime.delete(self.records, [*COMMON, "delete", *more, ID]))
                self.assertEqual(back, bring_back.call_count)


class NodesTest(testtools.TestCase):
    def test_nodes_are_added_to_what_docker_wants(self):
        deny = {"allow": False, "access": "rwm"}
        config = {"process": {"args": ["x"]}, "linux": {"devices": [{"path": "/dev/fuse"}], "seccomp": {},
                                                         "resources": {"pids": {"limit": 1}, "devices": [deny]}}}
        self.assertEqual(
            {"process": {"args": ["x"]}, "linux": {"devices": [{"path": "/dev/fuse"}, DEVICE], "seccomp": {},
                                                    "resources": {"pids": {"limit": 1}, "devices": [deny, RULE]}}},
            runtime.with_nodes(config, RECORD))

    def test_docker_may_want_none(self):
        for linux in ({}, {"devices": None, "resources": None}, {"resources": {"devices": None}}):
            found = runtime.with_nodes({"linux": linux}, RECORD)["linux"]
            self.assertEqual(([DEVICE], [RULE]), (found["devices"], found["resources"]["devices"]))
