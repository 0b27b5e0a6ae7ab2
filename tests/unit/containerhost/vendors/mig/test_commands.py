# SPDX-License-Identifier: Apache-2.0
"""``containerhost mig`` on emulated GPUs, whose NVML stands below pynvml."""

import json
from pathlib import Path

import fixtures
import testtools
from click.testing import CliRunner, Result

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Device, Kind, Slice
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import Inventory
from containerhost.operator.cli import main
from containerhost.privileged import Privileged
from containerhost.vendors.nvidia import nvml
from tests.fakehost.nvml import Nvml
from tests.unit.containerhost.hosts import FixedView

WHOLE, CUT, OLD = "0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0"
THREE = [(0, "1g.5gb", (1,)), (2, "2g.10gb", (1, 1)), (4, "3g.20gb", (3,))]
GPUS = {WHOLE: None, CUT: [(number, *one) for number, one in enumerate(THREE, 1)], OLD: None}
SERVER = Consumer("nova", "lxd", "c1", "uuid-1")


class MigCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.nvml = self.useFixture(Nvml(GPUS))
        self.nvml.gpu(OLD).can_mig = False
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = AllocationStore(self.directory / "owners")
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.mig.cli.scan", self.inventory))

    def inventory(self) -> Inventory:
        """As sysfs and /proc show it."""
        def device(address: str, **more: object) -> Device:
            return Device(address, address, Kind.GPU, "10de", "20b0", "030200", "nvidia",
                          **more)  # type: ignore[arg-type]

        parts = [Device(f"{gpu.address}/gi{gi}/ci{ci}", gpu.address, Kind.GPU_SLICE, "10de", "20b0", "030200", "nvidia",
                        parent=gpu.address, slice=Slice(gi, ci)) for gpu in self.nvml.gpus for gi, ci in gpu.pairs()]
        return Inventory((*(device(gpu.address) for gpu in self.nvml.gpus), *parts))

    def hold(self, name: str) -> None:
        inventory = self.inventory()
        self.store.claim([inventory.get(name)], SERVER, inventory.related)

    def run_command(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["mig", *words, "--owners", str(self.directory / "owners")])

    def apply(self, text: str, *options: str, status: int = 0) -> str:
        file = self.directory / "gpus.yaml"
        file.write_text(text)
        result = self.run_command("apply", str(file), *options)
        self.assertEqual(status, result.exit_code, result.output)
        return result.output


class ShowTest(MigCase):
    def test_people(self) -> None:
        self.hold(f"{CUT}/gi2/ci1")
        shown = self.run_command("show").output
        for words in (f"{WHOLE} NVIDIA A100-SXM4-40GB: MIG mode off", f"{OLD} NVIDIA A100-SXM4-40GB: cannot be cut",
                      "3g.20gb    3               20096  2     0     0-3 4-7",
                      f"{CUT}/gi2/ci1  1c.2g.10gb  2-3    lxd/c1"):
            self.assertIn(words, shown)

    def test_programs(self) -> None:
        self.hold(f"{CUT}/gi1/ci0")
        whole, found, old = json.loads(self.run_command("show", "--json").output)
        self.assertEqual((True, True, 7), (found["mig"], found["enabled"], len(found["profiles"])))
        self.assertEqual(["1g.5gb", "1c.2g.10gb", "1c.2g.10gb", "3g.20gb"], [one["profile"] for one in found["slices"]])
        self.assertEqual([str(SERVER), None, None, None], [one["owner"] for one in found["slices"]])
        self.assertEqual((True, False, []), (whole["mig"], whole["enabled"], whole["profiles"][0]["placements"]))
        self.assertEqual((False, []), (old["mig"], old["profiles"]))

    def test_the_inventory_is_told_the_same(self) -> None:
        slices = nvml.query()[CUT].slices
        self.assertEqual({(1, 0): "1g.5gb", (2, 0): "1c.2g.10gb", (2, 1): "1c.2g.10gb", (3, 0): "3g.20gb"},
                         {key: one.profile for key, one in slices.items()})

    def test_a_library_that_lacks_a_function(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(
            "tests.fakehost.nvml.Nvml._nvmlDeviceGetGpuInstanceRemainingCapacity", None))
        _, found, _ = json.loads(self.run_command("show", "--json").output)
        self.assertEqual(({None}, 4), ({profile["free"] for profile in found["profiles"]}, len(found["slices"])))

    def test_a_library_that_fails(self) -> None:
        self.nvml.failing["nvmlDeviceGetCount_v2"] = 0
        result = self.run_command("show")
        self.assertEqual(1, result.exit_code)
        self.assertIn("NVML cannot read how the GPUs are partitioned", result.output)


