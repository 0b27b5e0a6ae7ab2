# SPDX-License-Identifier: Apache-2.0
import errno
import pathlib

import fixtures
import testtools

from containerhost.devices.health import kernellog
from containerhost.devices.health.rules import WELL, health_of
from containerhost.vendors.kernellog import drivers
from containerhost.vendors.nvidia.xids import Xid, xid_findings
from tests.fakehost import description, functions, tree
from tests.fakehost.entries import Action, Writer
from tests.fakehost.interfaces import Interfaces
from tests.fakehost.machine import Machine
from tests.unit.fakehost import MEMORY

GPU, OTHER = "0000:3b:00.0", "0000:af:00.0"


class TestGpus(testtools.TestCase):
    """Test what needs no interfaces, and so no privileges; the rest is in tests/functional/test_fakehost.py."""

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        present = [each for each in functions.functions(description.load("small")) if each.address in (GPU, OTHER)]
        self.machine = Machine(Writer(self.root), Interfaces("/sys", "/sys"))
        self.machine.start(present)
        self.everything = self.files()

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def refuse(self, number: int, function, *arguments) -> None:
        before = self.files()
        error = self.assertRaises(OSError, function, *arguments)
        self.assertEqual(number, error.errno)
        self.assertEqual(before, self.files())

    def test_a_removed_function_leaves_no_trace_and_comes_back_whole(self):
        self.machine.remove(GPU)
        self.assertEqual([], [path for path in self.files() if GPU in path or path.endswith(("nvidia0", "card0"))])
        self.assertIn("dev/nvidia1", self.files())
        self.machine.restore(GPU)
        self.assertEqual(self.everything, self.files())

    def test_a_fallen_card_stays_on_the_bus(self):
        self.machine.set_fallen(GPU, True)
        self.assertEqual(b"\xff" * 64, (self.root / f"sys/bus/pci/devices/{GPU}/config").read_bytes())
        self.assertEqual(
            {f"proc/driver/nvidia/gpus/{GPU}", f"proc/driver/nvidia/gpus/{GPU}/information"},
            self.everything - self.files(),
        )
        self.refuse(errno.ENOTTY, self.machine.reset, GPU)
        self.machine.set_fallen(GPU, False)
        self.assertEqual(self.everything, self.files())

    def test_nodes_can_be_missing(self):
        self.machine.set_nodes(GPU, False)
        self.assertIn(f"proc/driver/nvidia/gpus/{GPU}/information", self.files())
        self.assertNotIn("dev/nvidia0", self.files())

    def test_drivers_bind_as_the_kernel_has_it(self):
        self.machine.unbind(GPU, "nvidia")
        self.assertNotIn(f"sys/bus/pci/drivers/nvidia/{GPU}", self.files())
        self.refuse(errno.ENODEV, self.machine.unbind, GPU, "nvidia")
        self.refuse(errno.ENODEV, self.machine.bind, GPU, "amdgpu")
        self.machine.bind(GPU, "nvidia")
        self.assertEqual(self.everything, self.files())
        self.refuse(errno.EBUSY, self.machine.bind, GPU, "nvidia")
        self.machine.bind(GPU)  # drivers_probe of what has a driver does nothing

    def test_resets_are_counted(self):
        reset = Action("", "reset", GPU)
        self.machine.write_action(reset, "1\n")
        self.machine.write_action(reset, "1\n")
        self.assertEqual([GPU, GPU], self.machine.resets())

    def test_its_link_is_told(self):
        self.machine.set_pci_link(GPU, lanes=8, fatal=2)
        self.machine.set_pci_link(GPU, nonfatal=1)
        directory = self.root / f"sys/bus/pci/devices/{GPU}"
        self.assertEqual(("8\n", "16\n"), tuple((directory / name).read_text() for name in (
            "current_link_width", "max_link_width")))
        self.assertIn("TOTAL_ERR_FATAL 2\n", (directory / "aer_dev_fatal").read_text())
        self.assertIn("TOTAL_ERR_NONFATAL 1\n", (directory / "aer_dev_nonfatal").read_text())

    def test_the_kernels_log_tells_who_wrote(self):
        attribute = self.machine.kernel_log.attribute()
        self.machine.say("NVRM: Xid (PCI:0000:3b:00): 48, \n")
        attribute.write(kernellog.mark(OTHER, {"aer_dev_fatal": 1}))
        attribute.write("NVRM: Xid (PCI:0000:af:00): 79,\n")
        reader = kernellog.Reader(drivers())
        reader.take(attribute.read().encode())
        log = reader.log()
        self.assertEqual((health_of(xid_findings([Xid(48)])), WELL, {"aer_dev_fatal": 1}),
                         (log.health(GPU), log.health(OTHER), log.counted(OTHER)))

    def test_what_is_not_there_is_refused(self):
        for function in (self.machine.remove, self.machine.restore, self.machine.bind, self.machine.unbind):
            self.refuse(errno.ENODEV, function, "0000:00:1f.0")
        self.refuse(errno.EINVAL, self.machine.set_link, GPU, False)
        self.refuse(errno.EINVAL, self.machine.set_num_vfs, GPU, 1)

    def test_the_tree_is_what_a_description_of_that_state_gives(self):
        self.machine.remove(OTHER)
        expected = pathlib.Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        Writer(expected).write(tree.function_entries(functions.functions(description.load("small"))[0]))
        self.assertEqual({str(path.relative_to(expected)) for path in expected.rglob("*")}, self.files())
