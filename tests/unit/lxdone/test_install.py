# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path
from unittest import mock

import fixtures
import testtools
from click.testing import CliRunner

from containerhost.linux.sysfs import Host
from containerhost.operator.doctor.memlock import CAP_SYS_RESOURCE
from lxdone import nodecheck
from lxdone.install import main
from onedriver.errors import BadInput
from onedriver.setup import conffile, frontend, networkdrivers, nodechecks, remotes

CONTENT = "LOG = [ SYSTEM = \"file\" ]\n"
NICS = "module VNMMAD\n  module VNMNetwork\n    class NicLXC < Nic\n    end\n  end\nend\n"

EXECRC = '# Pairs.\nLIVE_DISK_SNAPSHOTS="kvm-qcow2 kvm-ssh"\n\nOTHER="x"\n'


class FrontEndCase(testtools.TestCase):
    command = main

    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.remotes, self.conf = base / "remotes", base / "conf"
        for directory in (self.remotes, self.conf):
            directory.mkdir()
        self.oned, self.monitord = self.conf / "oned.conf", self.conf / "monitord.conf"
        for file in (self.oned, self.monitord):
            file.write_text(CONTENT)
            file.chmod(0o640)

    def install(self, *arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(self.command, ["front-end", "--remotes", str(self.remotes), "--conf",
                                                   str(self.conf), *arguments])
        self.assertEqual(status, result.exit_code, result.output)
        return result.output


class FrontEndTest(FrontEndCase):
    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.remotes)): path.read_bytes() for path in self.remotes.rglob("*")
                if path.is_file()}

    def test_without_apply_the_sections_are_printed(self) -> None:
        out = self.install()
        self.assertIn("add to oned.conf:\n\nVM_MAD = [", out)
        self.assertIn("add to monitord.conf:\n\nIM_MAD = [", out)
        self.assertEqual([CONTENT] * 2, [file.read_text() for file in (self.oned, self.monitord)])
        self.assertEqual({str(file) for file in remotes.files("lxdone")}, set(self.tree()))
        for file in remotes.files("lxdone"):
            self.assertTrue(os.access(self.remotes / file, os.X_OK))

    def test_backup_belongs_to_the_owner_of_the_file(self) -> None:
        if os.geteuid() == 0:
            os.chown(self.oned, 12, 34)
        self.install("--apply")
        before, kept = self.oned.stat(), conffile.backup(self.oned, "lxdone").stat()
        self.assertEqual((before.st_uid, before.st_gid, before.st_mode), (kept.st_uid, kept.st_gid, kept.st_mode))

    def test_apply_is_done_once_and_taken_back(self) -> None:
        first = json.loads(self.install("--apply", "--json"))
        self.assertEqual([str(self.oned), str(self.monitord)], first["configured"])
        self.assertEqual(len(remotes.files("lxdone")), len(first["files"]))
        self.assertIn('NAME            = "lxdone"', self.oned.read_text())
        self.assertEqual((CONTENT, 0o640), (conffile.backup(self.oned, "lxdone").read_text(),
                                            self.oned.stat().st_mode & 0o777))
        before = self.tree()
        self.assertEqual({"files": [], "configured": [], "by_hand": {},
                          "warnings": [frontend.EXEC_WARNING.format(path=self.oned)]},
                         json.loads(self.install("--apply", "--json")))
        self.assertEqual(before, self.tree())
        own = self.remotes / "im/lxdone-probes.d/host/system/mine"
        own.write_text("x")
        self.install("--apply", "--uninstall")
        self.assertEqual([CONTENT] * 2, [file.read_text() for file in (self.oned, self.monitord)])
        self.assertEqual({"im/lxdone-probes.d/host/system/mine": b"x"}, self.tree())
        own.unlink()
        self.install("--apply")
        self.install("--uninstall")
        self.assertEqual([], list(self.remotes.iterdir()))

    def test_warning_while_owners_may_exec_on_the_front_end(self) -> None:
        """A line break in the command leads out of oned's quotation."""
        cases = {"": True, 'VM_MANAGE_OPERATIONS = "stop, rename,\n    exec, vmgroup"\n': True,
                 '# VM_MANAGE_OPERATIONS = "exec"\nVM_MANAGE_OPERATIONS = "stop, exec-retry"\n': False}
        for text, warned in cases.items():
            self.oned.write_text(text)
            self.assertEqual(warned, "warning: " in self.install("--apply"), text)
            self.assertEqual(warned, len(json.loads(self.install("--json"))["warnings"]) == 1, text)
        self.assertNotIn("warning: ", self.install("--uninstall"))

    def test_a_changed_script_is_brought_back(self) -> None:
        self.install()
        script = self.remotes / "vmm/lxdone/deploy"
        content = script.read_bytes()
        script.write_text("#!/bin/false\n")
        self.assertEqual([str(script)], json.loads(self.install("--json"))["files"])
        self.assertEqual(content, script.read_bytes())

    def test_network_drivers_know_its_interfaces(self) -> None:
        file = self.remotes / "vnm/nic.rb"
        file.parent.mkdir()
        file.write_text(NICS)
        file.chmod(0o640)
        self.install()
        ours = file.read_text()
        self.assertIn("\nVNMMAD::VNMNetwork::HYPERVISORS['lxdone'] = Class.new(VNMMAD::VNMNetwork::NicLXC) do\n", ours)
        self.assertIn('$(command -v lxdone || echo lxdone)" vmm limit_nic "$@"', ours)
        self.assertEqual((NICS, 0o640), (ours[:len(NICS)], file.stat().st_mode & 0o777))
        self.assertEqual([], json.loads(self.install("--json"))["files"])
        self.assertEqual([Path("vnm/nic.rb")], networkdrivers.install(self.remotes, "onedock"))
        self.install("--uninstall")
        self.assertNotIn("lxdone", file.read_text())
        self.assertIn("HYPERVISORS['onedock']", file.read_text())
        file.write_text(NICS)  # an update of OpenNebula
        self.assertEqual(str(file), json.loads(self.install("--json"))["files"][0])
        self.assertEqual(ours, file.read_text())

    def test_network_drivers_that_cannot_know_its_interfaces(self) -> None:
        file = self.remotes / "vnm/nic.rb"
        file.parent.mkdir()
        file.write_text("class NicKVM < Nic\nend\n")
        self.assertIn("has no class NicLXC", self.install("--apply", status=1))
        self.assertEqual(({"vnm/nic.rb"}, CONTENT), (set(self.tree()), self.oned.read_text()))

    def test_live_disk_snapshots_are_allowed_and_forbidden_again(self) -> None:
        file = self.conf / "vmm_exec/vmm_execrc"
        file.parent.mkdir()
        file.write_text(EXECRC)
        self.assertIn("add to vmm_exec/vmm_execrc:\n\n", self.install())
        self.assertEqual(EXECRC, file.read_text())
        self.assertIn(str(file), json.loads(self.install("--apply", "--json"))["configured"])
        self.assertIn('kvm-ssh lxdone-local lxdone-ssh lxdone-shared lxdone-qcow2"\n', file.read_text())
        self.assertEqual(EXECRC, conffile.backup(file, "lxdone").read_text())
        self.assertEqual([], json.loads(self.install("--apply", "--json"))["configured"])
        self.install("--apply", "--uninstall")
        self.assertEqual(EXECRC, file.read_text())
        file.write_text("")
        self.assertIn("LIVE_DISK_SNAPSHOTS", self.install("--apply", status=1))

    def test_transfer_drivers_hand_over_disks_of_running_vms(self) -> None:
        file = self.remotes / "tm/ssh/cpds"
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/bash\necho\n")
        self.assertIn(str(file), json.loads(self.install("--json"))["files"])
        self.assertIn("/../lxdone/live", file.read_text())
        self.assertTrue(os.access(self.remotes / "tm/lxdone/live", os.X_OK))
        self.assertEqual([], json.loads(self.install("--json"))["files"])
        self.install("--uninstall")
        self.assertEqual({"tm/ssh/cpds": b"#!/bin/bash\necho\n"}, self.tree())

    def test_what_cannot_be_configured_changes_nothing(self) -> None:
        self.monitord.write_text('IM_MAD = [ NAME = "lxdone" ]\n')
        self.assertIn("remove that section first", self.install("--apply", status=1))
        self.assertEqual(({}, CONTENT), (self.tree(), self.oned.read_text()))
        self.monitord.unlink()
        self.assertIn("monitord.conf", self.install("--apply", status=1))
        self.assertEqual({}, self.tree())

    def test_both_files_or_none(self) -> None:
        replace = conffile.replace

        def failing(path: Path, text: str, driver: str) -> None:
            if path == self.monitord:
                raise OSError("the disk is full")
            replace(path, text, driver)

        with mock.patch.object(conffile, "replace", failing):
            self.assertIn("the disk is full", self.install("--apply", status=1))
        self.assertEqual([CONTENT] * 2, [file.read_text() for file in (self.oned, self.monitord)])


