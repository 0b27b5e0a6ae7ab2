# SPDX-License-Identifier: Apache-2.0
"""Run random sequences of actions, some killed half-way, of two VMs at once which want the same devices.

LXDONE_FUZZ_SECONDS makes it longer, LXDONE_FUZZ_SEED different.
"""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

from testtools.content import text_content

from containerhost.allocation.store import AllocationStore
from containerhost.errors import EngineNotFound
from onedriver.node import single_instance
from tests import levels
from tests.functional_one import diskfiles
from tests.functional_one.node import Result
from tests.functional_one.test_actions import ActionsCase
from tests.functional_one.test_console import PORT, graphics
from tests.functional_one.vms import ROOT, Machine
from tests.rfbclient import Refused, Viewer
from tests.waiting import await_that

SECONDS = float(os.environ.get("LXDONE_FUZZ_SECONDS", levels.budget(gate="10", exhaustive="300")))
SEED = int(os.environ.get("LXDONE_FUZZ_SEED", "1"))
UNCHANGED = (2, 3)  # statuses that promise that nothing was changed
STATES = (2, 3, 5, 6, 7, 12, 15, 18, 20, 21, 22, 23, 25, 29, 32, 99)  # of LCM
KILLED = 0.06  # the share of actions that are killed
KILL_STATUS = -9
LASTING = ("Executing command", "Showing console")  # operations of LXD
MARK = "<ATTACH>YES</ATTACH>"
WEIGHTS = {
    "deploy": 9, "shutdown": 3, "cancel": 3, "reboot": 1, "reset": 2, "save": 3, "restore": 3, "migrate": 1,
    "attach_nic": 5, "detach_nic": 3, "attach_device": 6, "detach_device": 3, "attach_disk": 4, "detach_disk": 3,
    "resize_disk": 2, "resize": 2, "snapshot_create": 2, "snapshot_revert": 2, "snapshot_delete": 1,
    "reconfigure": 1, "exec": 3, "exec_cancel": 1, "visit": 3}


