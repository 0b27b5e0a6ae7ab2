# SPDX-License-Identifier: Apache-2.0
"""Require that a scan of arbitrary host files ends with devices and complaints, never with an exception."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.devices.grants import GrantOptions
from containerhost.errors import ContainerHostError
from containerhost.inventory import topology
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.operator.reports import report
from containerhost.vendors import make_grant
from tests import levels
from tests.fakehost import description, tree
from tests.unit.containerhost.hosts import MEMORY

ODD_WORDS = [
    "", "\n", "0", "-1", "-2", "0xffff", "ffff:ffff", "99999999999999999999", "4294967296:0", "1:", ":", "0-",
    "0-4294967295", "4: ", "4: ACTIVE: x", "(null)", "Device Minor: 300\n", "Device Minor: \u00b2\n",
    "GPU UUID:\nDevice Minor: -1", "DeviceFileMinor: 99999999999", "cpu \n", "cpu x y z\n", "PCI_CLASS=0\nPCI_ID=",
    "DRIVER=\nPCI_CLASS=30200\nPCI_ID=10DE:20B0\n", "PCI_CLASS=30200\nPCI_ID=10DE:20B0", "Character devices:\n195",
    "Character devices:\n99999 nvidia\n", "fe80::1", "Iface\n\n\nx\n", "\x1b[2J", "\u0661\u0662",
]
LINKS = ["", ".", "loop", "/", "../../..", "/dev/zero", "0000:5e:00.0", "0000:5e:00.1", "\udc80", "x" * 200]

content = st.one_of(st.sampled_from(ODD_WORDS).map(str.encode), st.binary(max_size=100))
mutation = st.one_of(
    st.tuples(st.just("write"), content),
    st.tuples(st.just("link"), st.sampled_from(LINKS)),
    st.tuples(st.sampled_from(["remove", "directory", "pipe"]), st.none()),
)


class OddContent(testtools.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.root = Path(tempfile.mkdtemp(prefix="unit-odd-", dir=MEMORY))
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        tree.write(description.load("mixed"), cls.root / "host")
        everything = sorted(str(path.relative_to(cls.root / "host")) for path in (cls.root / "host").rglob("*"))
        # Five CPUs are as odd as sixty-four; most code concerns the functions.
        cls.paths = [path for path in everything if "/cpu/cpu" not in path or "/cpu/cpu3" in path]

    @given(st.data(), st.lists(st.tuples(st.integers(0, 1 << 30), mutation), min_size=1, max_size=6))
    @settings(max_examples=levels.budget(gate=100, exhaustive=250), deadline=None, derandomize=True, database=None)
    def test_nothing_raises(self, data, changes):
        host = Host(self.root / "host")
        with contextlib.ExitStack() as undo:
            for index, (kind, value) in changes:
                undo.enter_context(self.changed(self.paths[index % len(self.paths)], kind, value))
            inventory = scan(host)
            found = topology.read(host)
            for figures in (topology.cpu_times, topology.uptime, topology.loadavg, topology.memory):
                figures(host)
        json.dumps([device.to_dict() for device in inventory.devices]).encode()
        shown = report.devices(inventory, {}) + report.topology(found, inventory)
        self.assertTrue(shown.replace("\n", "").isprintable())
        self.assertEqual([], [device for device in inventory.devices if "plug-in" in str(device.health)])
        for device in inventory.devices:
            inventory.related(device)
            with contextlib.suppress(ContainerHostError):
                make_grant(device, GrantOptions())

    @contextlib.contextmanager
    def changed(self, path: str, kind: str, value: bytes | str | None) -> Iterator[None]:
        """The tree with one entry odd, and afterwards as before."""
        target = self.root / "host" / path
        if not os.path.lexists(target):  # below something that an earlier change took away
            yield
            return
        saved = Path(tempfile.mkdtemp(dir=self.root))
        os.rename(target, saved / "entry")
        try:
            if kind == "write":
                target.write_bytes(value)
            elif kind == "link":
                with contextlib.suppress(FileNotFoundError):  # the empty target, which no link can have
                    os.symlink(value, target)
            elif kind == "directory":
                target.mkdir()
            elif kind == "pipe":
                os.mkfifo(target)
            yield
        finally:
            if target.is_dir() and not target.is_symlink():
                target.rmdir()
            else:
                target.unlink(missing_ok=True)
            os.rename(saved / "entry", target)
            saved.rmdir()
