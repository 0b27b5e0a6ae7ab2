# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import json
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import ociruntime
from containerhost.engines.docker.record import Record, Records
from containerhost.vendors.nvidia import libraries

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

    def test_docker_is_told_why(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        log = directory / "log.json"
        with contextlib.redirect_stderr(io.StringIO()):
            status = ociruntime.main(["--records", str(directory), "--log", str(log), "create", "--bundle", "/b", ID])
        self.assertEqual(1, status)
        line = json.loads(log.read_text())
        self.assertEqual("error", line["level"])
        self.assertIn("is missing: this driver did not create", line["msg"])

    def test_deletion_of_another_container_tells_runcs_status(self):
        directory = self.useFixture(fixtures.TempDir()).path
        with mock.patch.object(ociruntime, "runc", return_value=3):
            self.assertEqual(3, ociruntime.delete(directory, [*COMMON, "delete", ID]))


class OwnUsersTest(testtools.TestCase):
    def test_configuration_tells_them(self):
        path = Path(self.useFixture(fixtures.TempDir()).path) / "config.json"
        for kind, own in (("user", True), ("pid", False)):
            path.write_text(json.dumps({"linux": {"namespaces": [{"type": kind}]}}))
            self.assertIs(own, ociruntime.rewrite(str(path), (), None))

    def test_root_of_the_container_is_another_user_of_the_host(self):
        others = {"containerID": 1, "hostID": 7, "size": 9}
        linux = {"uidMappings": [others, {"containerID": 0, "hostID": 1000, "size": 1}],
                 "gidMappings": [{"containerID": 0, "hostID": 2000, "size": 1}, others]}
        self.assertEqual((1000, 2000), ociruntime.owner_of_root({"linux": linux}))
        self.assertEqual((0, 0), ociruntime.owner_of_root({"linux": {}}))


class NodesTest(testtools.TestCase):
    def test_nodes_are_added_to_what_docker_wants(self):
        deny = {"allow": False, "access": "rwm"}
        config = {"process": {"args": ["x"]}, "linux": {"devices": [{"path": "/dev/fuse"}], "seccomp": {},
                                                         "resources": {"pids": {"limit": 1}, "devices": [deny]}}}
        self.assertEqual(
            {"process": {"args": ["x"]}, "linux": {"devices": [{"path": "/dev/fuse"}, DEVICE], "seccomp": {},
                                                    "resources": {"pids": {"limit": 1}, "devices": [deny, RULE]}}},
            ociruntime.with_nodes(config, NODES))

    def test_no_huge_pages(self):
        config = {"linux": {"resources": {"pids": {"limit": 1}}}}
        self.assertEqual(config, ociruntime.without_huge_pages(config, ()))
        self.assertEqual({"pids": {"limit": 1}, "hugepageLimits": [{"pageSize": "2MB", "limit": 0}]},
                         ociruntime.without_huge_pages(config, ("2MB",))["linux"]["resources"])

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
        command = libraries.command({"compute"}, 4711, "/root", "--no-cntlibs")
        self.assertEqual(["--compute", "--pid=4711", "/root"], command[-3:])
        self.assertIn("--no-devbind", command)

    def test_libraries_of_the_image_are_left_alone_in_the_words_of_the_tool(self):
        for usage, option in (("      --no-devbind  x\n      --no-cntlibs  y\n", "--no-cntlibs"),
                              ("      --cuda-compat-mode=MODE  x\n", "--cuda-compat-mode=disabled")):
            self.assertIn(option, libraries.command({"compute"}, 4711, "/root", usage))
        for usage in ("", "      --no-devbind  x\n      --compute\n"):
            error = self.assertRaises(LookupError, libraries.command, {"compute"}, 4711, "/root", usage)
            self.assertIn("CVE-2025-23359", str(error))

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