class Tenant:
    """One VM and those who play with it.

    :ivar story: what was done so far
    """

    def __init__(self, case: "FuzzTest", number: int) -> None:
        self._case = case
        self._random = random.Random(SEED * 100 + number)
        self.port = PORT + number
        self.machine = Machine(number, more=graphics(PORT=self.port))
        self.story: list[str] = []
        self._visitor: Viewer | None = None

    def play(self, end: float) -> None:
        self._case.node.give_disk(self.machine)
        self._act("deploy", [self.machine.name, "node1"], 2)
        while time.monotonic() < end:
            self.step()
        self.finish()

    def step(self) -> None:
        action = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        lcm = self._random.choice((3, self._random.choice(STATES)))
        self._vary()
        chance: Callable[[], None] | None = getattr(self, f"_{action}", None)
        if chance:
            chance()
        else:
            self._act(action, [self.machine.name], lcm)

    def finish(self) -> None:
        """Whatever happened, the end leaves nothing."""
        self._leave()
        for _ in range(2):
            result = self._run("cancel", [self.machine.name, "node1"], 23)
            self._case.assertEqual(0, result.status, self._told(result))

    # Possible choices.

    def _vary(self) -> None:
        """Now and then the template changes, as it does while a VM is off."""
        if self._random.random() < 0.3:
            devices = self._random.sample(self._case.devices, self._random.choice((0, 0, 1, 1, 2)))
            disks = ROOT + "".join(volatile(number) for number in (1, 2) if self._random.random() < 0.3)
            self.machine = self.machine.changed(
                devices=tuple(devices), nics=self._random.choice(((), (0,), (0, 1))), disks=disks, attach="",
                memory=self._random.choice((96, 128, 160)), vcpu=self._random.choice((1, 2)),
                more=self._random.choice((graphics(PORT=self.port), "")))

    def _deploy(self) -> None:
        self._act("deploy", [self.machine.name, "node1"], self._random.choice((2, 2, 20, 20, 22, 32)))

    def _end(self, action: str) -> None:
        self._act(action, [self.machine.name, "node1"], self._random.choice((18, 18, 18, 12, 23, 29, 7)))

    def _shutdown(self) -> None:
        self._end("shutdown")

    def _cancel(self) -> None:
        self._end("cancel")

    def _reboot(self) -> None:
        self._act("reboot", [self.machine.name, "node1"], 3)

    def _reset(self) -> None:
        self._act("reset", [self.machine.name, "node1"], 3)

    def _save(self) -> None:
        self._act("save", [self.machine.name, "/checkpoint", "node1"], self._random.choice((6, 6, 6, 5, 7)))

    def _restore(self) -> None:
        self._act("restore", ["/checkpoint", "node1", self.machine.name], self._random.choice((21, 21, 22, 35)))

    def _migrate(self) -> None:
        self._act("migrate", [self.machine.name, "node2", "node1"], 4)

    def _nic(self, action: str, *more: str) -> None:
        machine = self.machine.changed(nics=(*self.machine.nics, self._random.choice((5, 6))),
                                       attach=self._random.choice(("nic", "nic", "nic", "")))
        self._act(action, [machine.name, machine.mac(5), *more], 25, machine)

    def _attach_nic(self) -> None:
        self._nic("attach_nic", "one-br0", "-", "dummy", "x")

    def _detach_nic(self) -> None:
        self._nic("detach_nic")

    def _device(self, action: str, *more: str) -> None:
        others = [device for device in self._case.devices if device not in self.machine.devices]
        machine = self.machine.changed(devices=(*self.machine.devices, self._random.choice(others)), attach="pci")
        self._act(action, [machine.name, machine.mac(9), *more], 25, machine)

    def _attach_device(self) -> None:
        self._device("attach_nic", "-", "-", "dummy", "x")

    def _detach_device(self) -> None:
        self._device("detach_nic")

    def _disk(self, action: str, *more: str) -> None:
        machine = self.machine.changed(disks=ROOT + volatile(self._random.choice((1, 3)), self._random.choice(
            (MARK, MARK, MARK, ""))))
        self._act(action, [machine.name, "/disk", "sdc", "2", *more], 17, machine)

    def _attach_disk(self) -> None:
        self._disk("attach_disk", "message")

    def _detach_disk(self) -> None:
        self._disk("detach_disk")

    def _resize_disk(self) -> None:
        disk, size = self._random.choice((("0", "300"), ("0", "400"), ("7", "10"), ("0", "x")))
        self._act("resize_disk", [self.machine.name, disk, size, "message", "node1"], 62)

    def _snapshot_create(self) -> None:
        self._act("snapshot_create", [self.machine.name, self._random.choice(("0", "1", "-1", "../x"))], 24)

    def _snapshot(self, action: str) -> None:
        self._act(action, [self.machine.name, self._random.choice(("snap-0", "snap-1", "snap-9", "x"))], 24)

    def _snapshot_revert(self) -> None:
        self._snapshot("snapshot_revert")

    def _snapshot_delete(self) -> None:
        self._snapshot("snapshot_delete")

    def _reconfigure(self) -> None:
        self._act("reconfigure", [self.machine.name, "sdb", "/disk.1"], 25)

    def _exec(self) -> None:
        command = self._random.choice(("true", "sleep 1000", "sh -c 'exit 3'", "no-such", "echo 'x"))
        self._act("exec", [str(self.machine.id), "node1", command], 17, whole=True)

    def _exec_cancel(self) -> None:
        self._act("exec_cancel", [], 17)

    def _visit(self) -> None:
        """Connect to its console, until the next call, whatever happens meanwhile."""
        self._leave()
        with contextlib.suppress(OSError, EOFError, Refused):
            self._visitor = Viewer.at(self.port, "secret")
            self._visitor.ask()
            self._visitor.type("ab\n")
        self.story.append(f"visit -> {'came in' if self._visitor else 'no console'}")

    def _leave(self) -> None:
        if self._visitor:
            self._visitor.close()
            self._visitor = None

    # Doing it.

    def _act(self, action: str, arguments: list[str], lcm: int, machine: Machine | None = None, *,
             whole: bool = False) -> None:
        """:param whole: these are all arguments"""
        machine = machine or self.machine
        before = self._case.container(machine.name)
        killed = self._random.random() < KILLED
        spoilt = self._random.random() < 0.03
        result = self._run(action, arguments, lcm, machine, spoilt=spoilt, whole=whole,
                           limit=self._random.uniform(0.03, 2.5) if killed else None)
        if killed and result.status == KILL_STATUS:
            self._case.await_quiet()
            return
        self._case.assertIn(result.status, (0, 1, 2, 3), self._told(result))
        self._case.assertNotIn("a mistake in the driver", result.reason, self._told(result))
        if result.status:
            self._case.assertTrue(result.reason.endswith("."), self._told(result))
        after = self._case.container(machine.name)
        if result.status in UNCHANGED and (before is None or after is None or not self._ends_late()):
            self._case.assertEqual(before, after, self._told(result))
        elif result.status in UNCHANGED:
            self._case.assertEqual(before[:-1], after[:-1], self._told(result))

    def _ends_late(self) -> bool:
        """Return whether the container may stop at any time, since it was asked to and did not in time."""
        for line in reversed(self.story):
            if "did not shut down within" in line:
                return True
            if line.startswith(("deploy", "reset", "restore", "cancel")) and " -> 0 " in line:
                return False
        return False

    def _run(self, action: str, arguments: list[str], lcm: int, machine: Machine | None = None, *,
             spoilt: bool = False, whole: bool = False, limit: float | None = None) -> Result:
        machine = machine or self.machine
        xml = machine.deployment(lcm) if action == "deploy" else machine.message(lcm)
        self._case.node.give_volatile(machine)
        argv = arguments if whole else [*arguments, str(machine.id), "node1"]
        script = [str(self._case.node.remotes / "vmm/lxdone" / action), *argv]
        self.story.append(f"{action} {' '.join(argv)} (LCM {lcm}, {len(machine.devices)} devices, nics {machine.nics}"
                          f"{', spoilt' if spoilt else ''}{f', killed after {limit:.2f} s' if limit else ''})")
        result = self._case.node.limited(script, xml[:len(xml) // 2] if spoilt else xml, limit)
        self.story[-1] += f" -> {result.status} {result.reason}"
        return result

    def _told(self, result: Result) -> str:
        return "\n".join((f"seed {SEED}", *self.story[-25:], result.err))


class FuzzTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.devices = [*self.gpus, *self.vfs]
        self.links, self.mounts = links(), mounts()

    def container(self, name: str) -> Any:
        """Return what must not have changed where an action was refused; what runs in it does not matter."""
        try:
            found, _ = self.engine.client.instance(name)
        except EngineNotFound:
            return None
        config = {key: value for key, value in found["config"].items() if not key.startswith("volatile.")}
        return config, found["devices"], found["status"]

    def await_quiet(self) -> None:
        """Wait until LXD has done what killed actions had begun."""
        await_that(lambda: not self.operations(), lambda: f"the end of {self.operations()}")

    def operations(self) -> list[Mapping[str, Any]]:
        """Return those of LXD that have not ended, but for what lasts as long as a client wants it."""
        return [operation for operation in self.engine.client.operations()
                if operation["status_code"] < 200 and operation["description"] not in LASTING]

    def test_whatever_is_done_nothing_is_left(self) -> None:
        tenants = [Tenant(self, number) for number in (1, 2)]
        end = time.monotonic() + SECONDS
        with futures.ThreadPoolExecutor(len(tenants)) as pool:
            works = [pool.submit(tenant.play, end) for tenant in tenants]
        try:
            for work in works:
                work.result()
        finally:
            for tenant in tenants:
                self.addDetail(f"story-{tenant.machine.id}", text_content("\n".join(tenant.story)))
                tenant.finish()
        self.assertGreater(sum(" -> 0 " in line for tenant in tenants for line in tenant.story), 5)
        self.assertEqual({}, AllocationStore(self.node.owners).records())
        self.wait_for(lambda: (links(), mounts(), diskfiles.loops(self.node.datastores), consoles())
                      == (self.links, self.mounts, [], []))


def volatile(number: int, mark: str = "") -> str:
    return f"<DISK>{mark}<DISK_ID>{number}</DISK_ID><SIZE>16</SIZE><TARGET>sdc</TARGET><TYPE>fs</TYPE></DISK>"


def links() -> list[str]:
    """The host's interfaces, by name."""
    return sorted(line.split(":")[1].strip().partition("@")[0] for line in subprocess.run(
        ["ip", "-o", "link", "show"], check=True, capture_output=True, text=True).stdout.splitlines())


def consoles() -> list[str]:
    return [name for name in single_instance.names() if name.startswith("one-console")]


def mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        return sorted(line.split()[4] for line in table)
