# SPDX-License-Identifier: Apache-2.0
"""The root disk of a stopped container, seen and writable in another one.

LXD has no device for it, but a disk device takes any folder of the host, and on pools that are folders the roots of
stopped containers are such folders. Inside, files belong to whom they belong in the stopped container: the other one
gets the same range of user ids, or, where the host's kernel maps ids at the mount, the mount does.
"""

import os
from collections.abc import Mapping
from typing import Any

from containerhost.engines.lxd.client import LxdClient, usual_socket
from containerhost.errors import SpecError
from containerhost.spec import Salvaged

# Pools whose roots lie in the host's tree also while nothing runs. LXD mounts those of the others (zfs, lvm, ceph) only
# as long as their container runs.
FOLDERS = ("btrfs", "dir", "cephfs")
DEVICE = "salvaged"


def body(client: LxdClient, wanted: dict[str, Any], salvaged: Salvaged) -> dict[str, Any]:
    """The body of ``POST /1.0/instances`` for a container that also sees the root of another.

    :param wanted: the body without it
    :raises SpecError: the pool's roots are no folders
    """
    broken, _ = client.instance(salvaged.container)
    root = root_of(client, broken, require_folder(client, broken))
    return wanted | {
        "config": wanted["config"] | ids(broken["config"]),
        "devices": wanted["devices"] | {DEVICE: device(root, salvaged.target, broken["config"])}}


def require_folder(client: LxdClient, broken: Mapping[str, Any]) -> str:
    """:returns: the pool of the container's root"""
    name = next(device["pool"] for device in broken["expanded_devices"].values()
                if device.get("type") == "disk" and device.get("path") == "/")
    driver = client.pool(name)["driver"]
    if driver not in FOLDERS:
        raise SpecError(f"the root of container {broken['name']} lies in storage pool {name} of type {driver}, which "
                        f"shows it only while the container runs; it can be seen from another container on pools of "
                        f"type {', '.join(FOLDERS)}")
    return str(name)


def root_of(client: LxdClient, broken: Mapping[str, Any], pool: str) -> str:
    """Where LXD keeps a container's root: instances of other projects than the default one carry its name."""
    endpoint = client.settings.endpoint or ""
    home = os.path.dirname(endpoint if endpoint.startswith("/") else usual_socket())
    project = broken.get("project") or "default"
    name = broken["name"] if project == "default" else f"{project}_{broken['name']}"
    return f"{home}/storage-pools/{pool}/containers/{name}/rootfs"


def ids(broken: Mapping[str, str]) -> dict[str, str]:
    """Configuration that gives a container the same user ids as the broken one has."""
    config = {key: broken[key] for key in ("security.privileged", "security.idmap.isolated") if key in broken}
    if config.get("security.idmap.isolated") == "true" and broken.get("volatile.idmap.base"):
        config["security.idmap.base"] = broken["volatile.idmap.base"]
    return config


def device(source: str, target: str, broken: Mapping[str, str]) -> dict[str, str]:
    """LXD remembers the ids that the files on disk were shifted to; none where the kernel maps them at the mount."""
    shifted = broken.get("volatile.last_state.idmap", "[]") not in ("", "[]")
    mapped = shifted or broken.get("security.privileged") == "true"
    return {"type": "disk", "source": source, "path": target} | ({} if mapped else {"shift": "true"})
