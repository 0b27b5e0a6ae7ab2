# SPDX-License-Identifier: Apache-2.0
"""Run oned's actions of a transfer driver on the front-end, as the user oneadmin.

Arguments come as in a transfer script (OpenNebula's TransferManager.cc); the last two are always the VM's number and
that of a datastore. An image of a container becomes a root disk: a reference to an image of the node's engine (see
imageref.py), which has it afterwards. Data is copied unchanged.
"""

import importlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from onedock import datafiles
from onedock.transfer import turns
from onedock.transfer.nodes import Node
from onedriver import disk_paths
from onedriver.disk_paths import DiskPath
from onedriver.errors import BadInput, DriverError, NotSupported


class Call(NamedTuple):
    """Hold one call of the transfer driver: its arguments before the two numbers, and its VM."""

    arguments: Sequence[str]
    vm: int

    def disk(self, position: int) -> DiskPath:
        found = disk_paths.parse(self.arguments[position])
        if found.vm != self.vm:
            raise BadInput(f"{self.arguments[position][:120]} is of VM {found.vm}, not of VM {self.vm}")
        return found


def act(script: str, argv: Sequence[str]) -> str | None:
    """Run one of oned's actions.

    :param script: its name as called, perhaps with that of the system datastore's driver: ``clone.ssh``
    :returns: the output for oned
    """
    action = script.partition(".")[0]
    if action == "monitor":
        return None  # a datastore that every node has for itself is looked at there: see usage.py
    if action not in ACTIONS:
        raise NotSupported(f"the transfer driver onedock has no action {action!r}")
    done, least = ACTIONS[action]
    if len(argv) < least + 2:
        raise BadInput(f"{action}: called with {len(argv)} arguments, but oned gives {least + 2} or more")
    disk_paths.number(argv[-1], "the datastore's number")
    os.umask(0o027)
    call = Call(argv[:-2], disk_paths.number(argv[-2], "the VM's number"))
    with turns.turn(call.vm, deletes=action == "delete" and call.disk(0).disk is None):
        return done(call)


def mkimage(call: Call) -> None:
    datafiles.require_format("a volatile disk", call.arguments[1])
    target = call.disk(2)
    Node(target.host).ask("make", target.path, size=disk_paths.number(call.arguments[0], "the size"))


def mkswap(call: Call) -> None:
    raise NotSupported("a container has no swap space: remove the disk of TYPE=swap from the template")


def context(call: Call) -> None:
    """Do nothing: the deployment writes the context from the VM's description, so passwords need no other copy."""
    call.disk(len(call.arguments) - 1)
    if len(call.arguments) > 2:
        raise NotSupported("containers get the variables of their context, not files: leave FILES and FILES_DS out")


# Between nodes.


def mv(call: Call) -> None:
    source, target = call.disk(0), call.disk(1)
    if source.disk is not None:
        return  # oned moves the directory afterwards, with all that is in it
    if source == target:
        return
    Node(source.host).ask("leave", source.directory)
    if source.host == target.host:
        Node(source.host).ask("move", source.directory, to=str(target.directory))
        return
    if is_shared(source, target):
        Node(source.host).ask("release", source.directory)
        return
    with Node(source.host).reading("send", source.directory) as stream:
        Node(target.host).ask("receive", target.directory, lambda node: shutil.copyfileobj(stream, node),
                              name=source.directory.name)
    if sees_mark(target, source):
        raise DriverError(f"{source.host}:{source.directory} and {target.host}:{target.directory} are one directory, "
                          f"though "
                          "neither host saw the other's file in it before: nothing was deleted; check the hosts' "
                          "mounts of the datastore")
    Node(source.host).ask("delete", source.directory)


def is_shared(source: DiskPath, target: DiskPath) -> bool:
    """Return whether both hosts share a VM's directory: each checks for a file that the other creates.

    Attributes are not compared, because network file systems cache them on each host.
    """
    return sees_mark(source, target) or sees_mark(target, source)


def sees_mark(maker: DiskPath, seer: DiskPath) -> bool:
    """Return whether one host sees a file that the other creates, with a new name that is in no cache."""
    token = secrets.token_hex(16)
    Node(maker.host).ask("mark", maker.directory, token=token)
    try:
        return bool(Node(seer.host).ask("look", seer.directory, token=token)["seen"])
    finally:
        Node(maker.host).ask("unmark", maker.directory, token=token)


def delete(call: Call) -> None:
    target = call.disk(0)
    Node(target.host).ask("delete", target.path)


# Where a disk is.


def resize(call: Call) -> None:
    target, size = call.disk(0), disk_paths.number(call.arguments[1], "the size")
    Node(target.host).ask("grow", target.path, size=size)


def on_snapshot(what: str, *, live: bool = False) -> Callable[[Call], None]:
    """Return the action on a snapshot; with ``live`` the VM may run."""
    def done(call: Call) -> None:
        target, number = call.disk(0), disk_paths.number(call.arguments[1], "the snapshot")
        Node(target.host).ask("snapshot", target.path, act=what, number=number, live=live)
    return done


def prebackup(call: Call) -> None:
    raise NotSupported("save the disks as images (onevm disk-saveas): OpenNebula's backups are qcow2 files of disks, "
                       "and the root of a container is an image of Docker")


def nothing(call: Call) -> None:
    """Do nothing: there is nothing to undo or to finish. The node that a VM leaves by a live migration does it all."""


def copying(name: str) -> Callable[[Call], None]:
    """Return an action of :mod:`onedock.transfer.copies`, which is imported when it is called."""
    def done(call: Call) -> None:
        getattr(importlib.import_module("onedock.transfer.copies"), name)(call)
    return done


ACTIONS: Mapping[str, tuple[Callable[[Call], str | None], int]] = {
    "clone": (copying("clone"), 2), "ln": (copying("clone"), 2),
    "mvds": (copying("mvds"), 2), "cpds": (copying("cpds"), 3),
    "mkimage": (mkimage, 3), "mkswap": (mkswap, 2), "context": (context, 2),
    "mv": (mv, 2), "delete": (delete, 1), "resize": (resize, 2),
    "snap_create": (on_snapshot("create"), 2), "snap_create_live": (on_snapshot("create", live=True), 2),
    "snap_revert": (on_snapshot("revert"), 2), "snap_delete": (on_snapshot("delete"), 2),
    "prebackup": (prebackup, 4), "prebackup_live": (prebackup, 4), "postbackup": (nothing, 4),
    "postbackup_live": (nothing, 4),
    "premigrate": (nothing, 3), "postmigrate": (nothing, 3), "failmigrate": (nothing, 3)}
