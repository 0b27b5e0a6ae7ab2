# SPDX-License-Identifier: Apache-2.0
"""Attach free devices to containers, at boot and while they run, detach them, and require that they are clean."""

import contextlib
import dataclasses
import enum
import logging
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from containerhost import vendors
from containerhost.allocation import provenance
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.devices.model import CharNode, LinkLayer, NodeUse
from containerhost.engines.contract import Command, first_process
from containerhost.engines.local import LocalEngine
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.errors import ContainerHostError, HostActionFailed
from containerhost.inventory.scan import HostView
from containerhost.linux.network.ipconfig import IpConfig
from containerhost.linux.poll import retry, wait_until
from containerhost.operator.runtimes.cli import configured
from containerhost.operator.selftest import rootimage

LOG = logging.getLogger(__name__)

NAME = "containerhost-selftest"
NAMES = NAME, f"{NAME}-peer"
LABEL = "containerhost.selftest"
MEMORY = 1 << 30  # bytes
TIMEOUT = 120  # s for a program in the container
HOLD_TIMEOUT = 30.0  # s until python3 has opened a node; an emulated processor needs ten
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # of the two containers; RFC 5737: for documentation, so unused
NETDEV = "rdma0"
PING = ("ping", "-c", "3", "-W", "5")
RPING = ("rping", "-v", "-C", "10")
REACH_TIMEOUT, REACH_INTERVAL = 30.0, 1.0  # s until a server listens
NOT_FOUND, NO_LIBRARY = 127, 3  # exit statuses: the program is missing, the computation's library is missing
# An emulated node has no driver, so only the node itself can be kept open.
HOLD = """
import os, sys, time
try:
    os.open(sys.argv[1], os.O_RDWR)
except OSError:
    os.open(sys.argv[1], os.O_PATH)
time.sleep(600)
"""


class Outcome(enum.StrEnum):
    """Name the outcome of a step; ``not here`` marks a step that this host cannot perform."""

    PASSED = "passed"
    FAILED = "failed"
    ABSENT = "not here"


@dataclasses.dataclass(frozen=True)
class Row:
    step: str
    outcome: Outcome
    detail: str
    seconds: float


Found = str | tuple[Outcome, str]


class _Failed(Exception):
    """Signal the failure of a step on which the next ones depend."""


