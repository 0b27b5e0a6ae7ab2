# SPDX-License-Identifier: Apache-2.0
"""Test the parts of `containerhost selftest` that need no engine."""

import ctypes
import io
import pathlib
import tarfile
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.devices.findings import Finding
from containerhost.engines import local
from containerhost.inventory.scan import HostView
from containerhost.operator import doctor
from containerhost.operator.selftest import cli, rootimage
from containerhost.vendors.nvidia import computation
from containerhost.vendors.nvidia.vendor import Nvidia
from tests.unit.containerhost.allocation.allocatorcase import AllocatorTestCase, Marking, consumer
from tests.unit.containerhost.inventory import test_taints
from tests.unit.containerhost.inventory.test_taints import GPU


class RootImageTest(testtools.TestCase):
    def host(self, *links: str) -> pathlib.Path:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for name in ("bin", "lib", "usr/bin", "usr/lib"):
            if name in links:
                (root / name).symlink_to(f"usr/{name}")
            else:
                (root / name).mkdir(parents=True)
        return root

    def content(self, root: pathlib.Path) -> dict[str, str]:
        with tarfile.open(fileobj=io.BytesIO(rootimage.tarball(root))) as archive:
            return {member.name: member.linkname or ("/" if member.isdir() else "file") for member in archive}

    def test_programs_below_usr_are_links(self) -> None:
        root = self.host("bin", "lib")
        found = self.content(root)
        self.assertEqual(("usr/bin", "usr/lib", "/", "file"), (found["bin"], found["lib"], found["usr"],
                                                              found["sbin/init"]))
        self.assertEqual(["/usr"], [mount.target for mount in rootimage.mounts(root)])

    def test_programs_in_directories_of_their_own_are_mounted(self) -> None:
        root = self.host("lib")
        self.assertEqual("/", self.content(root)["bin"])
        self.assertEqual(["/usr", "/bin"], [mount.target for mount in rootimage.mounts(root)])

    def test_what_programs_need_outside_usr_is_found(self) -> None:
        root = self.host("bin", "lib")
        for name in ("opt", "etc/alternatives", "etc/libibverbs.d"):
            self.assertNotIn(name, self.content(root))
            (root / name).mkdir(parents=True)
            self.assertEqual("/", self.content(root)[name])
        self.assertEqual([("opt", "/opt"), ("etc-alternatives", "/etc/alternatives"),
                          ("etc-libibverbs", "/etc/libibverbs.d")],
                         [(mount.name, mount.target) for mount in rootimage.mounts(root)[1:]])

    def test_nothing_of_it_can_be_changed(self) -> None:
        self.assertTrue(all(mount.read_only for mount in rootimage.mounts(self.host())))

    def test_same_host_gives_same_image(self) -> None:
        root = self.host("bin")
        self.assertEqual(rootimage.tarball(root), rootimage.tarball(root))


class FreeTest(AllocatorTestCase):
    def free(self, *gpus: str, functions: tuple[str, ...] = ()) -> tuple[str, ...]:
        return cli.free(self.store, self.host, gpus, functions)

    def test_chooses_a_gpu_and_a_function(self) -> None:
        first, second = self.free()
        self.assertIn(first, [device.id for device in self.gpus])
        self.assertIn(second, [device.id for device in self.vfs])

    def test_refuses_what_a_container_has(self) -> None:
        self.acquire("anna", self.gpus[0].id)
        self.assertNotIn(self.gpus[0].id, self.free())
        refused = self.assertRaises(errors.NoPlacement, self.free, self.gpus[0].id)
        self.assertIn("anna", str(refused))
        self.assertEqual((self.gpus[1].id,), self.free(self.gpus[1].id))

    def test_refuses_what_the_host_uses(self) -> None:
        refused = self.assertRaises(errors.NoPlacement, self.free, functions=(str(self.vfs[0].parent),))
        self.assertIn("virtual functions are enabled", str(refused))

    def test_refuses_a_device_of_the_other_kind(self) -> None:
        for wanted in ({"functions": (self.gpus[0].id,)}, {"functions": (self.vfs[0].id, self.gpus[0].id)}):
            refused = self.assertRaises(errors.NoPlacement, self.free, **wanted)
            self.assertIn(f"{self.gpus[0].id} is not a network function", str(refused))
        refused = self.assertRaises(errors.NoPlacement, self.free, self.vfs[0].id)
        self.assertIn(f"{self.vfs[0].id} is not a GPU", str(refused))

    def test_device_named_twice_is_used_once(self) -> None:
        self.assertEqual((self.gpus[0].id,), self.free(self.gpus[0].id, self.gpus[0].id.upper()))

    def test_refuses_where_nothing_is_free(self) -> None:
        self.acquire("anna", *(device.id for device in (*self.gpus, *self.vfs)))
        self.assertRaises(errors.NoPlacement, self.free)


