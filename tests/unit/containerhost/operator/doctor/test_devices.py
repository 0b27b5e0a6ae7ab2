# SPDX-License-Identifier: Apache-2.0
"""Devices, drivers, virtual functions, IOMMU and GPUDirect RDMA."""

import collections
import os
import struct
from pathlib import Path
from unittest import mock

import testtools

from containerhost.devices.findings import Severity
from containerhost.devices.health import basics, bus
from containerhost.engines.docker import features as docker_features
from containerhost.engines.lxd import features as lxd_features
from containerhost.inventory.taints import TaintFile
from containerhost.operator import doctor
from containerhost.operator.doctor import daemons, devices, drivers, gpudirect, iommu, vfs
from containerhost.vendors import drmlog
from containerhost.vendors.net import ports
from containerhost.vendors.nvidia import installation, nvmlhealth, xids
from tests.unit.containerhost.operator.doctor.cases import DoctorCase

GPU, CARD = "0000:84:00.0", "0000:d8:00.0"
PORT = "/sys/devices/pci0000:d7/0000:d7:00.0/0000:d7:01.0"


def behind_switch(tree, *addresses: str) -> list[Path]:
    """Move functions below ports of one switch; return the directories of the ports."""
    ports = []
    for number, address in enumerate(addresses):
        port = tree.path(f"{PORT}/0000:d9:0{number}.7")
        place = port / address
        place.parent.mkdir(parents=True)
        tree.function(address).rename(place)
        link = tree.path(f"/sys/bus/pci/devices/{address}")
        link.unlink()
        link.symlink_to("../../../" + str(place.relative_to(tree.path("/sys"))))
        ports.append(port)
    return ports