class NodeTest(testtools.TestCase):
    def test_a_version_is_compared_by_number(self) -> None:
        self.assertLess(nodechecks.version("4.24"), (5, 0))
        self.assertGreater(nodechecks.version("5.21.1 LTS"), (5, 0))
        self.assertGreaterEqual(nodechecks.version("5.0.2"), (5, 0))

    def test_a_check_that_fails_is_a_complaint(self) -> None:
        def fail() -> list[str]:
            raise BadInput("not so")

        self.assertEqual(["not so"], nodechecks.complaints(fail))

    def test_missing_programs_are_named_with_their_package(self) -> None:
        with mock.patch.object(nodechecks, "complaints", lambda look: look):
            checks = nodecheck.check("oneadmin")
        with mock.patch("shutil.which", lambda name, **_: name if name in ("gzip", "unshare") else None):
            found = list(checks["tools"]())
        self.assertEqual({f"there is no program {name}; install package {package}" for name, package in (
            ("zstd", "zstd"), ("xz", "xz-utils (xz)"), ("bzip2", "bzip2"),
            ("sqfs2tar", "squashfs-tools-ng"), ("qemu-img", "qemu-utils (qemu-img)"))}, set(found))

    def test_a_user_that_there_is_not(self) -> None:
        (complaint,) = nodechecks.sudo("no-such-user", "lxdone", nodecheck.USES)
        self.assertIn("--user", complaint)
        self.assertEqual([], list(nodechecks.sudo("root", "lxdone", nodecheck.USES)))

    def test_all_complaints_and_the_status(self) -> None:
        for found, status, text in (({"sudo": []}, 0, "sudo: in order\n"),
                                    ({"sudo": ["a", "b"], "x": []}, 1, "sudo: a; b\nx: in order\n")):
            with mock.patch.object(nodechecks, "run", return_value=found):
                result = CliRunner().invoke(main, ["node"])
                self.assertEqual((status, text), (result.exit_code, result.output))
                self.assertEqual(found, json.loads(CliRunner().invoke(main, ["node", "--json"]).output))


