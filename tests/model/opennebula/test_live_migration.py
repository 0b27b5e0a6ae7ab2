# SPDX-License-Identifier: Apache-2.0
"""Migrate a VM between two nodes while it runs, and kill either of them at each step: with both drivers.

Both nodes see one datastore. oned has the VM on its source unless the action succeeds. Whatever happens, it runs once,
nothing that it wrote is lost, and monitoring and a resume bring it back.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import testtools

from containerhost.engines.capabilities import ChangesOffer
from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec
from containerhost.errors import ContainerHostError
from lxdone.root import root_state
from lxdone.vmm import Vmm as LxdVmm
from onedock import imageref, rootowner
from onedock.vmm import Vmm
from onedriver.actions import Call
from onedriver.errors import DriverError
from onedriver.node import vmlock
from onedriver.vm import MIB, Vm
from tests.model.opennebula.docker import DockerNode
from tests.model.opennebula.engine import DockerImages, Killed, image_id
from tests.model.opennebula.lxd import LxdNode
from tests.model.opennebula.node import outcome
from tests.model.opennebula.world import ROOT, VOLATILE, volatile
from tests.unit.lxdone.machines import machine

OWN = "one-1"
ADDRESS = "https://192.0.2.1:8443"
MIGRATE, RESUME, CLEANUP, TERMINATE, UNDEPLOY, POWEROFF = 4, 20, 23, 12, 29, 18  # LCM states


class Transfers:
    """Move the containers of an engine in memory. What an offer has is in its configuration."""

    def __init__(self, node: LxdNode) -> None:
        self._engine = node.engine
        self._taken = node.snapshots
        self.pool_type: str | None = "btrfs"

    def offer_changes(self, name: str, address: str) -> ChangesOffer | None:
        self._engine._called("offer", name)
        if self.pool_type is None:
            return None
        content = str(self._engine.content[name])
        return ChangesOffer(name=name, operation=f"{address}/1.0/operations/1", certificate="", secrets={},
                            config={"content": content}, architecture="", pool_type=self.pool_type)

    def withdraw(self, name: str) -> None:
        self._engine._called("withdraw", name)

    def takes_changes(self, spec: ContainerSpec, offer: ChangesOffer) -> bool:
        self._engine._called("pool")
        return offer.pool_type == "btrfs"

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        assert refresh == (spec.name in self._engine.specs), "it is fetched twice, or was lost"
        self._engine.specs.setdefault(spec.name, spec)  # what fails leaves something
        self._engine.statuses.setdefault(spec.name, Status.STOPPED)
        self._engine.content[spec.name] = -1
        self._engine._called("fetch", spec.name)
        self._engine.content[spec.name] = int(offer.config["content"])

    def drop_snapshots(self, name: str) -> None:
        self._engine._called("drop", name)


class Cloud:
    """Two nodes with one datastore, and a VM that runs on the first.

    :cvar own: what the VM's template says
    :cvar saves: LCM state of an end after which the VM's disk is complete
    :ivar kept: the last of the VM's writes
    :ivar between: is called while the destination is asked to start the VM, before it does
    """

    own = {"LXD_LIVE_MIGRATION": "restart"}  # noqa: RUF012
    saves = 6
    node_class: Any = LxdNode

    def __init__(self, further: bool = True) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="model-"))
        self._installed, self._acting = contextlib.ExitStack(), None
        self.nodes = {name: self.node_class(self.directory / name, {}) for name in ("node1", "node2")}
        self.source, self.there = self.nodes.values()
        for node in self.nodes.values():
            node.datastores, node.connect = self.source.datastores, self.connect
            node.options = dataclasses.replace(node.options, datastores=str(node.datastores))
            self.prepare(node)
        self.between: Callable[[], object] = lambda: None
        self.plan: list[tuple[int, str]] = []  # of the destination
        self.passed, self.kept = 0, 0
        vm = machine()
        nic = vm.nics[0]._replace(target=f"{OWN}-0")
        disks = (vm.disks[ROOT], volatile(VOLATILE)) if further else (vm.disks[ROOT],)
        self.vm = vm._replace(id=1, lcm_state=2, deploy_id="", pcis=(), nics=(nic,), graphics={}, disks=disks,
                              system_ds=0, memory=512 * MIB, vcpu=1, cpu=100, snapshots=frozenset(),
                              own=self.own)
        self.source.transfer(self.vm)
        self.act(self.source, "deploy", 2)
        self.write()

    def prepare(self, node: Any) -> None:
        node.options = dataclasses.replace(node.options, migration_address=ADDRESS, migration_peers=(ADDRESS,))
        node.transfers = Transfers(node)

    def name_node(self, name: str) -> Any:
        """Return a patch of the driver's module that reads the node's name."""
        return mock.patch.object(root_state, "os", SimpleNamespace(
            fstat=os.fstat, uname=lambda: SimpleNamespace(nodename=name)))

    def close(self) -> None:
        self._installed.close()
        shutil.rmtree(self.directory)

    @contextlib.contextmanager
    def on(self, node: Any) -> Iterator[None]:
        """Let the modules of the driver be this node's."""
        before = self._acting
        self._install(node)
        try:
            yield
        finally:
            self._install(before)

    def _install(self, node: Any) -> None:
        self._installed.close()
        self._acting = node
        if node is not None:
            node.install(self._installed)
            self._installed.enter_context(self.name_node(self.name(node)))

    def write(self) -> None:
        """Let the VM write where it runs."""
        (node,) = self.running()
        self.kept += 1
        node.engine.content[OWN] = self.kept

    def running(self) -> list[Any]:
        return [node for node in self.nodes.values() if node.engine.statuses.get(OWN) is Status.RUNNING]

    def act(self, node: Any, action: str, lcm: int, plan: Any = (), **arguments: str) -> tuple[str, Any]:
        vm: Vm = self.vm._replace(lcm_state=lcm, deploy_id="" if action == "deploy" else OWN)
        with self.on(node):
            return outcome(node, plan, lambda: node.act(Call(action, arguments, 1, "host", vm)))

    def migrate(self, plan: Any = ()) -> tuple[str, Any]:
        return self.act(self.source, "migrate", MIGRATE, plan, destination=self.name(self.there),
                        source=self.name(self.source))

    def name(self, node: Any) -> str:
        return next(name for name, each in self.nodes.items() if each is node)

    @contextlib.contextmanager
    def connect(self, call: Call) -> Iterator[Any]:
        """Run the destination's process in the same thread."""
        there, cloud = self.there, self
        process = contextlib.ExitStack()
        there.process.begin(self.plan)

        def ended(error: BaseException) -> DriverError:
            with cloud.on(there), contextlib.suppress(Killed, DriverError, ContainerHostError):
                process.__exit__(type(error), error, error.__traceback__)
            there.process.begin(())
            return DriverError(f"node2: {error!r}")

        def ask(request: Callable[[], object]) -> Any:
            with cloud.on(there):
                try:
                    return request()
                except (Killed, DriverError, ContainerHostError) as error:
                    failure = error
            raise ended(failure)

        def begin() -> Any:
            process.enter_context(vmlock.held(there.state, 1, 0))
            return process.enter_context(there.vmm().arriving(call, cloud.name(cloud.source)))

        arrival = ask(begin)

        class Destination:
            node = cloud.name(there)

            def fetch_changes(self, offer: ChangesOffer) -> None:
                self.fetch({"offer": dataclasses.asdict(offer)})

            def fetch(self, request: Any) -> None:
                ask(lambda: arrival.fetch(request))
                if cloud.running() == [cloud.source]:
                    cloud.write()

            def start(self) -> None:
                cloud.between()
                ask(arrival.start)
                process.close()
                cloud.passed = len(there.process.steps)
                there.process.begin(())

        try:
            yield Destination()
        finally:
            ended(DriverError("the source is gone"))

    def monitor(self) -> None:
        for _ in range(3):
            for node in self.nodes.values():
                with self.on(node):
                    result, printed = outcome(node, (), node.monitor)
                assert result == "done", f"monitoring failed: {printed}"
                self.holds()

    def holds(self) -> None:
        assert len(self.running()) <= 1, "it runs twice"
        found = max(node.content(1) for node in self.nodes.values())
        assert found >= self.kept, f"it wrote {self.kept}, and there is {found}"

    def brought_back(self, node: Any) -> None:
        """Let it run again: where OpenNebula has it, or where the driver says that it is."""
        self.monitor()
        if not self.running():
            result, error = self.act(node, "deploy", RESUME)
            if result != "done":
                assert "node2" in str(error), error
                result, error = self.act(self.there, "deploy", RESUME)
            assert result == "done", error
        self.holds()
        (runs,) = self.running()
        assert runs.engine.content[OWN] == self.kept, f"{runs.engine.content[OWN]} runs, and {self.kept} was written"
        self.write()
        result, error = self.act(runs, "shutdown", self.saves)
        assert result == "done", error
        assert runs.content_of_disk(1) == self.kept, "its disk lacks something"
        self.monitor()
        self.kept = -1
        for each in self.nodes.values():
            self.act(each, "cancel", CLEANUP)
        self.source.remove_disks(1)
        self.monitor()
        for each in self.nodes.values():
            left = {what: found for what, found in each.left().items() if found}
            assert not left, f"left: {left}"


