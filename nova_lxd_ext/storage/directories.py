# SPDX-License-Identifier: Apache-2.0
"""Manage the directory of one server's files on the host: its config drive, its console's output.

It is ``<instances_path>/<server uuid>/lxd-<compute host>``, accessible only to nova-compute and root. The host is in
its name because operators may share ``instances_path`` between hosts, and a host must not remove another's.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import nova.conf

CONF = nova.conf.CONF


def of(uuid: str) -> Path:
    return Path(CONF.instances_path) / uuid / _name()


def make(uuid: str) -> Path:
    """Create the server's directory.

    :raises OSError: it cannot be created
    """
    directory = of(uuid)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def remove(uuid: str) -> None:
    """Remove the directory if it exists, and its parent if that is empty."""
    directory = of(uuid)
    if directory.exists():
        shutil.rmtree(directory)
    if directory.parent.exists() and not any(directory.parent.iterdir()):
        directory.parent.rmdir()


def remove_all_but(uuids: Iterable[str]) -> tuple[str, ...]:
    """Remove the directories of this host's servers that are not in ``uuids``.

    :returns: the uuids whose directories were removed
    """
    leftover = tuple(sorted(all_uuids().difference(uuids)))
    for uuid in leftover:
        remove(uuid)
    return leftover


def all_uuids() -> set[str]:
    """Return the servers that have a directory on this host."""
    return {path.parent.name for path in Path(CONF.instances_path).glob(f"*/{_name()}")}


def _name() -> str:
    return f"lxd-{CONF.host}"