class MemlockTest(testtools.TestCase):
    """Test the limits with this process in the place of an engine's daemon."""

    def complaints(self, wanted: str, limits: str, capabilities: int, rdma: bool = True) -> list[str]:
        root = Path(self.useFixture(fixtures.TempDir()).path)
        directory = root / "proc/7"
        directory.mkdir(parents=True)
        (directory / "limits").write_text(f"Limit Soft Limit Hard Limit Units\nMax locked memory  {limits}  bytes\n")
        (directory / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
        (directory / "uid_map").write_text("         0          0 4294967295\n")
        devices = [mock.Mock(rdma=rdma or None)]
        with mock.patch.object(nodechecks, "scan", return_value=mock.Mock(devices=devices)), mock.patch.object(
                nodechecks, "Host", lambda: Host(root)):
            return list(nodechecks.memlock(wanted, 7))

    def test_a_limit_that_the_daemon_may_not_give_is_told(self) -> None:
        for wanted in ("unlimited", "8388609"):
            (found,) = self.complaints(wanted, "8388608  8388608", 0)
            self.assertIn('set memlock = "8388608"', found)

    def test_what_can_be_given_is_in_order(self) -> None:
        for wanted, limits, capabilities, rdma in (
                ("unlimited", "8388608  unlimited", 0, True), ("8388608", "65536  8388608", 0, True),
                ("unlimited", "8388608  8388608", CAP_SYS_RESOURCE, True),
                ("unlimited", "8388608  8388608", 0, False)):
            self.assertEqual([], self.complaints(wanted, limits, capabilities, rdma))
