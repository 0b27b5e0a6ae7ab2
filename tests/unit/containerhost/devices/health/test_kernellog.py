# SPDX-License-Identifier: Apache-2.0
"""Test what is read from the kernel's log, message by message."""

import testtools

from containerhost.devices.health import kernellog
from containerhost.devices.health.kernellog import Follower, Reader
from containerhost.devices.health.rules import WELL, Health, health_of
from containerhost.vendors.kernellog import drivers
from containerhost.vendors.kernellog import read as read_log
from containerhost.vendors.nvidia.xidlog import XidLog
from containerhost.vendors.nvidia.xids import Xid, xid_findings
from tests.unit.containerhost.hosts import Broken

GPU, OTHER = "0000:3b:00.0", "0000:af:00.0"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build"


def record(text: str, facility: int = 0) -> bytes:
    return f"{facility << 3 | 4},17,5140900,-;{text}\n".encode()


def xid(number: int, text: str = "", gpu: str = "0000:3b:00") -> bytes:
    return record(f"NVRM: Xid (PCI:{gpu}): {number}, {text}")


def recovery(before: str, after: str) -> bytes:
    return xid(154, f"GPU recovery action changed from {before} to {after}")


def marked(address: str = GPU, **counters: int) -> bytes:
    return record(kernellog.mark(address, counters), facility=1)


def read(*records: bytes) -> kernellog.Log:
    reader = Reader(drivers())
    for each in records:
        reader.take(each)
    return reader.log()


def read_xids(*records: bytes) -> XidLog:
    found = XidLog()
    reader = Reader([found])
    for each in records:
        reader.take(each)
    return found


def health(*xids: Xid) -> Health:
    return health_of(xid_findings(xids))


