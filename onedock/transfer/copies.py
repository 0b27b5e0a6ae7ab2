# SPDX-License-Identifier: Apache-2.0
"""Copy disks from a datastore to nodes and back. Imported only for such actions, because it needs registries."""

import dataclasses
from pathlib import Path
from typing import BinaryIO

from onedock import datafiles
from onedock.datastore import archives, content, export, options
from onedock.datastore.record import Record
from onedock.datastore.store import IMAGE, Store
from onedock.transfer import streams
from onedock.transfer.actions import Call
from onedock.transfer.node_agent import Request
from onedock.transfer.nodes import Node
from onedriver import disk_paths
from onedriver.disk_paths import DiskPath
from onedriver.errors import BadInput, NotSupported

NO_SNAPSHOT = "-1"


# To a node.


def clone(call: Call) -> None:
    source, target = disk_paths.source(call.arguments[0]), call.disk(1)
    node = Node(target.host)
    known = Store(source.parent).known(str(source))
    if known.suffix == IMAGE:
        bring_image(Store(source.parent), Record.read(known), node, target)
        return
    node.ask("receive", target.path, lambda out: streams.send(known, out), name=known.name)


def bring_image(store: Store, record: Record, node: Node, target: DiskPath) -> None:
    what: Request = {"vm": target.vm, "image": record.image}
    if not node.ask("hold", target.path, **what)["held"]:
        if record.directory is None:
            node.ask("pull", target.path, lambda out: pulling(record, out), **what)
        else:
            node.ask("load", target.path, lambda out: export.write(store.directory(record), out), **what)
    node.ask("write", target.path, ref={"image": record.image, "reference": record.reference})


def pulling(record: Record, out: BinaryIO) -> None:
    """Write the engine's input for pulling an image: its reference, and the registry's credentials, if any."""
    out.write(options.pulling(record.reference, record.credentials).encode() + b"\n")


# Back to a datastore.


def mvds(call: Call) -> None:
    """Save the disk of a persistent image, which gets the VM's data."""
    save(call.disk(0), disk_paths.source(call.arguments[1]), "send_archive")


def cpds(call: Call) -> None:
    """Save a disk, or a snapshot of it, as an image. Some versions of oned pass a format before the snapshot."""
    disk, snapshot = call.disk(0), call.arguments[-1]
    save(disk, disk_paths.source(call.arguments[1]), "send_root",
         None if snapshot == NO_SNAPSHOT else disk_paths.number(snapshot, "the snapshot"))


def save(disk: DiskPath, source: Path, how: str, snapshot: int | None = None) -> None:
    """Write a disk, perhaps of a running VM, to an image; a node sends a container's content by ``how``."""
    store, node = Store(source.parent), Node(disk.host)
    place = store.known(str(source))
    if place.suffix != IMAGE:
        path = disk.path if snapshot is None else datafiles.snapshots(disk.path) / str(snapshot)
        with node.reading("send", disk.path, frozen=snapshot is None) as stream:
            keep(stream, path.relative_to(disk.directory), disk, place, store)
        return
    if snapshot is not None:
        raise NotSupported("the root of a container has no disk snapshots, but those of its VM (onevm snapshot-create)")
    if how == "send_archive":
        node.ask("leave", disk.directory)  # of a VM that was off, its container alone has what it wrote
    found = node.ask("read", disk.path)
    if how == "send_archive" and found["vm"] is None:
        return  # the VM never wrote to it, or it is already there
    room = store.room()
    with store.scratch() as scratch:
        archive = scratch / "archive"
        with node.reading(how, disk.path, vm=disk.vm) as stream, archive.open("xb") as file:
            room.copy(stream, file)
        with archive.open("rb") as file:
            tarball = archives.Tarball(file, f"what VM {disk.vm} wrote")
            image = archives.read(tarball, content.own_architecture(), f"what VM {disk.vm} wrote")
            # The node's Docker wrote it, of what the node has.
            store.put(place, dataclasses.replace(image, reference=found["reference"]).proven(), room)


def keep(stream: BinaryIO, wanted: Path, disk: DiskPath, place: Path, store: Store) -> None:
    """Replace an image's data by a node's; ``wanted`` is the disk with its snapshots, or one of these."""
    with store.scratch() as scratch:
        streams.receive(stream, str(disk.disk), scratch / str(disk.disk))
        found = scratch / wanted
        if not found.is_file():
            raise BadInput(f"{disk.path} has no snapshot {wanted.name}")
        datafiles.put_in_place(found, place)
