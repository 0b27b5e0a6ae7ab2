# SPDX-License-Identifier: Apache-2.0
"""Run programs of the host: each with a time limit, none through a shell."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

from containerhost.errors import HostActionFailed

# Packages of Debian and Ubuntu, and of Fedora and RHEL where they differ.
PACKAGES = {
    "blkid": "util-linux", "bzip2": "bzip2", "e2fsck": "e2fsprogs", "gzip": "gzip",
    "ip": "iproute2 (iproute)", "mke2fs": "e2fsprogs", "mkfs.ext4": "e2fsprogs",
    "mount": "util-linux (util-linux-core)", "ovs-vsctl": "openvswitch-switch (openvswitch)",
    "partx": "util-linux (util-linux-core)",
    "prlimit": "util-linux (util-linux-core)",
    "qemu-img": "qemu-utils (qemu-img)", "rbd": "ceph-common", "rdma": "iproute2 (iproute)", "resize2fs": "e2fsprogs",
    "runc": "runc, or Docker's containerd.io", "sfdisk": "fdisk (util-linux)",
    "sqfs2tar": "squashfs-tools-ng", "ssh": "openssh-client (openssh-clients)", "sudo": "sudo", "tar": "tar",
    "tc": "iproute2 (iproute-tc)",
    "unshare": "util-linux (util-linux-core)", "unsquashfs": "squashfs-tools", "xfs_growfs": "xfsprogs",
    "xz": "xz-utils (xz)", "zstd": "zstd",
}


def run(command: Sequence[str], limit: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit status, and capture what it prints.

    :param limit: seconds after which it is killed
    :param options: of :func:`subprocess.run`
    :raises HostActionFailed: it cannot be run, or was killed
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, check=False,
                              **{"stdin": subprocess.DEVNULL} | options)
    except subprocess.TimeoutExpired as error:
        raise HostActionFailed(f"`{' '.join(command)}` did not end within {limit:g} s") from error
    except OSError as error:
        raise HostActionFailed(f"`{' '.join(command)}`: {not_run(command[0], error)}") from error


def not_run(program: str, error: OSError) -> str:
    """Say in words why a program could not be begun, and for one that is missing which package has it."""
    if not isinstance(error, FileNotFoundError):
        return f"program {program} cannot be run: {error}"
    return f"this host has no program {program}; {remedy(program)}"


def missing(names: Iterable[str]) -> Sequence[str]:
    """Return a sentence for each program that this host lacks."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [f"there is no program {name}; {remedy(name)}" for name in names if shutil.which(name, path=path) is None]


def remedy(program: str) -> str:
    package = PACKAGES.get(program)
    return f"install {f'package {package}' if package else 'it'}"