class DockerCloud(Cloud):
    own = {"DOCKER_LIVE_MIGRATION": "restart"}  # noqa: RUF012
    saves = 29
    node_class = DockerNode

    def prepare(self, node: Any) -> None:
        """Do nothing: the datastore is all that the nodes need."""

    def name_node(self, name: str) -> Any:
        return mock.patch.object(rootowner, "own_node", lambda: name)


class Migrations:
    """The tests that both drivers pass."""

    cloud_class: Any

    def setUp(self: Any) -> None:
        super().setUp()  # type: ignore[misc]  # of TestCase
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def cloud(self: Any, **more: Any) -> Cloud:
        cloud = self.cloud_class(**more)
        self.addCleanup(cloud.close)
        return cloud

    def test_vm_runs_on_its_destination_with_its_last_write(self: Any) -> None:
        cloud = self.cloud()
        self.assertEqual(("done", None), cloud.migrate())
        self.assertEqual([cloud.there], cloud.running())
        self.assertEqual({}, cloud.source.engine.specs)
        cloud.brought_back(cloud.there)

    def every_step(self: Any, steps: Callable[[Cloud], int], interrupt: Callable[[Cloud, int, str], object]) -> None:
        cloud = self.cloud()
        self.assertEqual("done", cloud.migrate()[0])
        failures = []
        for fault in ("killed", "fails", "times out"):
            number = steps(cloud)
            self.assertLess(10, number)
            for step in range(number):
                tried = self.cloud_class()
                try:
                    interrupt(tried, step, fault)
                    tried.holds()
                    tried.brought_back(tried.source)
                except Exception as error:
                    failures.append(f"{fault} at step {step}: {error!r}")
                finally:
                    tried.close()
        self.assertEqual([], failures)

    def test_source_at_every_step(self: Any) -> None:
        def interrupt(cloud: Cloud, step: int, fault: str) -> None:
            result, error = cloud.migrate([(step, fault)])
            if result == "failed":
                assert cloud.running() == [cloud.source], f"{error}: it does not run on its source"
        self.every_step(lambda cloud: len(cloud.source.process.passed), interrupt)

    def test_destination_at_every_step(self: Any) -> None:
        def interrupt(cloud: Cloud, step: int, fault: str) -> None:
            cloud.plan = [(step, fault)]
            result, error = cloud.migrate()
            if result == "failed" and "is on node2" not in str(error):
                assert cloud.running() == [cloud.source], f"{error}: it does not run on its source"
        self.every_step(lambda cloud: cloud.passed, interrupt)

    def test_destination_that_starts_it_late_finds_no_offer(self: Any) -> None:
        """The source was killed, and its node brought the disk up to date, before the destination took the root."""
        cloud = self.cloud()

        def killed() -> None:
            cloud.source.process._alive = False
            raise Killed

        cloud.between = killed
        self.assertEqual("killed", cloud.migrate()[0])
        cloud.brought_back(cloud.source)

    def test_it_goes_there_and_back(self: Any) -> None:
        cloud = self.cloud()
        for _ in range(4):
            self.assertEqual(("done", None), cloud.migrate())
            cloud.source, cloud.there = cloud.there, cloud.source
            cloud.write()
            cloud.monitor()
        cloud.brought_back(cloud.source)

    def refused(self: Any, cloud: Cloud, reason: str) -> None:
        result, error = cloud.migrate()
        self.assertEqual("failed", result)
        self.assertIn(reason, str(error))
        self.assertEqual([cloud.source], cloud.running())
        self.assertEqual({}, cloud.there.engine.specs)
        cloud.brought_back(cloud.source)

    def test_refused_where_the_destination_has_another_datastore(self: Any) -> None:
        cloud = self.cloud()
        other = cloud.directory / "other/0/1"
        other.mkdir(parents=True)
        cloud.there.datastores = other.parents[1]
        cloud.there.options = dataclasses.replace(cloud.there.options, datastores=str(cloud.there.datastores))
        self.refused(cloud, "does not share the directory")



