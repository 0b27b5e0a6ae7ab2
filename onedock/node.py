# SPDX-License-Identifier: Apache-2.0
"""Run the command ``onedock`` on a node. Modules that an action of a VM does not need are imported lazily."""

import contextlib
import json
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onedock import attributes, backend, conf, lcm_states
from onedriver.errors import BadInput, DriverError
from onedriver.node.node_command import NodeCommand, run

LOCK_TIMEOUT = 12 * 3600  # s; a disk that is sent meanwhile may be large, and what does not move ends by itself

COMMAND = NodeCommand(conf.load, backend, backend.recover_devices, lcm_states.UNSUPPORTED, attributes.PREFIX)
alone = COMMAND.alone


def main(words: Sequence[str]) -> int:
    match words:
        case ["probe", "vm/monitor", *_]:
            return vm_monitor()
        case ["image" | "leave" | "drop" | "lock" as kind, *rest]:
            return TRANSFER[kind](*rest)
        case ["reconcile"]:
            return run("reconcile", lambda: backend.reconcile(conf.load()))
    return COMMAND.run(words)


def vm_monitor() -> int:
    """Report the VMs' metrics, and undo what killed actions left denied or frozen."""
    def act() -> str:
        options = conf.load()
        engine = backend.engine(options)
        engine.allow_again()
        engine.thaw_abandoned()
        return backend.measure(options).vm_monitor()

    return run("vm/monitor", act)


def drop(vm: str) -> int:
    """Remove a VM's resources on this node, except its disks."""
    def act() -> None:
        vm_id = number(vm)
        with alone(vm_id) as options:
            backend.vmm(options).drop(vm_id)

    return run("drop", act)


def leave(vm: str, system_ds: str) -> int:
    """Let a stopped VM leave this node with its data, which its disk 0 names afterwards."""
    def act() -> None:
        vm_id, datastore = number(vm), number(system_ds)
        with alone(vm_id) as options:
            backend.vmm(options).leave(vm_id, datastore)

    return run("leave", act)


def lock(vm: str, system_ds: str, disk: str, *how: str) -> int:
    """Block the actions of a VM until standard input ends, for at most :data:`LOCK_TIMEOUT` seconds.

    Prints ``{"used": true}`` if the VM's container has the disk mounted.

    :param how: ``frozen`` to block the container's writes to the disk meanwhile, at most for the time limit of an
        engine's operation
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
                raise DriverError(f"the transfer driver is still working on disk {disk_id} of VM {vm_id} after "
                                  f"{timeout} s: the lock on the VM is released")

    return run("lock", act)


def number(text: str) -> int:
    from onedriver.actions import NUMBER

    if not NUMBER.fullmatch(text):
        raise BadInput(f"{text[:40]!r} is not an id of a VM, a datastore or a disk")
    return int(text)


def image(*words: str) -> int:
    """Run a request of the transfer driver to the engine; the status is NOT_THERE without its image or container."""
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


#: Requests of the transfer driver.
TRANSFER: Mapping[str, Callable[..., int]] = {"image": image, "leave": leave, "drop": drop, "lock": lock}
