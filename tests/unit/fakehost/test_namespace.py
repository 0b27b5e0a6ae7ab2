# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from tests.fakehost import namespace
from tests.fakehost.description import HOSTS, DescriptionError, load


class FitTest(testtools.TestCase):
    def test_bus_of_the_real_machine_is_refused(self) -> None:
        """Also on an emulated host, whose own buses are no obstacle."""
        real = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(namespace, "REAL_SYS", str(real)))
        host = load(str(HOSTS / "small.yaml"))
        self.assertEqual(host.gpus, namespace.fit(host).gpus)
        (real / "devices/pci0000:3b").mkdir(parents=True)
        error = self.assertRaises(DescriptionError, namespace.fit, host)
        self.assertIn("PCI bus 0000:3b is one of this machine", str(error))
