# SPDX-License-Identifier: Apache-2.0
"""The folder of the host that keeps what belongs to one server: its config drive, its console's output.

It is ``<instances_path>/<server uuid>/lxd-<compute host>``, closed to everybody but nova-compute and root. The host is
in its name because operators share ``instances_path`` between hosts, and no host may clear away another's.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import nova.conf

CONF = nova.conf.CONF


def of(uuid: str) -> Path:
    return Path(CONF.instances_path) / uuid / _name()


def make(uuid: str) -> Path:
    """:raises OSError: when it cannot be made"""
    folder = of(uuid)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def remove(uuid: str) -> None:
    """Remove the folder if it is there, and the one above it when nobody else has anything in it."""
    folder = of(uuid)
    if folder.exists():
        shutil.rmtree(folder)
    if folder.parent.exists() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def remove_all_but(uuids: Iterable[str]) -> tuple[str, ...]:
    """Remove the folders of this host's servers that are not in ``uuids``.

    :returns: the uuids whose folders were removed
    """
    leftover = tuple(sorted(all_uuids().difference(uuids)))
    for uuid in leftover:
        remove(uuid)
    return leftover


def all_uuids() -> set[str]:
    """The servers that have a folder on this host."""
    return {path.parent.name for path in Path(CONF.instances_path).glob(f"*/{_name()}")}


def _name() -> str:
    return f"lxd-{CONF.host}"
