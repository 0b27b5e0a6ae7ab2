# SPDX-License-Identifier: Apache-2.0
"""A VM that is off moves from one engine to another, each with its own images, state and records."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from tests.functional.lxd import memlock, mounts_below
from tests.functional_docker.dockerd import Daemon, leftovers
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, CLEANUP
from tests.functional_onedock.transfercase import TransferCase

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
        machine = self.run_vm(self.registered(self.fresh()), Machine(devices=(self.gpus[0],), nics=(0,)))
        self.shell(machine, "echo moved > /moved")
        # Running, it stays where it is.
        self.failed("--poff", self.front.tm("premigrate", "node1", "node2", str(self.front.directory() / "1")))
        self.refused("powered off", "migrate", machine, "node2", "node1")
        self.assertEqual(Status.RUNNING, self.status(machine))
        self.ok("shutdown", machine, lcm=LEAVING)
        self.assertEqual(((), {}), (self.engine.containers(), AllocationStore(self.node.owners).records()))
        self.did(self.front.tm("mv", self.front.place(), self.front.place(host="node2")))
        self.did(self.front.tm("mv", self.front.place(""), self.front.place("", "node2")))
        self.assertEqual((set(), False), (self.held(), (self.front.directory() / "1").exists()))

        there = self.other.engine()
        with self.on_node2():
            self.ok("deploy", machine.changed(devices=(self.gpus[1],)), lcm=BOOT)
            self.assertEqual("moved\n", self.read(there.metrics("one-1").pid, "moved"))
            self.assertEqual({self.gpus[1].id}, set(AllocationStore(self.owners).records()))
            self.assertTrue(Path(f"/proc/{there.metrics('one-1').pid}/root/dev/nvidia1").is_char_device())
            self.assertIn("one-1-0", self.ports())
            self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(((), {}, []),
                         (there.containers(), AllocationStore(self.owners).records(), leftovers(self.other)))
        self.did(self.front.tm("delete", self.front.place("", "node2")))
        self.assertEqual([], self.other.api().images(name="onedock/*"))
        self.assertEqual([], mounts_below(self.state))

    @staticmethod
    def read(pid: int | None, name: str) -> str:
        return Path(f"/proc/{pid}/root/{name}").read_text()