class LxdoneMigrationTest(Migrations, testtools.TestCase):
    cloud_class = Cloud

    def test_deletion_during_it_leaves_nothing_on_either_node(self) -> None:
        cloud = self.cloud()
        def deleted() -> None:
            cloud.source.remove_disks(1)
            cloud.kept = -1

        cloud.between = deleted
        result, error = cloud.migrate()
        self.assertEqual("failed", result, error)
        self.assertEqual([], cloud.running())
        cloud.monitor()
        for node in cloud.nodes.values():
            self.assertEqual({}, {what: found for what, found in node.left().items() if found})

    def test_source_that_oned_takes_for_its_node_does_not_end_it(self) -> None:
        self.addCleanup(mock.patch.stopall)
        for removed in (True, False):
            for action, lcm in (("shutdown", TERMINATE), ("shutdown", UNDEPLOY), ("shutdown", POWEROFF),
                                ("deploy", RESUME)):
                cloud, fails = self.cloud(), mock.patch.object(LxdVmm, "forget", side_effect=DriverError)
                cloud.between = (lambda: None) if removed else fails.start
                self.assertEqual(("done", None), cloud.migrate())
                mock.patch.stopall()
                cloud.vm = cloud.vm._replace(disks=(cloud.vm.disks[ROOT]._replace(save=True), *cloud.vm.disks[1:]))
                result, error = cloud.act(cloud.source, action, lcm)
                self.assertEqual(("failed", True), (result, "node2" in str(error)), f"{action} {lcm}: {error}")
                cloud.brought_back(cloud.there)

    def test_refused_without_consent_address_or_pool_with_the_remedy(self) -> None:
        cloud = self.cloud()
        cloud.vm = cloud.vm._replace(own={})
        self.refused(cloud, "LXD_LIVE_MIGRATION = restart")
        cloud = self.cloud()
        cloud.source.options = dataclasses.replace(cloud.source.options, migration_address="")
        self.refused(cloud, "migration_address")
        cloud = self.cloud()
        cloud.there.options = dataclasses.replace(cloud.there.options, migration_peers=())
        self.refused(cloud, "migration_peers")
        for pool_type in (None, "zfs"):
            cloud = self.cloud()
            cloud.source.transfers.pool_type = pool_type
            self.refused(cloud, "onevm migrate without --live")

    def test_refused_where_the_destination_has_a_container_that_may_be_newer(self) -> None:
        cloud = self.cloud()
        cloud.there.engine.specs[OWN] = cloud.source.engine.specs[OWN]
        cloud.there.engine.statuses[OWN], cloud.there.engine.content[OWN] = Status.FROZEN, 0
        with mock.patch.object(cloud.there.engine, "statuses", {OWN: Status.RUNNING}):
            result, error = cloud.migrate()
        self.assertEqual("failed", result)
        self.assertIn("may be newer", str(error))
        self.assertIn(OWN, cloud.there.engine.specs)


