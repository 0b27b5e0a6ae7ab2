# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

import fixtures
import testtools

from lxdone.disk import qcow2
from lxdone.disk.qcow2 import Origin
from onedriver.errors import NotSupported


class SizeTest(testtools.TestCase):
    def test_one_larger_than_opennebula_says_is_refused(self) -> None:
        """A few kilobytes of qcow2 can stand for as much as they like."""
        directory = Path(self.useFixture(fixtures.TempDir()).path) / "0/1"
        directory.mkdir(parents=True)
        disk, raw = directory / "disk.1", directory / "raw"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1G"], check=True)
        error = self.assertRaises(NotSupported, qcow2.to_raw, disk, Origin(directory.parents[1], None, 8 << 20), raw,
                                  20)
        self.assertIn("is a qcow2 image of 1024 MiB, but according to OpenNebula it has 8 MiB", str(error))
        self.assertFalse(raw.exists())
        qcow2.to_raw(disk, Origin(directory.parents[1], None, 1 << 30), raw, 20)
        self.assertEqual(1 << 30, raw.stat().st_size)