class ApplyTest(MigCase):
    def assert_unchanged(self) -> None:
        self.assertEqual((THREE, [], False), (self.nvml.cut(CUT), self.nvml.cut(WHOLE), self.nvml.gpu(WHOLE).enabled))
        self.assertEqual([], [name for name, record in self.store.records().items() if record.consumer != SERVER])

    def test_only_what_differs(self) -> None:
        text = f"{WHOLE}: [4g.20gb, 1g.5gb, 1c.2g.10gb]\n{CUT}: [1g.5gb, 1g.5gb, 3g.20gb, 1c.2g.10gb, 1c.2g.10gb]\n"
        planned = self.apply(text, "--dry-run")
        self.assert_unchanged()
        self.assertEqual(planned, self.apply(text))
        self.assertEqual([(0, "4g.20gb", (4,)), (4, "2g.10gb", (1,)), (6, "1g.5gb", (1,))], self.nvml.cut(WHOLE))
        self.assertEqual(sorted([*THREE, (1, "1g.5gb", (1,))]), self.nvml.cut(CUT))
        self.assertIn("make GPU instance 1g.5gb at 1", planned)
        self.assertEqual({}, self.store.records())
        self.nvml.calls.clear()
        self.assertEqual(f"{WHOLE}: as wanted, nothing to do\n{CUT}: as wanted, nothing to do\n", self.apply(text))
        self.assertEqual([], [name for name in self.nvml.calls if "Create" in name or "Destroy" in name])

    def test_whole_again(self) -> None:
        self.assertIn("turn MIG mode off", self.apply(f"{CUT}: []"))
        self.assertEqual(([], False), (self.nvml.cut(CUT), self.nvml.gpu(CUT).enabled))

    def test_what_is_held_is_refused_or_left_alone(self) -> None:
        self.hold(f"{CUT}/gi3/ci0")
        for text, words in ((f"{WHOLE}: [1g.5gb]\n{CUT}: [1g.5gb]", "gi3/ci0 would be removed"),
                            (f"{CUT}: []", "would be removed")):
            self.assertIn(words, self.apply(text, status=1))
            self.assert_unchanged()
        self.apply(f"{CUT}: [3g.20gb]")
        self.assertEqual([(4, "3g.20gb", (3,))], self.nvml.cut(CUT))
        self.assertEqual([f"{CUT}/gi3/ci0"], list(self.store.records()))
        self.hold(WHOLE)
        self.assertIn("allocated as a whole", self.apply(f"{WHOLE}: [1g.5gb]", status=1))

    def test_bad_files_change_nothing(self) -> None:
        for text, words in (
                ("0000:99:00.0: [1g.5gb]", "does not know GPU 0000:99:00.0"), (f"{OLD}: [1g.5gb]", "cannot be "
                                                                                                   "partitioned"),
                (f"{WHOLE}: [1g.5gb]\n{CUT}: [9g.5gb]", "is not a profile"),
                (f"{WHOLE}: [1g.5gb]\n{CUT}: [1g.6gb]", "1g.6gb"),
                (f"{WHOLE}: {{a: b}}", "not a list of profiles"), (f"{CUT}: [4g.20gb, 4g.20gb]", "compute slices")):
            with self.subTest(text):
                self.assertIn(words, self.apply(text, status=1))
                self.assert_unchanged()

    def test_any_step_that_fails_is_taken_back(self) -> None:
        text = f"{WHOLE}: [3g.20gb, 1c.2g.10gb, 1c.2g.10gb]\n{CUT}: [7g.40gb]\n"
        steps = ("nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance",
                 "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceCreateGpuInstanceWithPlacement")
        failed = 0
        for name in steps:
            for after in range(4):
                with self.subTest(f"{name} {after}"):
                    self.nvml.failing = {name: after}
                    result = self.run_command("apply", str(self._file(text)))
                    if not self.nvml.failing:
                        failed += 1
                        self.assertEqual(1, result.exit_code, result.output)
                        self.assertIn("NVML cannot", result.output)
                        self.assert_unchanged()
                    else:
                        self.nvml.failing = {}
                        self._as_before()
        self.assertGreater(failed, 8)

    def _file(self, text: str) -> Path:
        file = self.directory / "gpus.yaml"
        file.write_text(text)
        return file

    def _as_before(self) -> None:
        self.nvml.gpus[:] = Nvml(GPUS).gpus
        self.nvml.gpu(OLD).can_mig = False

    def test_a_slice_that_a_process_uses(self) -> None:
        """NVML refuses; what went before comes back."""
        self.nvml.gpu(CUT).instances[1].parts[1].used = True
        self.assertIn("In use by another client", self.apply(f"{CUT}: []", status=1).replace("\n", " "))
        self.assertEqual([(0, "1g.5gb", (1,)), (2, "2g.10gb", (1, 1)), (4, "3g.20gb", (3,))], self.nvml.cut(CUT))

    def test_a_mode_that_needs_a_reset(self) -> None:
        self.nvml.gpu(WHOLE).needs_reset = True
        self.assertIn("only at the GPU's next reset", self.apply(f"{WHOLE}: [1g.5gb]", status=1))
        self.assert_unchanged()
        self.assertFalse(self.nvml.gpu(WHOLE).pending)

    def test_after_a_kill_the_next_run_ends_it(self) -> None:
        """Test a run after one that was killed, which left the operator's claim and half of the work."""
        self.leave_claim()
        self.nvml.gpu(CUT).instances.pop()
        self.apply(f"{CUT}: [1g.5gb, 3g.20gb]")
        self.assertEqual([(0, "1g.5gb", (1,)), (4, "3g.20gb", (3,))], self.nvml.cut(CUT))
        self.assertEqual({}, self.store.records())

    def test_after_a_kill_a_file_that_is_refused_ends_the_claim(self) -> None:
        self.leave_claim()
        self.hold(f"{WHOLE}")
        self.assertIn("is allocated as a whole", self.apply(f"{WHOLE}: [1g.5gb]", status=1))
        self.assertEqual({WHOLE}, set(self.store.records()))

    def test_scrub_after_a_kill_names_the_command_to_repeat(self) -> None:
        self.leave_claim()
        repair = DeviceAllocator(self.store, lambda: FixedView(self.inventory()), Privileged()).repair
        self.assertIn("an interrupted `containerhost mig apply` holds it: repeat that",
                      str(self.assertRaises(DeviceHeld, repair.clean, CUT)))

    def test_gpu_of_which_a_share_is_held_is_not_cut(self) -> None:
        share = Device(f"{WHOLE}/share0", WHOLE, Kind.GPU_SHARE, "10de", "20b0", "030200", "nvidia", parent=WHOLE)
        self.store.claim([share], SERVER, lambda device: ())
        self.assertIn("is allocated as a whole", self.apply(f"{WHOLE}: [1g.5gb]", status=1))
        self.assert_unchanged()

    def test_gpu_that_is_claimed_after_the_plan_is_not_cut(self) -> None:
        def claimed() -> Inventory:
            self.hold(WHOLE)
            return self.inventory()

        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.mig.cli.scan", claimed))
        self.assertIn(f"{SERVER} holds {WHOLE}", self.apply(f"{WHOLE}: [1g.5gb]", status=1))
        self.assert_unchanged()

    def test_environment_names_the_records(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("CONTAINERHOST_OWNERS", str(self.directory / "owners")))
        self.hold(f"{CUT}/gi1/ci0")
        file = self.directory / "gpus.yaml"
        file.write_text(f"{CUT}: []\n")
        refused = CliRunner().invoke(main, ["mig", "apply", str(file)])
        self.assertIn(f"{CUT}/gi1/ci0 would be removed, but is allocated", refused.output)
        self.assert_unchanged()
        self.assertIn("lxd/c1", CliRunner().invoke(main, ["mig"]).output)

    def leave_claim(self) -> None:
        inventory = self.inventory()
        self.store.claim([inventory.get(CUT)], Consumer("containerhost", "host", "mig-apply", "mig-apply"),
                         inventory.related)
