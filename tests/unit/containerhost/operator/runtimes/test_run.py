# SPDX-License-Identifier: Apache-2.0
"""Devices are translated for each runtime; what cannot have them is refused before anything changes."""

import dataclasses
import os
import pwd
import signal
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.allocation.store import AllocationStore
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.engines.affinity import Binding
from containerhost.errors import DeviceNotFound, NoPlacement, SpecError, UnsupportedOnHost
from containerhost.inventory import topology
from containerhost.inventory.scan import HostView, Inventory, scan
from containerhost.operator.runtimes import mpi, run
from containerhost.operator.runtimes.run import Wanted
from containerhost.vendors import make_grant
from hpcplan.affinity import Affinity
from tests.unit.containerhost.hosts import shared

GPU, OTHER, FUNCTION = "0000:3b:00.0", "0000:af:00.0", "0000:5e:00.1"
GROUP = "/containerhost-run/1"


class TranslationTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        inventory = scan(shared("small"))
        self.gpu, self.function = (make_grant(inventory.get(name), GrantOptions()) for name in (GPU, FUNCTION))

    def words(self, *command: str) -> tuple[list[str], dict[str, str]]:
        words, environment = run.translated(command, [self.gpu, self.function], GROUP)
        return words, dict(environment)

    def test_process_has_variables(self) -> None:
        words, environment = self.words("mpirun", "-n", "2", "./run")
        self.assertEqual(["mpirun", "-n", "2", "./run"], words)
        self.assertEqual((f"{GPU},{FUNCTION}", "ibs1v0", "mlx5_1"), tuple(environment[name] for name in (
            "CONTAINERHOST_DEVICES", "CONTAINERHOST_NETDEVS", "CONTAINERHOST_RDMA")))
        self.assertEqual(self.gpu.device.uuid, environment["CUDA_VISIBLE_DEVICES"])

    def test_podman_has_arguments(self) -> None:
        words, environment = self.words("/usr/bin/podman", "--log-level=info", "run", "--rm", "image", "run")
        self.assertEqual({}, environment)
        self.assertEqual(["/usr/bin/podman", "--cgroup-manager=cgroupfs", "--log-level=info", "run",
                          f"--cgroup-parent={GROUP}"], words[:5])
        self.assertEqual(["--network=host", "--rm", "image", "run"], words[-4:])
        self.assertLessEqual({"--device=/dev/nvidia0", "--device=/dev/infiniband/uverbs1",
                              f"--env=CONTAINERHOST_DEVICES={GPU},{FUNCTION}"}, set(words))
        self.assertNotIn("--device=/dev/nvidia1", words)
        self.assertNotIn("--network=host", self.words("podman", "run", "--network", "none", "image")[0])

    def test_podman_binds_cores_and_memory(self) -> None:
        words, _ = run.translated(("podman", "run", "image"), [self.gpu], GROUP,
                                  Binding(frozenset({1, 0}), frozenset({0})))
        self.assertLessEqual({"--cpuset-cpus=0,1", "--cpuset-mems=0"}, set(words))

    def test_podman_that_does_not_wait_is_refused(self) -> None:
        for command in (("podman", "run", "-d", "image"), ("podman", "run", "--detach", "image"), ("podman", "ps")):
            self.assertRaises(SpecError, self.words, *command)
        self.assertEqual(["image", "-d"], self.words("podman", "run", "image", "-d")[0][-2:])

    def test_apptainer_has_libraries_nodes_and_variables(self) -> None:
        words, environment = self.words("apptainer", "exec", "image.sif", "python")
        self.assertEqual(["apptainer", "exec", "--nv", "--bind=/dev/nvidia0"], words[:4])
        self.assertEqual(["image.sif", "python"], words[-2:])
        self.assertEqual(f"{GPU},{FUNCTION}", environment["APPTAINERENV_CONTAINERHOST_DEVICES"])
        self.assertRaises(SpecError, self.words, "apptainer", "pull", "docker://alpine")

    def test_udocker_has_volumes_and_variables(self) -> None:
        words, _ = self.words("udocker", "run", "image")
        self.assertIn("--volume=/dev/infiniband/uverbs1:/dev/infiniband/uverbs1", words)
        self.assertIn("--env=CONTAINERHOST_RDMA=mlx5_1", words)
        self.assertEqual("image", words[-1])
        self.assertRaises(SpecError, self.words, "udocker", "pull", "image")

    def test_what_cannot_be_translated_changes_nothing(self) -> None:
        allocator = mock.Mock()
        allocator.reconciler.reconcile_runs.return_value = ()
        store = mock.Mock(**{"records.return_value": {}})
        runner = run.Runner(store, allocator, shared("small"))
        user = pwd.struct_passwd(("alice", "x", 1000, 1000, "", "/home/alice", "/bin/sh"))
        for command, wanted in ((("podman", "ps"), Wanted(1)), (("podman", "ps"), Wanted(1, ranks=2)),
                                (("podman", "run", "image"), Wanted(1, user=user)),
                                (("./solver", ":"), Wanted(1, ranks=2)),
                                (("./solver",), Wanted(devices=(GPU,), ranks=2))):
            self.assertRaises(SpecError, runner.run, command, wanted)
        allocator.acquire.assert_not_called()


