# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost import ociruntime
from containerhost.engines.docker.record import Record, Records
from containerhost.vendors.nvidia import libraries
from tests.commands import script
from tests.waiting import await_that

SCRIPT = Path(__file__).parents[3] / "bin/containerhost-docker-runtime"
ID = "cd" * 32
COMMON = ["--root", "/run/x", "--log", "/run/log.json", "--log-format", "json"]
NODES = [("/dev/nvidia0", 195, 0)]
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
            self.assertEqual(command, ociruntime.command_of(words))

    def test_values_and_common_options(self):
        words = [*COMMON, "create", "--bundle", "/b", "--pid-file", "/p", ID]
        self.assertEqual(("/b", "/p", None),
                         tuple(ociruntime.value_of(words, name) for name in ("--bundle", "--pid-file", "--criu")))
        self.assertEqual(COMMON, ociruntime.common(words))

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

    def test_docker_is_told_why(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        log = directory / "log.json"
        with contextlib.redirect_stderr(io.StringIO()):
            status = ociruntime.main(["--records", str(directory), "--log", str(log), "create", "--bundle", "/b", ID])
        self.assertEqual(1, status)
        line = json.loads(log.read_text())
        self.assertEqual("error", line["level"])
        self.assertIn("there is no record", line["msg"])


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
        self.useFixture(fixtures.MonkeyPatch("containerhost.ociruntime.LOCK_TIMEOUT", 0.05))
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
        self.records.namespace(ID).touch()
        for status, more, back in ((0, [], 1), (1, [], 0), (1, ["--force"], 1)):
            with mock.patch.object(ociruntime, "runc", return_value=status), \
                    mock.patch.object(ociruntime, "bring_back") as bring_back:
                self.assertEqual(status, ociruntime.delete(str(self.directory), [*COMMON, "delete", *more, ID]))
                self.assertEqual(back, bring_back.call_count)


class NodesTest(testtools.TestCase):
    def test_nodes_are_added_to_what_docker_wants(self):
        deny = {"allow": False, "access": "rwm"}
        config = {"process": {"args": ["x"]}, "linux": {"devices": [{"path": "/dev/fuse"}], "seccomp": {},
                                                         "resources": {"pids": {"limit": 1}, "devices": [deny]}}}
        self.assertEqual(
            {"process": {"args": ["x"]}, "linux": {"devices": [{"path": "/dev/fuse"}, DEVICE], "seccomp": {},
                                                    "resources": {"pids": {"limit": 1}, "devices": [deny, RULE]}}},
            ociruntime.with_nodes(config, NODES))

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

    def test_process_memory_is_permitted_where_ptrace_is(self):
        allow, deny = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
        ptrace = {"names": ["ptrace", "read"], "action": allow}
        added = {"names": ["process_vm_readv", "process_vm_writev"], "action": allow}
        for rules, more in (
            ([ptrace], [added]),
            ([{"names": ["process_vm_readv"], "action": deny}, ptrace], [added | {"names": ["process_vm_writev"]}]),
            ([{"names": sorted(ociruntime.PROCESS_MEMORY), "action": allow}, ptrace], []),
            ([ptrace | {"args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]}], []),
            ([ptrace | {"action": deny}], []),
            ([], []),
        ):
            config = {"linux": {"seccomp": {"defaultAction": deny, "syscalls": rules}, "resources": {}}}
            expected = {"linux": {"seccomp": {"defaultAction": deny, "syscalls": [*rules, *more]}, "resources": {}}}
            self.assertEqual(expected, ociruntime.with_process_memory(config))
        for unconfined in ({"linux": {}}, {"linux": {"seccomp": None}}):
            self.assertEqual(unconfined, ociruntime.with_process_memory(unconfined))

    def test_io_uring_is_refused_whatever_the_profile_permits(self):
        refused = {"names": ["io_uring_enter", "io_uring_register", "io_uring_setup"], "action": "SCMP_ACT_ERRNO",
                   "errnoRet": 38}
        read = {"names": ["read"], "action": "SCMP_ACT_ALLOW"}
        for rules, expected in (
            (None, [refused]),
            ([read | {"names": ["io_uring_setup", "read"]}, read | {"names": ["io_uring_enter"]}], [read, refused]),
            ([refused], [refused]),
        ):
            config = {"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}}}
            self.assertEqual(expected, ociruntime.without_io_uring(config)["linux"]["seccomp"]["syscalls"])
        for unconfined in ({"linux": {}}, {"linux": {"seccomp": None}}):
            self.assertEqual(unconfined, ociruntime.without_io_uring(unconfined))

    def test_libraries_come_by_a_hook_after_others(self):
        self.assertEqual({"linux": {}}, ociruntime.with_hook({"linux": {}}, ociruntime.hook_for([])))
        with mock.patch("shutil.which", return_value="/usr/bin/tool"):
            hook = ociruntime.hook_for(["compute", "utility"])
        hooks = ociruntime.with_hook({"hooks": {"prestart": [{"path": "/x"}], "poststop": []}}, hook)["hooks"]
        self.assertEqual([], hooks["poststop"])
        self.assertEqual("/x", hooks["prestart"][0]["path"])
        self.assertEqual(["compute", "utility"], hooks["prestart"][1]["args"][-2:])
        command = libraries.command({"compute"}, 4711, "/root")
        self.assertEqual(["--compute", "--pid=4711", "/root"], command[-3:])
        self.assertIn("--no-devbind", command)

    def test_libraries_need_the_tool(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        Records(directory).write(ID, Record(libraries=frozenset({"compute"})))
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(directory)))
        log = io.StringIO()
        with contextlib.redirect_stderr(log):
            self.assertEqual(1, ociruntime.main(["--records", str(directory), "create", "--bundle", str(directory),
                                                 ID]))
        self.assertIn("install NVIDIA's container toolkit", log.getvalue())

    def test_docker_may_want_none(self):
        for linux in ({}, {"devices": None, "resources": None}, {"resources": {"devices": None}}):
            found = ociruntime.with_nodes({"linux": linux}, NODES)["linux"]
            self.assertEqual(([DEVICE], [RULE]), (found["devices"], found["resources"]["devices"]))