class SelfTest:
    """Run the steps on free devices, and clean up in any case. For root.

    :param pool: of LXD, for the container's root
    :ivar consumers: the holders of the first and the second hand-over; their records are those of runs, which every
        reconciliation on the host cleans and frees after the process has ended
    """

    def __init__(self, store: AllocationStore, local: LocalEngine, pool: str, consumers: Sequence[Consumer],
                 report: Callable[[Row], object] = lambda row: None) -> None:
        self._store = store
        self._local = local
        self._engine = local.engine
        self._pool = pool
        self._consumers = consumers
        self._report = report
        self._allocator = DeviceAllocator(
            store, lambda: HostView(untainted=self._tested), local.privileged,
            lambda devices: {**configured(known := tuple(devices)), **local.engine.held(known)},
            holders=lambda _: [pid for name in NAMES if (pid := first_process(self._engine, name)) is not None])
        self._image = ""
        self._tested: Sequence[str] = ()
        self._grants: tuple[Grant, ...] = ()
        self.rows: list[Row] = []

    def run(self, device_ids: Sequence[str], pair: Sequence[str] = ()) -> None:
        """Run all steps up to the first failure, then clean up. The devices may be tainted.

        :param pair: two network functions that reach each other by RDMA, each for its own container
        """
        self._tested = (*device_ids, *pair)
        with contextlib.suppress(_Failed), contextlib.ExitStack() as stack:
            stack.callback(self._step, "clean up", self.clean_up)
            self._step("image", self._made_image)
            first, second = self._consumers
            self._step("give at boot", partial(self._given, device_ids, first))
            grants = list(self._grants)
            for grant in grants:
                self._inside(grant)
            for index, grant in enumerate(self._grants):
                self._step(f"take {grant.device.id} while it runs", partial(self._taken, grant, grants))
                self._step(f"give {grant.device.id} while it runs", partial(self._given_again, index, grants, first))
            for grant in tuple(grants):
                if nodes := [node for node in grant.own_nodes if node.use is NodeUse.OWN]:
                    self._step(f"take {grant.device.id} from a process that has it open",
                               partial(self._held, grant, nodes[0], grants, stack))
            self._step("clean when the container has ended", partial(self._ended, device_ids, first))
            self._step("second hand-over", partial(self._handed_over, device_ids, second))
            if pair:
                self._step("give a function to each of two containers", partial(self._paired, pair))
                for program, act in ((PING, partial(self._shown, (*PING, ADDRESSES[1]))),
                                     (RPING, partial(self._pinged_by_rdma, stack))):
                    with contextlib.suppress(_Failed):
                        self._step(f"{program[0]} between them", act)
                self._step("clean when both have ended", partial(self._both_ended, pair))

    def recover(self) -> None:
        """Remove the remains of a self-test that was killed together with its guardian."""
        self.clean_up()
        for complaint in self._allocator.reconciler.reconcile_runs():
            LOG.error("%s", complaint)

    def clean_up(self) -> str:
        """Delete the container and release its devices, also those of a killed process. Idempotent."""
        for state in self._engine.containers():
            if state.name in NAMES and LABEL in state.labels:
                self._engine.delete(state.name)
        # A container that is still being created by a killed request keeps its devices.
        complaints = [complaint for consumer in self._consumers
                      for complaint in self._allocator.reconciler.reconcile_one(consumer, exists=False)]
        self._local.remove_root(NAME)
        if complaints:
            raise HostActionFailed("; ".join(complaints))
        return "nothing is left"

    # The steps

    def _made_image(self) -> str:
        self._image = self._local.import_root(rootimage.tarball(), NAME)
        return "the host's programs on an empty root"

    def _given(self, device_ids: Sequence[str], consumer: Consumer, name: str = NAME, **options: Any) -> str:
        """Start a container with devices."""
        requests = [self._request(device_id, **options) for device_id in device_ids]
        grants = self._grants = self._allocator.acquire(requests, consumer)
        self._engine.create(ContainerSpec(
            name, self._image, Cpu(1), Memory(MEMORY), RootDisk(self._pool), parts=grants, mounts=rootimage.mounts(),
            labels={LABEL: consumer.uuid}))
        self._engine.start(name)
        self._engine.verify(name, grants)
        return "exactly their nodes and interfaces are seen"

    def _inside(self, grant: Grant) -> None:
        vendor, name = vendors.of(grant.device), grant.device.id
        program = vendor.computation()
        # The program uses the first device that it finds, but the container may have several.
        this_one = [f"{key}={value}" for key, value in vendor.environment([grant.device]).items()]
        for what, command, stdin, absent in (
                ("tool", vendor.tool if grant.nodes else (), "", NOT_FOUND),  # Ethernet functions have no tool
                ("computation", ("env", *this_one, "python3", "-") if program else (), program or "", NO_LIBRARY)):
            if command:
                with contextlib.suppress(_Failed):  # the next steps do not depend on it
                    self._step(f"{what} of {name} inside", partial(self._shown, command, stdin.encode(), absent))

    def _shown(self, command: Sequence[str], stdin: bytes = b"", absent: int = NOT_FOUND, name: str = NAME) -> Found:
        """Run a program in the container, and return its output.

        :param absent: its exit status if a requirement is missing
        """
        done = self._engine.execute(name, command, stdin, timeout=TIMEOUT)
        output = " ".join(done.output.decode(errors="replace").split())[:200]
        if done.status in (NOT_FOUND, absent):
            return Outcome.ABSENT, output or f"{command[0]} is not on this host"
        if done.status:
            raise HostActionFailed(f"{' '.join(command)} ended with {done.status}: {output}")
        return output

    def _taken(self, grant: Grant, grants: Sequence[Grant]) -> str:
        """Detach a device; the container keeps running."""
        others = [other for other in grants if other is not grant]
        self._engine.detach(NAME, grant, others)
        self._engine.verify(NAME, others)
        self._allocator.release_device(grant.device.id, self._consumers[0], self._engine.pid(NAME))
        return self._state(grant)

    def _state(self, grant: Grant) -> str:
        """Return the state of a device that was detached from a running container.

        :raises HostActionFailed: it is neither clean nor blocked
        """
        record = self._store.records().get(grant.device.id)
        if record is None:
            (*_, entry) = self._store.hand_overs(grant.device.id)
            return f"clean: {', '.join(entry['cleaned'])}"
        if record.state is State.BLOCKED:
            return f"blocked until the container ends: {record.blocked}"
        raise HostActionFailed(f"{grant.device.id} is {record.state}, neither clean nor blocked")

    def _given_again(self, index: int, grants: list[Grant], consumer: Consumer) -> str:
        """Attach a device again: after a rebind its nodes may have other names and numbers.

        :param grants: the container's previous ones; the one at ``index`` is replaced
        """
        (grants[index],) = self._allocator.acquire([self._request(grants[index].device.id)], consumer)
        self._engine.attach(NAME, grants[index])
        self._engine.verify(NAME, grants)
        return "exactly its nodes are seen"

    def _held(self, grant: Grant, node: CharNode, left: list[Grant], stack: contextlib.ExitStack) -> Found:
        """Detach a device while a process in the container keeps a node of it open.

        :param left: the container's grants; afterwards without the device
        """
        command: Command = self._engine.command(NAME, ("python3", "-c", HOLD, node.path))
        stack.callback(command.close)
        stack.callback(command.kill)
        if not wait_until(lambda: self._local.privileged.users([(node.major, node.minor)]), HOLD_TIMEOUT):
            return Outcome.ABSENT, f"no process inside could open {node.path} (python3)"
        told = self._taken(grant, left)
        left.remove(grant)
        return told

    def _ended(self, device_ids: Sequence[str], consumer: Consumer, name: str = NAME) -> str:
        self._engine.delete(name)
        complaints = self._allocator.release(consumer)
        if complaints or (left := set(device_ids) & self._store.records().keys()):
            raise HostActionFailed("; ".join(complaints) or f"{', '.join(sorted(left))} is not free")
        return "all are free"

    def _handed_over(self, device_ids: Sequence[str], consumer: Consumer) -> str:
        self._given(device_ids, consumer)
        self._ended(device_ids, consumer)
        key = self._store.provenance.public_key()
        for name in device_ids:
            (*_, entry) = self._store.hand_overs(name)
            if not entry["cleaned"] or provenance.complaint(entry, name, key):
                raise HostActionFailed(f"the record of the hand-over of {name} is invalid: {entry}")
        return "given to a second container, clean again, recorded"

    def _paired(self, pair: Sequence[str]) -> str:
        """Attach a function with an address to each of two containers, and with a GUID if its port needs one."""
        inventory = HostView(untainted=pair).inventory
        for name, device_id, consumer, address in zip(NAMES, pair, self._consumers, ADDRESSES, strict=True):
            infiniband = inventory.get(device_id).link_layer is LinkLayer.INFINIBAND
            guid = _guid(consumer.uuid) if infiniband else None
            self._given([device_id], consumer, name, netdev_name=NETDEV, setup=IpConfig((f"{address}/24",)),
                        node_guid=guid, port_guid=guid)
            for words in () if self._local.sets_addresses else (("address", "replace", f"{address}/24"),
                                                                ("link", "set", "up")):
                self._shown(("ip", *words, "dev", NETDEV), name=name)
        return "each sees its own and no other"

    def _pinged_by_rdma(self, stack: contextlib.ExitStack) -> Found:
        """Connect from the second container to a server in the first one by RDMA."""
        server: Command = self._engine.command(NAME, (*RPING, "-s", "-a", ADDRESSES[0]))
        stack.callback(server.close)
        stack.callback(server.kill)
        return retry(lambda: self._shown((*RPING, "-c", "-a", ADDRESSES[0]), name=NAMES[1]), HostActionFailed,
                     REACH_TIMEOUT, REACH_INTERVAL)

    def _both_ended(self, pair: Sequence[str]) -> str:
        for name, device_id, consumer in zip(NAMES, pair, self._consumers, strict=True):
            told = self._ended([device_id], consumer, name)
        return told

    @staticmethod
    def _request(device_id: str, **options: Any) -> Request:
        return Request(device_id, GrantOptions(memlock=_memlock(), **options))

    def _step(self, name: str, act: Callable[[], Found]) -> None:
        """Run a step and report its row.

        :raises _Failed: the step failed
        """
        began = time.monotonic()
        try:
            found = act()
        except (ContainerHostError, OSError) as error:
            found = Outcome.FAILED, str(error)
        outcome, detail = (Outcome.PASSED, found) if isinstance(found, str) else found
        self.rows.append(Row(name, outcome, detail, round(time.monotonic() - began, 1)))
        self._report(self.rows[-1])
        if outcome is Outcome.FAILED:
            raise _Failed


def _guid(uuid: str) -> str:
    """Return a GUID that no manufacturer assigns: a locally administered EUI-64."""
    digits = f"02{uuid.replace('-', '')[:14]}"
    return ":".join(digits[start:start + 4] for start in range(0, 16, 4))


def _memlock() -> str:
    """Return the maximum of locked memory of this process: a daemon may not be able to pass on more."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):  # root without CAP_SYS_RESOURCE
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        return "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return "unlimited"
