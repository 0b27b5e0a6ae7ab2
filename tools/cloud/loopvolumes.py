# SPDX-License-Identifier: Apache-2.0
"""A backend of Cinder for a cloud that is for tests only: volumes are files, shown to this machine as loop devices.

It stands in for LVM and iSCSI where the kernel has neither. What a driver of Nova does with a volume, it does with any
block device; how a volume gets to the host is os-brick's (connector type ``local``).
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cinder.volume import driver
from oslo_config import cfg

GIB = 1024 ** 3
OPTIONS = [cfg.StrOpt("loop_directory", help="Directory of the volumes' files.")]


class LoopDriver(driver.VolumeDriver):
    """:raises OSError: the directory is full; no loop device is free is a CalledProcessError"""

    VERSION = "1.0"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(OPTIONS)

    @property
    def _directory(self) -> Path:
        return Path(self.configuration.loop_directory)

    def check_for_setup_error(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    def _update_volume_stats(self) -> None:
        space = shutil.disk_usage(self._directory)
        self._stats = {
            "volume_backend_name": self.configuration.volume_backend_name, "vendor_name": "none",
            "driver_version": self.VERSION, "storage_protocol": "local", "multiattach": True,
            "thin_provisioning_support": True, "max_over_subscription_ratio": 100.0, "provisioned_capacity_gb": 0,
            "total_capacity_gb": space.total / GIB, "free_capacity_gb": space.free / GIB, "reserved_percentage": 0,
            "online_extend_support": True}

    # Volumes

    def create_volume(self, volume: Any) -> None:
        resize(self._file(volume), volume.size)

    def delete_volume(self, volume: Any) -> None:
        self.remove_export(None, volume)
        self._file(volume).unlink(missing_ok=True)

    def extend_volume(self, volume: Any, new_size: int) -> None:
        resize(self._file(volume), new_size)
        for device in devices_of(self._file(volume)):
            losetup("--set-capacity", device)

    def create_cloned_volume(self, volume: Any, src_vref: Any) -> None:
        self._copy(self._file(src_vref), volume)

    def clone_image(self, context: Any, volume: Any, image_location: Any, image_meta: Mapping[str, Any],
                    image_service: Any) -> tuple[dict[str, Any], bool]:
        """Without the conversion by qemu-img, which neither is installed nor has anything to do for raw images."""
        with self._file(volume).open("wb") as file:
            image_service.download(context, image_meta["id"], file)
        resize(self._file(volume), volume.size)
        return {}, True

    def copy_volume_to_image(self, context: Any, volume: Any, image_service: Any,
                             image_meta: Mapping[str, Any]) -> None:
        with self._file(volume).open("rb") as file:
            image_service.update(context, image_meta["id"], {}, file)

    # Snapshots

    def create_snapshot(self, snapshot: Any) -> None:
        copy(self._file(snapshot.volume), self._file(snapshot))

    def delete_snapshot(self, snapshot: Any) -> None:
        self._file(snapshot).unlink(missing_ok=True)

    def create_volume_from_snapshot(self, volume: Any, snapshot: Any) -> None:
        self._copy(self._file(snapshot), volume)

    # Ways to the host

    def initialize_connection(self, volume: Any, connector: Any) -> dict[str, Any]:
        """Return the same device for all servers of the volume."""
        file = self._file(volume)
        found = devices_of(file) or [losetup("--find", "--show", str(file))]
        return {"driver_volume_type": "local", "data": {"device_path": found[0]}}

    def terminate_connection(self, volume: Any, connector: Any, **_more: Any) -> None:
        """Detach the device when the last server that had it lets go of it."""
        if len(volume.volume_attachment or ()) <= 1:
            self.remove_export(None, volume)

    def create_export(self, context: Any, volume: Any, connector: Any) -> None:
        """Do nothing: a connection is all it takes."""

    def ensure_export(self, context: Any, volume: Any) -> None:
        """Do nothing: a connection is all it takes."""

    def remove_export(self, context: Any, volume: Any) -> None:
        for device in devices_of(self._file(volume)):
            losetup("--detach", device)

    def _file(self, of: Any) -> Path:
        """Return the file of a volume or a snapshot; Cinder makes both names from their ids."""
        return self._directory / of.name

    def _copy(self, source: Path, volume: Any) -> None:
        copy(source, self._file(volume))
        resize(self._file(volume), volume.size)


def resize(file: Path, size: int) -> None:
    """:param size: GiB; nothing is written, so a new volume takes no space"""
    with file.open("ab") as data:
        data.truncate(size * GIB)


def copy(source: Path, target: Path) -> None:
    subprocess.run(("cp", "--sparse=always", "--reflink=auto", str(source), str(target)), check=True,
                   capture_output=True)


def devices_of(file: Path) -> list[str]:
    """Return the loop devices that show a file, as long as it is there."""
    if not file.exists():
        return []
    told = losetup("--noheadings", "--raw", "--output", "NAME", "--associated", str(file))
    return told.split()


def losetup(*arguments: str) -> str:
    return subprocess.run(("losetup", *arguments), text=True, check=True, capture_output=True).stdout.strip()