class OnedockMigrationTest(Migrations, testtools.TestCase):
    cloud_class = DockerCloud

    def test_refused_with_the_remedy(self) -> None:
        cloud = self.cloud()
        cloud.vm = cloud.vm._replace(own={})
        self.refused(cloud, "DOCKER_LIVE_MIGRATION = restart")
        for method, found in (("divided", None), ("times_changes", False), ("layers_of", ("sha256:1",) * 120)):
            with mock.patch.object(DockerImages, method, return_value=found):
                cloud = self.cloud()
                result, error = cloud.migrate()
            self.assertEqual("failed", result)
            self.assertIn("use onevm migrate", str(error))
            cloud.brought_back(cloud.source)

    def test_refused_where_the_destination_has_a_container_that_may_be_newer(self) -> None:
        cloud = self.cloud()
        cloud.there.engine.specs[OWN] = cloud.source.engine.specs[OWN]
        cloud.there.engine.statuses[OWN], cloud.there.engine.content[OWN] = Status.STOPPED, 0
        result, error = cloud.migrate()
        self.assertEqual("failed", result)
        self.assertIn("may be newer", str(error))
        self.assertIn(OWN, cloud.there.engine.specs)

    def lost(self, *, removed: bool) -> DockerCloud:
        """Return where oned did not learn that the VM is on node2.

        :param removed: whether its source has removed what it had of it
        """
        cloud = self.cloud()
        with contextlib.nullcontext() if removed else mock.patch.object(Vmm, "_remove_moved", side_effect=DriverError):
            self.assertEqual(("done", None), cloud.migrate())
        self.assertEqual(not removed, OWN in cloud.source.engine.specs)
        cloud.vm = cloud.vm._replace(disks=(cloud.vm.disks[ROOT]._replace(save=True), *cloud.vm.disks[1:]))
        return cloud

    def test_source_uses_nothing_that_its_destination_has(self) -> None:
        for removed in (True, False):
            for action, lcm in (("shutdown", TERMINATE), ("cancel", TERMINATE), ("shutdown", UNDEPLOY),
                                ("shutdown", POWEROFF), ("deploy", RESUME), ("reboot", 3)):
                cloud = self.lost(removed=removed)
                result, error = cloud.act(cloud.source, action, lcm)
                self.assertEqual(("failed", True), (result, "on node node2" in str(error)), f"{action} {lcm}: {error}")
                cloud.brought_back(cloud.there)
            cloud = self.lost(removed=removed)
            cloud.vm = cloud.vm._replace(disks=(cloud.vm.disks[ROOT]._replace(save=False), *cloud.vm.disks[1:]))
            self.assertIn("node2", str(cloud.act(cloud.source, "shutdown", TERMINATE)[1]))
            with cloud.on(cloud.source):
                error = self.assertRaises(DriverError, cloud.source.vmm().uses_disk, 1, 0, 1)
            self.assertIn("onedock leave", str(error))

    def test_let_leave_its_destination_it_starts_on_its_source(self) -> None:
        cloud = self.lost(removed=True)
        with cloud.on(cloud.there):
            cloud.there.engine.stop(OWN, timeout=1)
            cloud.there.leave(1)
        with cloud.on(cloud.source):
            self.assertFalse(cloud.source.vmm().uses_disk(1, 0, 1))
        self.assertEqual("done", cloud.act(cloud.source, "deploy", RESUME)[0])
        cloud.brought_back(cloud.source)

    def test_vm_without_a_root_disk_uses_others(self) -> None:
        cloud = self.cloud()
        cloud.act(cloud.source, "cancel", CLEANUP)
        cloud.source.disk(1).unlink()
        with cloud.on(cloud.source):
            self.assertFalse(cloud.source.vmm().uses_disk(1, 0, 1))

    def test_container_that_is_older_than_the_disk_overwrites_nothing(self) -> None:
        """Its node was lost, and the VM was started elsewhere from its disk, and came back."""
        cloud = self.cloud()
        self.assertEqual("done", cloud.migrate()[0])
        cloud.there.restart()
        file = cloud.source.disk(1)
        imageref.write(file, dataclasses.replace(imageref.read(file), node=None))
        self.assertEqual("done", cloud.act(cloud.source, "deploy", RESUME)[0])
        cloud.write()
        self.assertEqual("done", cloud.act(cloud.source, "shutdown", UNDEPLOY)[0])
        self.assertEqual(cloud.kept, cloud.there.content_of_disk(1))
        for action, lcm in (("deploy", RESUME), ("shutdown", UNDEPLOY)):
            result, error = cloud.act(cloud.there, action, lcm)
            self.assertEqual(("failed", True), (result, "onedock drop 1" in str(error)), error)
        with cloud.on(cloud.there):
            self.assertIn("older", str(self.assertRaises(DriverError, cloud.there.leave, 1)))
        self.assertEqual((cloud.kept, []), (cloud.there.content_of_disk(1), cloud.running()))
        with cloud.on(cloud.there):
            cloud.there.vmm().drop(1)
        self.assertEqual("done", cloud.act(cloud.there, "deploy", RESUME)[0])
        cloud.brought_back(cloud.there)

    def test_container_whose_disk_is_complete_starts_again(self) -> None:
        """It was to leave, and could not be removed."""
        cloud = self.cloud()
        for _ in range(2):
            with mock.patch.object(Vmm, "_remove", side_effect=DriverError):
                self.assertEqual("failed", cloud.act(cloud.source, "shutdown", UNDEPLOY)[0])
            self.assertEqual("done", cloud.act(cloud.source, "deploy", RESUME)[0])
            cloud.write()
        cloud.brought_back(cloud.source)

    def test_malformed_request_is_refused(self) -> None:
        image = image_id(0)
        images = self.cloud().there.vmm()._root_images
        for part in ({}, {"image": image, "base": image}, {"image": "x", "base": image, "offset": 0},
                     {"image": image, "base": image, "offset": -1}, {"image": image, "base": image, "offset": "0"}):
            self.assertIn("malformed", str(self.assertRaises(DriverError, images.fetch, 1, images.file_in(1, 0),
                                                             part)))
