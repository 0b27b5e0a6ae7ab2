# SPDX-License-Identifier: Apache-2.0
"""Write the config drive: nova's metadata as plain files in a directory that the container mounts read-only.

The server's directory is private on the host (:mod:`nova_lxd_ext.storage.directories`). The drive has passwords,
which in a virtual machine only root could read: the container's root, an unprivileged user of the host, gets an ACL
entry before each start, when the engine knows its user id. The drive is mounted at /config-drive, as in nova-lxd,
and at the seed directory where cloud-init's ConfigDrive data source finds it without a block device (cloud-init
documentation, ConfigDrive).
"""

import errno
import shutil
from collections.abc import Sequence

from nova import objects
from nova.api.metadata import base as metadata
from nova.network import model
from nova.virt import configdrive
from oslo_log import log as logging

from containerhost.engines.spec import Mount
from containerhost.linux import acl
from nova_lxd_ext.storage import directories

LOG = logging.getLogger(__name__)

TARGETS = {"config-drive": "/config-drive", "config-drive-seed": "/var/lib/cloud/seed/config_drive"}

DIRECTORY, RESCUE = "configdrive", "configdrive-rescue"


def required(instance: objects.Instance) -> bool:
    return bool(configdrive.required_by(instance))


def write(instance: objects.Instance, injected_files: Sequence[tuple[str, str]], admin_password: str | None,
          network_info: model.NetworkInfo | None, directory: str = DIRECTORY) -> tuple[Mount, ...]:
    """Write a new drive for a server that has one.

    :param injected_files: (path in the server, content); nova makes both content of the drive, without using them as
        paths
    :returns: its mounts in the container; none for a server without one
    :raises OSError: it cannot be written
    """
    if not required(instance):
        return ()
    extra = {"admin_pass": admin_password} if admin_password else {}
    content = metadata.InstanceMetadata(instance, content=injected_files, extra_md=extra, network_info=network_info)
    drive = directories.make(instance.uuid) / directory
    if drive.exists():
        shutil.rmtree(drive)
    for name, data in content.metadata_for_config_drive():
        target = drive / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)
    for path in (drive, *drive.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tuple(Mount(name, str(drive), target) for name, target in TARGETS.items())


def let_read(server: str, root: int) -> None:
    """Permit only the container's root to read the server's drives.

    :param root: its user id on the host
    """
    drives = (directories.of(server) / name for name in (DIRECTORY, RESCUE))
    for path in (path for drive in drives if drive.exists() for path in (drive, *drive.rglob("*"))):
        try:
            acl.let_read(path, root)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            LOG.warning("Every user in the container can read %s: its file system has no POSIX ACLs. Keep "
                        "instances_path on one that has, such as ext4, XFS or Btrfs", path)
            path.chmod(0o755 if path.is_dir() else 0o644)


def remove(instance: objects.Instance, directory: str) -> None:
    drive = directories.of(instance.uuid) / directory
    if drive.exists():
        shutil.rmtree(drive)
