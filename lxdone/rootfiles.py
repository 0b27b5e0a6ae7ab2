"""Where the content of a VM's root is while it is read: a file of a datastore, or an image of Ceph for that time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lxdone import ceph, translate
from onedriver.vm import Vm


@contextlib.contextmanager
def opened(vm: Vm, file: Path) -> Iterator[Path]:
    """:param file: its place in the datastore of files
    """
    disk = translate.root(vm)
    if disk.type != "RBD":
        yield file
        return
    name = ceph.image(vm.id, disk)
    try:
        yield ceph.connect(name, disk.ceph.user if disk.ceph else None, read_only=True)
    finally:
        ceph.disconnect(name)
