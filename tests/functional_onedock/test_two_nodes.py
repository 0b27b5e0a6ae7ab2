# SPDX-License-Identifier: Apache-2.0
"""A VM that is off moves from one engine to another, each with its own images, state and records."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from tests.functional.lxd import memlock, mounts_below
from tests.functional_docker.dockerd import Daemon, leftovers
from tests.functional_one import writer
from tests.functional_one.test_disks import volatile
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, CLEANUP, own
from tests.functional_onedock.transfercase import TransferCase
from tests.waiting import await_that

LEAVING = 7  # LCM state of a VM that is shut down for another host (onevm migrate --poff)


class TwoNodesTest(TransferCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = Daemon()
        self.addCleanup(self.other.remove)
        self.other.start()
        base = self.node.base / "other"
        base.mkdir()
        self.state, self.owners = base / "state", base / "owners"
        (self.front.elsewhere).write_text(
            f'endpoint = "{self.other.endpoint}"\nrecords = "{self.other.records}"\nstate = "{self.state}"\n'
            f'owners = "{self.owners}"\ndatastores = "{self.front.directory("node2").parent}"\nmemlock = '
            f'"{memlock()}"\n'
            "stop_timeout = 3\n")

    @contextlib.contextmanager
    def on_node2(self) -> Iterator[None]:
        own, self.node._conf = self.node._conf, self.front.elsewhere
        yield
        self.node._conf = own

    def test_with_all_it_wrote_and_its_devices_given_back(self) -> None:
        machine = Machine(devices=(self.gpus[0], self.vfs[0]), nics=(0,), disks=Machine().disks + volatile(16),
                          more=own(DOCKER_COMMAND=writer.FIRST_PROGRAM))
        self.node.give_file_system(machine, 1, 16)
        self.run_vm(self.registered(self.fresh()), machine)
        self.shell(machine, writer.INSTALL)
        # Running, it stays where it is.
        self.refused("without --live", "migrate", machine, "node2", "node1")
        self.assertEqual(Status.RUNNING, self.status(machine))
        with writer.watched(writer.entered(self.pid(machine), writer.WATCH)) as notes:
            await_that(lambda: len(notes()) > 20, "it writes")
            # Before it leaves, oned has written the devices of the other node into it.
            machine = machine.changed(devices=(self.gpus[1], self.vfs[1]))
            self.ok("shutdown", machine, lcm=LEAVING)
            seen = notes()
        self.assertEqual(((), {}), (self.engine.containers(), AllocationStore(self.node.owners).records()))
        for name in ("disk.0", "disk.1", ""):
            self.did(self.front.tm("mv", self.front.place(name), self.front.place(name, "node2")))
        self.assertEqual((set(), False), (self.held(), (self.front.directory() / "1").exists()))

        there = self.other.engine()
        with self.on_node2():
            self.ok("deploy", machine, lcm=BOOT)
            writer.checked(subprocess.run(writer.entered(there.metrics("one-1").pid, writer.READ), text=True,
                                          stdout=subprocess.PIPE, check=True).stdout, seen)
            self.assertEqual({self.gpus[1].id, self.vfs[1].id}, set(AllocationStore(self.owners).records()))
            self.assertTrue(Path(f"/proc/{there.metrics('one-1').pid}/root/dev/nvidia1").is_char_device())
            self.assertIn("one-1-0", self.ports())
            self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(((), {}, []),
                         (there.containers(), AllocationStore(self.owners).records(), leftovers(self.other)))
        self.did(self.front.tm("delete", self.front.place("", "node2")))
        self.assertEqual([], self.other.api().images(name="onedock/*"))
        self.assertEqual([], mounts_below(self.state))
