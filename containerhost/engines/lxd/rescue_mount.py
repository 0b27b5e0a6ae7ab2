# SPDX-License-Identifier: Apache-2.0
"""Mount the root disk of a stopped container, writable, in another one.

LXD has no device for it, but a disk device takes any directory of the host, and on pools that are directories the
roots of stopped containers are such directories. The owners of its files are those of the stopped container: the
other container, or on kernels that map ids at mounts the mount, gets the same range of user ids.
"""

import os
from collections.abc import Mapping
from typing import Any

from containerhost.engines.lxd.client import LxdClient, usual_socket
from containerhost.engines.spec import RescueMount
from containerhost.errors import SpecError

# Pools whose volumes are always mounted on the host. LXD mounts those of others (zfs, lvm, ceph) only while their
# container runs.
DIRECTORIES = ("btrfs", "dir", "cephfs")
DEVICE = "rescue_mount"


def body(client: LxdClient, wanted: dict[str, Any], rescue_mount: RescueMount) -> dict[str, Any]:
    """Return the body of ``POST /1.0/instances`` for a container that also mounts the root of another.

    :raises SpecError: the pool's roots are not directories
    """
    broken, _ = client.instance(rescue_mount.container)
    root = root_of(client, broken, require_directory(client, broken))
    return wanted | {
        "config": wanted["config"] | ids(broken["config"]),
        "devices": wanted["devices"] | {DEVICE: device(root, rescue_mount.target, broken["config"])}}


def require_directory(client: LxdClient, broken: Mapping[str, Any]) -> str:
    """Refuse a root disk that another container cannot mount."""
    name = next(device["pool"] for device in broken["expanded_devices"].values()
                if device.get("type") == "disk" and device.get("path") == "/")
    driver = client.pool(name)["driver"]
    if driver not in DIRECTORIES:
        raise SpecError(f"the root of container {broken['name']} is in storage pool {name} of type {driver}, which "
                        f"mounts it only while the container runs; another container can mount it on pools of type "
                        f"{', '.join(DIRECTORIES)}")
    return str(name)


def root_of(client: LxdClient, broken: Mapping[str, Any], pool: str) -> str:
    """Return LXD's path of a container's root, which names any project other than the default one."""
    endpoint = client.settings.endpoint or ""
    home = os.path.dirname(endpoint if endpoint.startswith("/") else usual_socket())
    project = broken.get("project") or "default"
    name = broken["name"] if project == "default" else f"{project}_{broken['name']}"
    return f"{home}/storage-pools/{pool}/containers/{name}/rootfs"


def ids(broken: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration that gives a container the user ids of the broken one."""
    config = {key: broken[key] for key in ("security.privileged", "security.idmap.isolated") if key in broken}
    if config.get("security.idmap.isolated") == "true" and broken.get("volatile.idmap.base"):
        config["security.idmap.base"] = broken["volatile.idmap.base"]
    return config


def device(source: str, target: str, broken: Mapping[str, str]) -> dict[str, str]:
    """Return the device for the root, with the ids to which LXD has shifted its files."""
    shifted = broken.get("volatile.last_state.idmap", "[]") not in ("", "[]")
    mapped = shifted or broken.get("security.privileged") == "true"
    return {"type": "disk", "source": source, "path": target} | ({} if mapped else {"shift": "true"})