def config(control: int, other_first: bool = True) -> bytes:
    """A bridge's configuration space with ACS (id 0x000d), perhaps after another capability (AER, 0x0001)."""
    space = bytearray(4096)
    acs = 0x148 if other_first else 0x100
    if other_first:
        struct.pack_into("<I", space, 0x100, 0x148 << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<IHH", space, acs, 1 << 16 | 0x000D, 0x001F, control)
    return bytes(space)


class DevicesTest(DoctorCase):
    host_name = "broken"

    def test_complaints_have_remedies(self) -> None:
        found = {finding.subject: finding for finding in self.findings(devices.check)}
        self.assertIn("fallen off the bus", found["0000:3c:00.0"].problem)
        self.assertIn("power-cycle", found["0000:3c:00.0"].remedy)

    def test_scrub_is_the_remedy_of_what_a_reset_cures(self) -> None:
        for rule in (xids.FATAL, xids.ACTION, nvmlhealth.RECOVERY, nvmlhealth.UNCORRECTED, bus.FATAL):
            remedy = devices._remedy(rule.says.format_map(collections.defaultdict(lambda: "Xid 48")), GPU)
            self.assertIn(f"`containerhost scrub {GPU}`", remedy, rule.says)
        for rule in (xids.OTHER_ACTION, xids.SWITCH, drmlog.WEDGED):
            self.assertIn("restart the host", devices._remedy(rule.says, GPU), rule.says)
        for rule in (basics.SILENT, basics.NO_DRIVER, nvmlhealth.LOST, ports.NO_CABLE):
            remedy = devices._remedy(rule.says, GPU)
            self.assertNotIn("scrub", remedy, rule.says)

    def test_tainted_device_and_its_parts_name_the_device_to_untaint(self) -> None:
        TaintFile(self.tree.host).taint("0000:5e:00.0", "restart the host")
        found = {finding.subject: finding.remedy for finding in self.findings(devices.check)
                 if "tainted" in finding.problem}
        self.assertIn("0000:5e:00.1", found)
        self.assertEqual({"when the work on it is done: `containerhost untaint 0000:5e:00.0`"}, set(found.values()))

    def test_virtual_function_that_the_host_uses_is_noted(self) -> None:
        interface = self.tree.function("0000:5e:00.1") / "net"
        (next(interface.iterdir()) / "upper_stor.100").symlink_to("anywhere")
        (found,) = [each for each in self.findings(devices.check) if each.subject == "0000:5e:00.1"]
        self.assertEqual(Severity.NOTE, found.severity)
        self.assertIn("stor.100 stands on", found.problem)

    def test_damaged_taints_are_told_once(self) -> None:
        self.tree.write("/var/lib/containerhost/taints.json", "{")
        problems = [finding.problem for finding in self.findings(devices.check)]
        self.assertEqual(1, sum("taints.json is not understood" in problem for problem in problems))
        self.assertTrue(any("fallen off the bus" in problem for problem in problems))

    def test_shared_gpu_that_is_not_there(self) -> None:
        self.tree.write("/etc/containerhost/sharing.yaml", "0000:99:00.0: {containers: 4}\n")
        self.assertIn("this host has no such GPU", self.problems(devices.check)["sharing"])


class VfsTest(DoctorCase):
    def test_card_without_functions_is_a_note(self) -> None:
        self.assertEqual([("0000:d8:00.1", Severity.NOTE)],
                         [(finding.subject, finding.severity) for finding in self.findings(vfs.check)])

    def test_functions_that_get_no_driver(self) -> None:
        path = self.tree.function("0000:5e:00.0") / "sriov_drivers_autoprobe"
        path.write_text("0\n")
        self.assertIn("sriov_drivers_autoprobe", self.problems(vfs.check)["0000:5e:00.0"])

    def test_function_without_guid(self) -> None:
        guid = next((self.tree.function("0000:5e:00.1") / "infiniband").glob("*/node_guid"))
        guid.write_text("0000:0000:0000:0000\n")
        self.assertIn("0000:5e:00.1", self.subjects(vfs.check))


class IommuTest(DoctorCase):
    def test_well(self) -> None:
        self.assertEqual([], self.findings(iommu.check))

    def test_translation(self) -> None:
        os.symlink("../../../kernel/iommu_groups/7", self.tree.function(GPU) / "iommu_group")
        for kind, expected in (("DMA", ["IOMMU"]), ("DMA-FQ", ["IOMMU"]), ("identity", []), ("", [])):
            self.tree.write("/sys/kernel/iommu_groups/7/type", kind + "\n")
            self.assertEqual(expected, self.subjects(iommu.check), kind)

    def test_switch_that_redirects(self) -> None:
        for port in behind_switch(self.tree, GPU, CARD):
            (port / "config").write_bytes(config(0x1D))
        self.assertEqual(["0000:d9:00.7", "0000:d9:01.7"], self.subjects(iommu.check))

    def test_switch_that_does_not(self) -> None:
        for port, content in zip(behind_switch(self.tree, GPU, CARD), (config(0x11, False), config(0)[:64]),
                                 strict=True):
            (port / "config").write_bytes(content)
        self.assertEqual([], self.findings(iommu.check))

    def test_broken_configuration_space(self) -> None:
        loop = bytearray(4096)
        struct.pack_into("<I", loop, 0x100, 0x100 << 20 | 0x0001)
        for content in (b"", b"\xff" * 4096, bytes(loop)):
            self.assertFalse(iommu.redirects(content))


class GpuDirectTest(DoctorCase):
    def pairs(self) -> dict[tuple[str, str], gpudirect.Pair]:
        found = gpudirect.pairs(doctor.collect(self.tree.host, self.tree.root / "records"))
        return {(pair.gpu, pair.function): pair for pair in found}

    def test_neither_way(self) -> None:
        found = self.findings(gpudirect.check)
        self.assertEqual(["0000:3b:00.0, 0000:3c:00.0", "0000:83:00.0, 0000:84:00.0"],
                         [finding.subject for finding in found])
        self.assertIn("nvidia-peermem", found[0].remedy)
        self.assertEqual({None}, {pair.method for pair in self.pairs().values()})

    def test_peer_memory_module(self) -> None:
        self.tree.path("/sys/module/nvidia_peermem").mkdir(parents=True)
        self.assertEqual("peer-memory", self.pairs()["0000:3b:00.0", "0000:5e:00.0"].method)
        self.assertNotIn("0000:3b:00.0", " ".join(self.subjects(gpudirect.check)))

    def test_dma_buf(self) -> None:
        self.tree.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570\n")
        self.tree.write("/sys/module/amdgpu/parameters/pcie_p2p", "Y\n")
        pairs = self.pairs()
        self.assertEqual({"dma-buf"}, {pair.method for (gpu, _), pair in pairs.items()
                                       if gpu in ("0000:3b:00.0", "0000:83:00.0")})
        self.assertEqual([], self.findings(gpudirect.check))

    def test_cards_are_pairs_and_their_functions_are_not(self) -> None:
        self.assertEqual({"0000:5e:00.0", "0000:d8:00.0", "0000:d8:00.1"}, {function for _, function in self.pairs()})

    def test_gpu_far_from_every_card(self) -> None:
        self.tree.path("/sys/module/nvidia_peermem").mkdir(parents=True)
        (self.tree.function("0000:3b:00.0") / "numa_node").write_text("-1\n")
        self.assertIn("0000:3b:00.0", self.subjects(gpudirect.check))


class NvidiaTest(DoctorCase):
    def libraries(self, *versions: str) -> None:
        for version in versions:
            self.tree.write(f"{installation.DIRECTORIES[0]}/libnvidia-ml.so.{version}", "")

    def test_module_and_libraries_of_one_release(self) -> None:
        self.libraries("550.90.07", "1")
        self.assertEqual([], self.findings(drivers.check))

    def test_module_of_another_release(self) -> None:
        self.libraries("570.124.06")
        self.assertIn("module nvidia is 550.90.07, but its libraries are 570.124.06",
                      self.problems(drivers.check)["NVIDIA driver"])

    def test_program_that_reads_a_gpu_once_does_not_keep_it(self) -> None:
        looks = [("nvidia-persiste (7)", "nvidia-smi (8)", "nv-hostengine (9)"), ("nv-hostengine (9)", "python3 (10)")]
        with mock.patch.object(installation.hostusers, "of_nodes", side_effect=looks), \
                mock.patch.object(installation, "INTERVAL", 0):
            (finding,) = installation._clients(self.tree.host)
        self.assertTrue(finding.problem.startswith("nv-hostengine (9) keeps GPUs open"), finding.problem)

    def test_host_without_the_hardware_is_not_asked(self) -> None:
        self.libraries("570.124.06")
        for address in ("0000:3b:00.0", "0000:3c:00.0"):
            self.tree.path(f"/sys/bus/pci/devices/{address}").unlink()
        self.assertEqual([], self.findings(drivers.check))


class FeaturesTest(testtools.TestCase):
    def test_old_lxd(self) -> None:
        found = {finding.problem.split()[5].rstrip(":"): finding.severity for finding in lxd_features.missing(())}
        self.assertEqual({"kernel_limits": Severity.WRONG, "limits_hugepages": Severity.NOTE, "gpu_cdi": Severity.NOTE,
                          "gpu_cdi_hotplug": Severity.NOTE, "numa_cpu_placement": Severity.NOTE}, found)
        self.assertEqual([], list(lxd_features.missing(found)))

    def test_docker_without_runtime_and_limits(self) -> None:
        good = {"Runtimes": {"containerhost": {}}, "PidsLimit": True,
                "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin"]}
        self.assertEqual([], list(docker_features.missing(good)))
        self.assertEqual(2, len(list(docker_features.missing(good | {"Runtimes": {"runc": {}}, "PidsLimit": False}))))
        for options in ([], None, ["name=seccomp,profile=unconfined"]):
            (found,) = docker_features.missing(good | {"SecurityOptions": options})
            self.assertIn("filters no system calls", found.problem)


class DaemonsTest(DoctorCase):
    def test_captured_tree_is_not_asked(self) -> None:
        self.tree.write("/proc/77/comm", "lxd\n")
        self.assertEqual([], self.findings(daemons.check))

    def test_daemon_whose_driver_is_not_installed_is_not_asked(self) -> None:
        ask = mock.Mock(side_effect=ModuleNotFoundError("No module named 'docker'", name="docker"))
        with mock.patch.dict(daemons._ASK, {"dockerd": ask}), \
                mock.patch.object(daemons, "running", lambda host: [(77, "dockerd")]):
            (finding,) = daemons.check(mock.Mock(host=mock.Mock(live=True)))
        self.assertEqual(("dockerd", "it cannot be asked: there is no Python package docker"),
                         (finding.subject, finding.problem))
