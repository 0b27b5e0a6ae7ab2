# SPDX-License-Identifier: Apache-2.0
"""Docker is restarted while an action runs: the action is done, or fails for that reason, and can be repeated."""

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import docker
import fixtures

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from onedriver import actions
from tests import levels
from tests.functional_one.commands import Commands
from tests.functional_one.node import Result
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import (
    BOOT,
    BOOT_UNDEPLOYED,
    CLEANUP,
    POWEROFF,
    RESTORE,
    RESUME,
    SUSPEND,
    UNDEPLOY,
    OnedockCase,
)
from tests.functional_onedock.test_parts import MARK, PLACE, addressed, disk, may_grow
from tests.waiting import await_that

LONG = "sleep 1001"
GATE = (0, 3, 8, 10, 15, 21)  # among the steps


class When(enum.Enum):
    BEGINNING = "as the action begins"
    ASKED = "before it is asked for the second time"
    CHANGING = "while it does the first thing that it is to change"


class Step(NamedTuple):
    """:ivar held: ids of the devices that the VM has afterwards
    :ivar when: Docker goes
    """

    action: str
    machine: Machine
    held: frozenset[str]
    arguments: tuple[str, ...] = ()
    lcm: int = 3
    when: When = When.ASKED
    status: Status | None = Status.RUNNING


class RestartsTest(Commands, OnedockCase):
    def steps(self) -> Iterator[Step]:
        """A VM's life with every action."""
        gpu, function, other = self.gpus[0], self.vfs[0], self.gpus[1]
        base = Machine(devices=(gpu, function), nics=(0,), context=addressed("10.1.0.5"))
        own, more = frozenset({gpu.id, function.id}), frozenset({gpu.id, function.id, other.id})
        nic = base.changed(nics=(0, 1), attach="nic", context=addressed("10.1.0.5", "10.2.0.5"))
        hot = base.changed(devices=(gpu, function, other), attach="pci")
        volume = base.changed(disks=ROOT + disk(3, MARK))
        words = (base.mac(9), "one-br0", "-", "dummy", "one-1-9")
        yield Step("deploy", base, own, lcm=BOOT, when=When.CHANGING)
        yield Step("attach_nic", nic, own, words)
        yield Step("detach_nic", nic, own, words[:1])
        yield Step("attach_nic", hot, more, words)
        yield Step("detach_nic", hot, own, words[:1])
        yield Step("attach_disk", volume, own, (*PLACE, "message"))
        if may_grow():
            yield Step("resize_disk", volume, own, ("3", "64", "message", "node1"))
        yield Step("detach_disk", volume, own, PLACE)
        yield Step("resize", base.changed(memory=192), own, when=When.CHANGING)
        yield Step("reconfigure", base.changed(context=addressed("10.1.0.9")), own, ("sdb", "disk.2"))
        yield Step("save", base, own, lcm=SUSPEND, when=When.CHANGING, status=Status.FROZEN)
        yield Step("restore", base, own, lcm=RESTORE, when=When.CHANGING)
        yield Step("exec", base, own, ("true", ""))
        yield Step("exec_cancel", base, own, when=When.BEGINNING)
        yield Step("snapshot_create", base, own, ("0",), when=When.CHANGING)
        yield Step("snapshot_revert", base, own, ("snap-0",), when=When.CHANGING)
        yield Step("snapshot_delete", base, own, ("snap-0",), when=When.CHANGING)
        yield Step("reboot", base, own, when=When.CHANGING)
        yield Step("reset", base, own, when=When.CHANGING)
        yield Step("shutdown", base, own, lcm=POWEROFF, when=When.CHANGING, status=Status.STOPPED)
        yield Step("deploy", base, own, lcm=RESUME, when=When.CHANGING)
        yield Step("cancel", base, frozenset(), lcm=UNDEPLOY, when=When.CHANGING, status=None)
        yield Step("deploy", base, own, lcm=BOOT_UNDEPLOYED, when=When.CHANGING)
        yield Step("cancel", base, frozenset(), lcm=CLEANUP, when=When.CHANGING, status=None)

    def test_every_action(self) -> None:
        self.node.give_disk(Machine())
        self.node.give_file_system(Machine(), 3)
        self.addCleanup(self.ok, "cancel", Machine(), lcm=CLEANUP)
        tried = {"migrate"}  # needs two nodes: test_live_migration
        steps = list(self.steps())
        interrupted = levels.some("Docker restarts", steps, GATE)
        for step in steps:
            told = f"{step.action} (LCM {step.lcm})"
            self.prepare(step)
            if step not in interrupted:
                result = self.done(step)
                self.assertEqual((0, ""), (result.status, result.reason), f"{told}: {result.err}")
                self.await_no_command(step)
                tried.add(step.action)
                continue
            with self.restarted(step.when) as began:
                result = self.done(step)
            self.assertTrue(began, f"{told}: Docker was not restarted")
            self.assertEqual(result.status == 0, result.reason == "", f"{told}: {result.err}")
            self.assertNotIn("a mistake in the driver", result.reason, f"{told}: {result.err}")
            reasons = [line for line in result.err.splitlines() if line in result.reason]
            self.assertEqual(1 if result.reason else 0, len(reasons), f"{told}: {result.err}")
            self.await_no_command(step)
            again = self.done(step)
            self.await_no_command(step)
            self.assertEqual((0, ""), (again.status, again.reason), f"{told}: {again.err}")
            self.assertEqual(step.held, set(AllocationStore(self.node.owners).records()), told)
            self.assertEqual(step.status, self.status(step.machine) if self.engine.exists("one-1") else None, told)
            tried.add(step.action)
        self.assertEqual(set(actions.ARGUMENTS) - tried, set() if may_grow() else {"resize_disk"})

    def await_no_command(self, step: Step) -> None:
        if step.action == "exec":
            await_that(lambda: not self.has_command(Machine()), "no command runs")

    def prepare(self, step: Step) -> None:
        if step.action == "exec_cancel":
            self.begun(step.machine, LONG)

    def done(self, step: Step) -> Result:
        if step.action.startswith("exec"):
            return self.node.run(step.action, ["1", "node1", *step.arguments], step.machine.message(step.lcm))
        return self.node.act(step.action, step.machine, *step.arguments, lcm=step.lcm)

    @contextlib.contextmanager
    def restarted(self, when: When) -> Iterator[list[threading.Thread]]:
        """Docker, once, during the block."""
        daemon, ask = self.node.docker.daemon, docker.APIClient.request
        asked: list[str] = []
        began: list[threading.Thread] = []

        def restart() -> None:
            daemon.stop()
            daemon.start()

        def begin() -> None:
            if when is When.ASKED:
                daemon.stop()
            began.append(threading.Thread(target=daemon.start if when is When.ASKED else restart))
            began[0].start()

        def request(api: docker.APIClient, method: str, *arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and not began:
                asked.append(method)
                if method != "GET" if when is When.CHANGING else len(asked) > 1:
                    begin()
            return ask(api, method, *arguments, **options)

        with fixtures.MonkeyPatch("docker.APIClient.request", request):
            try:
                if when is When.BEGINNING:
                    begin()
                yield began
            finally:
                for thread in began:
                    thread.join()
