# SPDX-License-Identifier: Apache-2.0
"""Run the command ``onedock`` on a node. What an action of a VM does not need is imported where it is needed."""

import contextlib
import json
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from containerhost.errors import ContainerHostError
from onedock import backend, conf
from onedock.conf import Options
from onedriver import program
from onedriver.errors import BadInput, DriverError
from onedriver.node import vmlock

LOCK_TIMEOUT = 12 * 3600  # s; a disk that is sent meanwhile may be large, and what does not move ends by itself


def vmm(script: str, argv: list[str], stdin: BinaryIO, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Run an action of oned's.

    :param script: the name it was called by
    :param out, err: None is this process's own
    :returns: the exit status
    """
    from onedock import attributes, lcm_states
    from onedriver import actions, document
    from onedriver.node import validation

    def act() -> str | None:
        call = actions.call(script, argv, document.read(stdin), attributes.PREFIX)
        validation.of_action(call.action, lcm_states.UNSUPPORTED)
        if call.action == "deploy" and call.vm.pcis:
            backend.recover_devices(conf.load())  # a killed action may have left the devices to another VM
        with alone(call.vm_id) as options:
            return getattr(backend.vmm(options), call.action)(call)

    return run(script, act, out, err)


def limit_nic(argv: Sequence[str]) -> int:
    """Limit the speed of a VM's NIC, for OpenNebula's network driver."""
    from onedriver.node import niclimits

    def act() -> None:
        wanted = niclimits.parsed(argv)
        with alone(wanted.vm_id, niclimits.TIMEOUT) as options:
            backend.vmm(options).limit_nic(*wanted)

    return run(niclimits.ACTION, act)


@contextlib.contextmanager
def alone(vm_id: int, timeout: float | None = None) -> Iterator[Options]:
    """Exclude all other actions on the VM within the block.

    :param timeout: seconds to wait for another one; None is as long as an operation of the engine may take
    """
    options = conf.load()
    with vmlock.held(Path(options.state), vm_id, options.operation_timeout if timeout is None else timeout):
        yield options


def command(name: str, fd: str) -> int:
    """Begin a command in a container and stay with it."""
    from onedriver.node import exec_agent

    return exec_agent.run(name, fd, conf.load,
                          lambda options, name, words: backend.engine(options).command(name, words))


def probe(name: str) -> int:
    from onedriver.node import measure

    def act() -> str:
        options = conf.load()
        if name == "vm/monitor":
            engine = backend.engine(options)
            engine.allow_again()
            engine.thaw_abandoned()
        return measure.probe(name, lambda: backend.measure(options))

    return run(name, act)


def reconcile() -> int:
    return run("reconcile", lambda: backend.recover_devices(conf.load()))


def drop(vm: str) -> int:
    """Remove what a VM has on this node, apart from its disks."""
    def act() -> None:
        vm_id = number(vm)
        with alone(vm_id) as options:
            backend.vmm(options).drop(vm_id)

    return run("drop", act)


def leave(vm: str, system_ds: str) -> int:
    """Let a VM that is off leave this node with what it wrote: its disk 0 names that afterwards."""
    def act() -> None:
        vm_id, datastore = number(vm), number(system_ds)
        with alone(vm_id) as options:
            backend.vmm(options).leave(vm_id, datastore)

    return run("leave", act)


def lock(vm: str, system_ds: str, disk: str, *how: str) -> int:
    """Keep the actions of a VM waiting until standard input ends, at most for :data:`LOCK_TIMEOUT` seconds.

    Prints ``{"used": true}`` if the VM's container has the disk mounted.

    :param how: ``frozen`` if the container is not to write to the disk meanwhile, at most as long as an operation of
        the engine may take
    """
    def act() -> None:
        vm_id, datastore, disk_id = number(vm), number(system_ds), number(disk)
        with alone(vm_id) as options, contextlib.ExitStack() as stack:
            driver, timeout = backend.vmm(options), LOCK_TIMEOUT
            used = driver.uses_disk(vm_id, datastore, disk_id)
            if used and how:
                timeout = options.operation_timeout
                stack.enter_context(driver.frozen_disk(vm_id, disk_id))
            print(json.dumps({"used": used}), flush=True)
            if not select.select([0], [], [], timeout)[0]:
                raise DriverError(f"the transfer driver still works on disk {disk_id} of VM {vm_id} after {timeout} s: "
                                  "the VM and its actions wait no longer")

    return run("lock", act)


def number(text: str) -> int:
    from onedriver.actions import NUMBER

    if not NUMBER.fullmatch(text):
        raise BadInput(f"{text[:40]!r} is no number of a VM, a datastore or a disk")
    return int(text)


def image(words: Sequence[str]) -> int:
    """Run a request of the transfer driver to the engine.

    :returns: the exit status; :data:`node_agent.NOT_THERE` when there is no such image or container
    """
    from containerhost.linux.lock import FileLock
    from onedock.nodeimages import NodeImages
    from onedock.root_images import LOCK
    from onedock.transfer.node_agent import NOT_THERE

    found = [True]

    def act() -> None:
        chosen = conf.load()
        lock = FileLock(Path(chosen.state) / LOCK, chosen.operation_timeout)
        images = NodeImages(backend.engine(chosen).client, lock, Path(chosen.state))
        found[0] = images.act(words, sys.stdin.buffer, sys.stdout.buffer)

    status = run("image", act)
    return status or (0 if found[0] else NOT_THERE)


def run(what: str, act: Callable[[], str | None], out: TextIO | None = None, err: TextIO | None = None) -> int:
    return program.run(what, act, {ContainerHostError: 1}, out, err)