class Reading(testtools.TestCase):
    def test_what_is_kept(self) -> None:
        none, reset, reboot = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"
        for records, expected in (
            ([], []),
            ([xid(79, "pid=12, GPU has fallen off the bus.")], [Xid(79)]),
            ([xid(48), xid(31, "name=python"), xid(31)], [Xid(31, 2), Xid(48)]),
            ([xid(48, gpu="00000000:3B:00")], [Xid(48)]),
            ([xid(94, gpu="0000:3b:00 GPU-I:05")], [Xid(94)]),
            ([record("NVRM: Xid (PCI:0000:3b:00): 79")], [Xid(79)]),
            ([xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x4)")], [Xid(149, fatal=True)]),
            ([xid(149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08"), xid(149, "X Fatal "), xid(149, "X Nonfatal ")],
             [Xid(149, 3, fatal=True)]),
            # Only NVLink 5 states it in the message: a process may have any name.
            ([xid(31, "name= Fatal , Ch 8")], [Xid(31)]),
            ([recovery(none, reset)], [Xid(154, action="GPU Reset Required", code=1)]),
            ([recovery(none, reboot)], [Xid(154, action="Node Reboot Required", code=2)]),
            ([xid(95), recovery(none, reset), recovery(reset, none)], []),
            ([xid(154, "name=evil")], []),
            # Messages that resolve a complaint, and others.
            ([xid(48), record(LOADED)], []),
            ([xid(48), record(LOADED), xid(79)], [Xid(79)]),
            ([xid(48), marked()], []),
            ([xid(48), marked(OTHER)], [Xid(48)]),
            ([recovery(none, reset), marked()], []),
            ([recovery(none, "0x4 (Drain and Reset)"), marked()], []),
            # Not the reset that the driver requested.
            ([xid(48), recovery(none, reboot), marked()], [Xid(154, action="Node Reboot Required", code=2)]),
            ([recovery(none, reboot), record(LOADED)], [Xid(154, action="Node Reboot Required", code=2)]),
            ([recovery(none, reboot), marked(), recovery(reboot, none)], []),
            ([xid(48), marked(), xid(62)], [Xid(62)]),
            ([xid(48), record(kernellog.mark(GPU, {}))], [Xid(48)]),  # the kernel itself marks nothing
            # Messages that no kernel writes.
            ([record("NVRM: Xid (PCI:0000:3b:00): 79", facility=1)], []),
            ([record("python: NVRM: Xid (PCI:0000:3b:00): 79")], []),
            ([b" SUBSYSTEM=pci\n", b"\xff\xfe\n", b"6,;\n", b"\n", record("NVRM: Xid (PCI:zz): 79")], []),
        ):
            self.assertEqual(tuple(expected), read_xids(*records).xids(GPU), records)
            # However the pieces come.
            pieces = (bytes([byte]) for byte in b"".join(records))
            self.assertEqual(tuple(expected), read_xids(*pieces).xids(GPU), records)

    def test_drm_drivers_that_gave_up_on_a_gpu(self) -> None:
        amd, xe, i915 = "amdgpu 0000:83:00.0: ", "xe 0000:9a:00.0: ", "i915 0000:00:02.0: "
        for address, lines, sick in (
            ("0000:83:00.0", [f"{amd}amdgpu: GPU reset end with ret = -110"], True),
            ("0000:83:00.0", [f"{amd}GPU reset end with ret = -22"], True),
            ("0000:83:00.0", [f"{amd}[drm] device wedged, needs recovery"], True),
            ("0000:83:00.0", [f"{amd}[drm] device wedged, but recovered through reset"], False),
            ("0000:83:00.0", [f"{amd}amdgpu: GPU reset begin!"], False),
            ("0000:83:00.0", [f"{amd}amdgpu: GPU reset end with ret = -110", f"{amd}amdgpu: GPU reset(2) succeeded!"],
             False),
            ("0000:83:00.0", [f"{amd}amdgpu: GPU reset end with ret = -110",
                              "[drm] Initialized amdgpu 3.54.0 20150101 for 0000:83:00.0 on minor 0"], False),
            ("0000:9a:00.0", [f"{xe}[drm] *ERROR* CRITICAL: Xe has declared device 0000:9a:00.0 as wedged."], True),
            ("0000:9a:00.0", [f"{xe}[drm] device wedged, needs recovery",
                              f"{xe}[drm] Initialized xe 1.1.0 for 0000:9a:00.0 on minor 1"], False),
            ("0000:00:02.0", [f"{i915}[drm] *ERROR* GT0: Failed to reset chip."], True),
        ):
            found = read(*map(record, lines)).health(address)
            self.assertEqual(sick, "its driver gave up on it" in "".join(found.complaints), lines)
            self.assertEqual(WELL, read(*map(record, lines), marked(address)).health(address))
            self.assertEqual(WELL, read(*(record(line, facility=1) for line in lines)).health(address))

    def test_fatal_error_of_a_switch_is_that_of_all_gpus_of_the_driver(self) -> None:
        switch = "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, {}, Link 30 LTSSM Fault Up"
        found = read(record(switch.format("Fatal")), marked(GPU))
        self.assertIn("NVSwitch 0000:84:00.0 had a fatal error (SXid 20034)", found.health(GPU, "nvidia").complaints[0])
        self.assertEqual((WELL, WELL), (found.health(GPU, "vfio-pci"), found.health(GPU)))
        for lines in ([switch.format("Non-fatal")], [switch.format("Fatal"), LOADED]):
            self.assertEqual(WELL, read(*map(record, lines)).health(GPU, "nvidia"))
        self.assertEqual(found, kernellog.restored(kernellog.plain(found)))

    def test_gpus_are_told_apart(self) -> None:
        log = read_xids(xid(48), xid(79, gpu="0000:af:00"))
        self.assertEqual(((Xid(48),), (Xid(79),), ()), (log.xids(GPU), log.xids(OTHER), log.xids("0000:b0:00.0")))
        found = read(xid(48), xid(79, gpu="0000:af:00"))
        self.assertEqual((health(Xid(48)), health(Xid(79)), WELL),
                         (found.health(GPU), found.health(OTHER), found.health("0000:b0:00.0")))

    def test_counters_begin_where_the_mark_says(self) -> None:
        log = read(marked(aer_dev_fatal=1), marked(aer_dev_fatal=2, aer_dev_nonfatal=5))
        self.assertEqual({"aer_dev_fatal": 2, "aer_dev_nonfatal": 5}, log.counted(GPU))
        self.assertEqual({}, log.counted(OTHER))

    def test_it_crosses_a_process_boundary(self) -> None:
        log = read(xid(48), recovery("0x0 (None)", "0x2 (Node Reboot Required)"), marked(OTHER, aer_dev_fatal=2))
        self.assertEqual(log, kernellog.restored(kernellog.plain(log)))

    def test_a_flood_of_devices_is_bounded(self) -> None:
        log = read(*(xid(13, gpu=f"{number:04x}:3b:00") for number in range(5000)))
        self.assertEqual(kernellog.DEVICES_LIMIT, len(log.by_address))


class Following(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))
        self.file = self.tree.path("/dev/kmsg")

    def append(self, *records: bytes) -> None:
        with open(self.file, "ab") as file:
            file.write(b"".join(records))

    def test_only_what_is_new_is_read(self) -> None:
        self.append(xid(48))
        follower = Follower(self.tree.host, drivers)
        self.assertEqual(health(Xid(48)), follower.look().health(GPU))
        self.append(xid(48))
        self.assertEqual(health(Xid(48, 2)), follower.look().health(GPU))
        self.assertEqual(health(Xid(48, 2)), follower.look().health(GPU))
        self.append(marked())
        self.assertEqual(WELL, follower.look().health(GPU))

    def test_another_process_finds_it_all(self) -> None:
        self.append(xid(48), xid(48))
        for _ in range(2):
            self.assertEqual(health(Xid(48, 2)), Follower(self.tree.host, drivers).look().health(GPU))

    def test_a_process_that_forked_reads_from_the_start(self) -> None:
        self.append(xid(48))
        follower = Follower(self.tree.host, drivers)
        follower.look()
        follower._process -= 1
        self.assertEqual(health(Xid(48)), follower.look().health(GPU))

    def test_no_log_is_told_and_looked_for_again(self) -> None:
        follower = Follower(self.tree.host, drivers)
        self.assertFalse(follower.look().readable)
        self.assertFalse(read_log(self.tree.host).readable)
        self.append(xid(48))
        self.assertEqual(health(Xid(48)), follower.look().health(GPU))
        self.assertEqual(health(Xid(48)), read_log(self.tree.host).health(GPU))
