# SPDX-License-Identifier: Apache-2.0
"""The plug-ins of this project, and one of another package, against the suite."""

from containerhost.devices.health import kernellog
from tests.conformance.vendor import suite
from tests.outsidevendor import OutsideVendor
from tests.unit.containerhost.devices.health.test_kernellog import marked, record


class NvidiaTest(suite.GpuConformance):
    plugin, first, second = "nvidia", "0000:3b:00.0", "0000:af:00.0"
    host_name = "small"
    resets = True


class NvidiaSliceTest(suite.VendorConformance):
    plugin, first, second = "nvidia", "0000:3c:00.0/gi1/ci0", "0000:3c:00.0/gi2/ci0"


class AmdTest(suite.GpuConformance):
    plugin, first, second = "amd", "0000:83:00.0", "0000:84:00.0"


class IntelTest(suite.GpuConformance):
    plugin, first, second = "intel", "0000:4d:00.0", "0000:9a:00.0"


class InfinibandTest(suite.VendorConformance):
    plugin, first, second = "net", "0000:5e:00.1", "0000:5e:00.2"
    any_vendor = True


class RoceTest(suite.VendorConformance):
    plugin, first, second = "net", "0000:d8:00.2", "0000:d8:00.3"
    any_vendor = True


class ExampleTest(suite.GpuConformance):
    """From examples/vendor, installed by pip."""

    plugin, first, second = "exampleaccel", "0000:c1:00.0", "0000:c2:00.0"
    resets = True
    resetting = ("status", "resetting", "ok")

    def setUp(self) -> None:
        self.useFixture(OutsideVendor())
        super().setUp()

    def test_status_of_its_own_makes_it_sick(self) -> None:
        status = self.tree.function(self.first) / "status"
        status.unlink()
        status.write_text("overheated\n")
        self.assertEqual(("its firmware says: overheated",), self.device().health)

    def test_its_driver_is_heard_until_a_reset(self) -> None:
        log = self.tree.path(kernellog.PATH)
        failure = record(f"exampleaccel {self.first}: firmware: watchdog")
        for messages, expected in ((failure, ("its firmware failed: watchdog",)), (failure + marked(self.first), ())):
            log.write_bytes(messages)
            self.assertEqual(expected, self.device().health)
            self.assertEqual((), self.device(self.second).health)
