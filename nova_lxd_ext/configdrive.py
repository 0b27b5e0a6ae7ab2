"""The config drive: nova's metadata as plain files in a folder of the host that the container sees read-only.

It stands at ``<instances_path>/<server uuid>/configdrive``. The server's folder is closed to everybody but nova-compute
and root; inside it the files are readable by all, because the container's root is some unprivileged user of the host.
The container sees the drive at /config-drive, where nova-lxd had it, and at the seed folder where cloud-init's
ConfigDrive data source looks without any block device (cloud-init documentation, ConfigDrive).
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import nova.conf
from nova import objects
from nova.api.metadata import base as metadata
from nova.network import model
from nova.virt import configdrive

from containerhost.spec import Mount

CONF = nova.conf.CONF
FOLDER = "configdrive"
TARGETS = {"config-drive": "/config-drive", "config-drive-seed": "/var/lib/cloud/seed/config_drive"}


def required(instance: objects.Instance) -> bool:
    return bool(configdrive.required_by(instance))


def write(instance: objects.Instance, injected_files: Sequence[tuple[str, str]], admin_password: str | None,
          network_info: model.NetworkInfo | None) -> tuple[Mount, ...]:
    """Write the drive anew.

    :param injected_files: (path in the server, content); nova keeps both as content of the drive, no path of it is used
    :returns: how the container sees it
    :raises OSError: when the folder cannot be written
    """
    extra = {"admin_pass": admin_password} if admin_password else {}
    content = metadata.InstanceMetadata(instance, content=injected_files, extra_md=extra, network_info=network_info)
    home = _home(instance.uuid)
    remove(instance.uuid)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    drive = home / FOLDER
    for name, data in content.metadata_for_config_drive():
        target = drive / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)
    for path in (drive, *drive.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tuple(Mount(name, str(drive), target) for name, target in TARGETS.items())


def remove(uuid: str) -> None:
    """Remove the drive if it is there, and the server's folder when nothing else is in it."""
    home = _home(uuid)
    if (home / FOLDER).exists():
        shutil.rmtree(home / FOLDER)
    if home.exists() and not any(home.iterdir()):
        home.rmdir()


def remove_all_but(uuids: Iterable[str]) -> tuple[str, ...]:
    """Remove the drives of every server not in ``uuids``.

    :returns: the uuids whose drives were removed
    """
    kept = frozenset(uuids)
    found = sorted(path.parent.name for path in Path(CONF.instances_path).glob(f"*/{FOLDER}"))
    leftover = tuple(uuid for uuid in found if uuid not in kept)
    for uuid in leftover:
        remove(uuid)
    return leftover


def _home(uuid: str) -> Path:
    return Path(CONF.instances_path) / uuid