class PairTest(AllocatorTestCase):
    def pair(self, *wanted: str) -> tuple[str, ...]:
        return cli.free_pair(self.store, self.host, wanted)

    def test_two_of_one_card_are_chosen(self) -> None:
        self.assertEqual(1, len({device.parent for device in self.vfs if device.id in self.pair()}))
        self.assertEqual(2, len(set(self.pair(self.vfs[0].id, self.vfs[0].id))))
        self.acquire("anna", self.vfs[0].id)
        self.assertNotIn(self.vfs[0].parent, [device.parent for device in self.vfs if device.id in self.pair()])

    def test_those_that_are_named_must_be_free(self) -> None:
        first, *_, last = (device.id for device in self.vfs)
        self.assertEqual((first, last), self.pair(first, last))
        self.acquire("anna", last)
        self.assertRaises(errors.NoPlacement, self.pair, first, last)

    def test_host_without_two_is_refused(self) -> None:
        self.acquire("anna", *(device.id for device in self.vfs[1:]))
        self.assertRaises(errors.NoPlacement, self.pair)


class TaintedTest(test_taints.TaintCase):
    def free(self, *gpus: str) -> tuple[str, ...]:
        return cli.free(self.store, self.host, gpus, ())

    def test_doctor_passes_over_the_taint_of_a_device_that_is_tested(self) -> None:
        self.run_command("taint", GPU, "--reason", "fan was replaced")

        def tainted(*tested: str) -> list[Finding]:
            return [found for found in doctor.findings(doctor.collect(self.host, self.store.directory, tested))
                    if "fan was replaced" in str(found)]

        self.assertEqual((1, 0), (len(tainted()), len(tainted(GPU))))

    def test_tainted_device_is_taken_by_name_alone(self) -> None:
        self.run_command("drain", GPU, "--reason", "fan was replaced", "--timeout", "0")
        self.assertNotIn(GPU, self.free())
        self.assertEqual((GPU,), self.free(GPU))
        self.tree.path("/dev/nvidia0").unlink()
        self.assertRaises(errors.NoPlacement, self.free, GPU)

    def test_part_of_what_is_tainted_is_refused(self) -> None:
        self.run_command("taint", test_taints.CUT, "--reason", "x")
        self.assertRaises(errors.NoPlacement, self.free, test_taints.SLICE)

    def test_view_of_the_test_alone_gives_it(self) -> None:
        self.run_command("taint", GPU, "--reason", "x")
        self.assertRaises(errors.DeviceUnhealthy, self.allocator.acquire, [Request(GPU)], consumer("one"))
        own = DeviceAllocator(self.store, lambda: HostView(self.host, untainted=(GPU,)), Marking(self.tree),
                              host=self.host)
        own.acquire([Request(GPU)], consumer("one"))
        self.assertEqual((), own.release(consumer("one")))
        self.assertEqual({GPU}, self.sick())


class Cuda:
    """The driver's library in memory.

    :ivar calls: what was called
    """

    def __init__(self, fail: str = "", word: int | None = None) -> None:
        self.calls: list[str] = []
        self._fail = fail
        self._word = word

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuMemsetD32_v2" and self._word is None:
                self._word = arguments[1].value
            if name == "cuMemcpyDtoH_v2":
                target, _, size = arguments
                word = (self._word or 0).to_bytes(4, "little")
                ctypes.memmove(target, word * (size.value // 4), size.value)
            return 700 if name == self._fail else 0
        return call


class ComputationTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.computation.SIZE", 4 << 20))
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.computation.PIECE", 1 << 20))

    def test_computes_and_frees_what_it_took(self) -> None:
        cuda = Cuda()
        self.assertEqual(0, computation.compute(cuda))
        self.assertEqual((4, ["cuMemFree_v2", "cuCtxDestroy_v2"]),
                         (cuda.calls.count("cuMemcpyDtoH_v2"), cuda.calls[-2:]))

    def test_wrong_content_and_errors_of_the_library_fail(self) -> None:
        for cuda in (Cuda(word=7), Cuda(fail="cuMemAlloc_v2"), Cuda(fail="cuInit")):
            error = self.assertRaises(SystemExit, computation.compute, cuda)
            self.assertNotIn(error.code, (0, computation.ABSENT))

    def test_no_library_is_no_success(self) -> None:
        with mock.patch.object(ctypes, "CDLL", side_effect=OSError("libcuda.so.1: no such file")):
            self.assertEqual(computation.ABSENT, computation.main())

    def test_plug_in_brings_the_program(self) -> None:
        compile(Nvidia.computation(), "computation", "exec")


class EngineTest(testtools.TestCase):
    def test_no_engine_has_a_line_for_each_and_incus_has_its_own_directory(self) -> None:
        for name in ("LXD_DIR", "INCUS_DIR", "DOCKER_HOST"):
            self.useFixture(fixtures.EnvironmentVariable(name, f"/nonexistent/{name}"))
        self.useFixture(fixtures.EnvironmentVariable("DOCKER_HOST", "unix:///nonexistent/docker.sock"))
        settings = local.Settings("", "", pathlib.Path("/nonexistent"), pathlib.Path("/nonexistent"))
        error = self.assertRaises(errors.EngineUnavailable, cli._engine, None, settings)
        lines = str(error).splitlines()
        self.assertEqual(4, len(lines), lines)
        self.assertIn("/nonexistent/INCUS_DIR/unix.socket", lines[2])