class RankTest(testtools.TestCase):
    def test_mpirun_starts_each_rank_with_what_is_its_own(self) -> None:
        self.assertEqual(
            ["mpirun", "--hostfile", "/tmp/hosts", "--bind-to", "none",
             "-np", "1", "taskset", "--cpu-list", "0,1", "env", "A=b c", "./solver", "in",
             ":", "-np", "1", "udocker", "run", "image"],
            mpi.translate([(["./solver", "in"], {"A": "b c"}, {1, 0}), (["udocker", "run", "image"], {}, ())],
                          "/tmp/hosts"))
        self.assertEqual("localhost slots=2\n", mpi.hostfile(2))

    def test_containers_of_ranks_have_what_mpirun_gives_them(self) -> None:
        for runtime, option in (("podman", "--env-host"), ("udocker", "--hostenv")):
            words = mpi.command_of_rank((runtime, "run", "image", "run"), runtime)
            self.assertEqual([runtime, "run", option], words[:3])
            self.assertEqual(["image", "run"], words[-2:])
        self.assertEqual(["./solver"], mpi.command_of_rank(("./solver",), "process"))


class BindingTest(testtools.TestCase):
    """:ivar bound: what this process was bound to"""

    def setUp(self) -> None:
        super().setUp()
        self.host, self.bound = shared("small"), dict[str, object]()
        every = topology.read(self.host).cpus
        self.useFixture(fixtures.MonkeyPatch("os.sched_getaffinity", lambda pid: set(every)))
        self.useFixture(fixtures.MonkeyPatch("os.sched_setaffinity",
                                             lambda pid, cores: self.bound.update(cores=cores)))
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.process.memorypolicy.bind",
                                             lambda nodes: self.bound.update(nodes=nodes)))
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path))
        self.grants = [make_grant(scan(self.host).get(OTHER), GrantOptions())]

    def bind(self, wanted: Wanted, taken: frozenset[int] = frozenset()) -> Binding:
        return self.bind_ranks(wanted, [self.grants], taken)[0]

    def bind_ranks(self, wanted: Wanted, shares: list[list[Grant]], taken: frozenset[int] = frozenset()
                   ) -> list[Binding]:
        runner = run.Runner(self.store, mock.Mock(), self.host, lambda: taken)
        return runner._bound(wanted, shares)

    def test_cores_and_memory_are_near_the_devices(self) -> None:
        binding = self.bind(Wanted(1, cores=4))
        self.assertEqual({"cores": binding.cores, "nodes": {1}}, self.bound)
        self.assertEqual(4, len(binding.cores))
        self.assertLessEqual(binding.cores, topology.read(self.host).nodes[1].cpus)
        other = self.bind(Wanted(1, cores=4), binding.cores)
        self.assertEqual(set(), binding.cores & other.cores)

    def test_cores_without_memory(self) -> None:
        self.bind(Wanted(1, cores=2, affinity=Affinity.CPU))
        self.assertEqual(frozenset(), self.bound["nodes"])

    def test_ranks_have_cores_of_their_own_near_their_devices(self) -> None:
        near = [make_grant(scan(self.host).get(GPU), GrantOptions())]
        bindings = self.bind_ranks(Wanted(1, cores=4, ranks=3), [near, self.grants, self.grants])
        self.assertEqual([{0}, {1}, {1}], [binding.nodes for binding in bindings])
        self.assertEqual(12, len(frozenset().union(*(binding.cores for binding in bindings))))
        self.assertEqual({"cores": frozenset().union(*(binding.cores for binding in bindings)), "nodes": {0, 1}},
                         self.bound)

    def test_too_many_cores_are_refused(self) -> None:
        self.assertRaises(UnsupportedOnHost, self.bind, Wanted(1, cores=1000))
        self.assertEqual({}, self.bound)


