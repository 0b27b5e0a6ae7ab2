# SPDX-License-Identifier: Apache-2.0
"""Without mounts: what the kernel is handed, and what it refuses anybody."""

from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import mountapi
from containerhost.linux.storage import idmounts, loops


class MountsTest(testtools.TestCase):
    def test_the_kernels_structure_has_its_size(self) -> None:
        self.assertEqual(304, loops.CONFIG.size)  # sizeof(struct loop_config)

    def test_a_file_system_that_no_kernel_has(self) -> None:
        error = self.assertRaises(HostActionFailed, mountapi.mounted, "no-such-fs", "/dev/null", {}, 0)
        self.assertIn("no-such-fs", str(error))

    def test_a_directory_where_nothing_is_mounted(self) -> None:
        idmounts.unmount(Path(self.useFixture(fixtures.TempDir()).path))
        idmounts.unmount(Path("/nonexistent"))

    def test_a_file_is_over_no_loop_device(self) -> None:
        self.assertIsNone(loops.existing(Path(__file__)))
        self.assertIsNone(loops.attribute("/dev/no-such-loop", "backing_file"))
