# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from nova_lxd_dashboard import pciids

DATABASE = """# List of PCI ID's
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t740f  Aldebaran/MI200 [Instinct MI210]
10de  NVIDIA Corporation
\t20b0  GA100 [A100 SXM4 40GB]
\t\t10de 134f  the subsystem's name
15b3  Mellanox Technologies
\t0001  chip without a product
C 03  Display controller
\t00  VGA compatible controller
"""


class ModelTest(testtools.TestCase):
    def model(self, resource_class: str) -> str | None:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "pci.ids").write_text(DATABASE)
        return pciids.model(resource_class, (directory / "absent", directory / "pci.ids"))

    def test_names_as_they_are_sold(self) -> None:
        for resource_class, name in (("CUSTOM_PCI_10DE_20B0", "NVIDIA A100 SXM4 40GB"),
                                     ("CUSTOM_SHARED_GPU_1002_740F", "AMD/ATI Instinct MI210"),
                                     ("CUSTOM_PCI_15B3_0001", "Mellanox chip without a product")):
            self.assertEqual(name, self.model(resource_class))

    def test_what_has_no_ids_or_is_unknown_has_no_name(self) -> None:
        for resource_class in ("CUSTOM_GPU", "VGPU", "CUSTOM_PCI_10DE_FFFF", "CUSTOM_PCI_0003_0000"):
            self.assertIsNone(self.model(resource_class))

    def test_host_without_the_database_has_no_names(self) -> None:
        self.assertIsNone(pciids.model("CUSTOM_PCI_10DE_20B0", (Path("/nonexistent/pci.ids"),)))