class ChoiceTest(testtools.TestCase):
    def chosen(self, wanted: Wanted, *held: str, name: str = "small") -> tuple[str, ...]:
        host = shared(name)
        return run.chosen(HostView(host).inventory, host, held, wanted)

    def test_near_devices_are_chosen(self) -> None:
        self.assertEqual((GPU, FUNCTION), self.chosen(Wanted(1, 1)))
        self.assertEqual((OTHER, "0000:d8:00.1"), self.chosen(Wanted(1, 1), GPU))

    def test_devices_by_their_ids(self) -> None:
        self.assertEqual((OTHER, GPU), self.chosen(Wanted(1, devices=(OTHER,))))
        self.assertRaises(DeviceNotFound, self.chosen, Wanted(devices=("0000:99:00.0",)))

    def test_none_is_left(self) -> None:
        self.assertIn("0 GPUs", str(self.assertRaises(NoPlacement, self.chosen, Wanted(1), GPU, OTHER)))
        self.assertIn("1g.5gb", str(self.assertRaises(NoPlacement, self.chosen, Wanted(slices=("1g.5gb",)))))

    def test_nothing_asked_for_is_refused(self) -> None:
        self.assertRaises(SpecError, self.chosen, Wanted())

    def test_slices_by_their_profile(self) -> None:
        host = shared("mixed")
        profiles = {1: "1g.5gb", 2: "2g.10gb"}
        inventory = Inventory(tuple(
            dataclasses.replace(device, slice=dataclasses.replace(device.slice, profile=profiles.get(device.slice.gi)))
            if device.slice else device for device in scan(host).devices))
        wanted = Wanted(slices=("2g.10gb",))
        self.assertEqual(("0000:3c:00.0/gi2/ci0",), run.chosen(inventory, host, (), wanted))
        self.assertRaises(NoPlacement, run.chosen, inventory, host, ("0000:3c:00.0/gi2/ci0",), wanted)


class SignalsTest(testtools.TestCase):
    """A command that is to end just when it is started would run for ever, its devices with it."""

    def test_early_one_is_passed_on_when_the_command_runs(self) -> None:
        command = mock.Mock()
        with run._Signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            signals.pass_to(command)
        command.send_signal.assert_called_once_with(signal.SIGTERM)

    def test_second_sigterm_ends_the_command_and_none_its_clean_up(self) -> None:
        command = mock.Mock()
        with run._Signals() as signals:
            signals.pass_to(command)
            os.kill(os.getpid(), signal.SIGTERM)
            self.assertRaises(run._Terminated, os.kill, os.getpid(), signal.SIGTERM)
            signals.ended = True
            os.kill(os.getpid(), signal.SIGTERM)
        self.assertEqual(2, command.send_signal.call_count)
