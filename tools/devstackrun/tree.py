# SPDX-License-Identifier: Apache-2.0
"""The root file system of the machine: a Debian with systemd and a user for DevStack."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tools import debian

PACKAGES = ("ca-certificates", "dbus", "git", "iproute2", "iputils-ping", "kmod", "lsb-release", "procps",
            "python3-venv", "sudo", "systemd-sysv")
USER = "stack"
HOME = "/opt/stack"
# No uevent of the real kernel is for this machine, and it has no iSCSI: DevStack restarts iscsid all the same.
MASKED = ("systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket",
          "systemd-udev-trigger.service", "tmp.mount", "console-getty.service", "getty.target")
FILES = {
    "etc/hostname": "devstack\n",
    "etc/hosts": "127.0.0.1 localhost\n10.0.2.100 devstack\n",
    "etc/resolv.conf": "nameserver 10.0.2.3\n",
    "etc/apt/apt.conf.d/90devstack": 'APT::Install-Recommends "false";\n',
    "etc/gitconfig": "[safe]\n\tdirectory = *\n",
    "etc/sudoers.d/stack": f"{USER} ALL=(ALL) NOPASSWD: ALL\n",
    "etc/systemd/journald.conf.d/devstack.conf": "[Journal]\nReadKMsg=no\nStorage=volatile\n",
    "etc/systemd/system/iscsid.service.d/devstack.conf":
        "[Unit]\nConditionVirtualization=\n[Service]\nType=oneshot\nExecStartPre=\nExecStart=\nExecStart=/bin/true\n",
}
# How this machine's pip and TLS reach what they fetch from.
COPIED = ("etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")


def base(directory: Path, say: Callable[[str], None]) -> Path:
    """Return the file system as mmdebstrap makes it, which is kept in ``directory``.

    :raises debian.Failed: mmdebstrap failed
    """
    codename = debian.release()
    archives = debian.sources()
    archives += [line for line in debian.backports(archives, codename) if line not in archives]
    wanted = "\n".join((*archives, *PACKAGES, Path(debian.__file__).read_text(encoding="utf-8")))
    tree = directory / f"base-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not tree.exists():
        say("A Debian with systemd is made, which takes a minute or two")
        for old in directory.glob("base-*"):
            shutil.rmtree(old)
        directory.mkdir(parents=True, exist_ok=True)
        making = directory / "base-unfinished"
        debian.debootstrap(making, codename, archives, PACKAGES)
        making.rename(tree)
    return tree


def make(root: Path, source: Path) -> None:
    """Make the root of a new machine from :func:`base`."""
    root.parent.mkdir(parents=True, exist_ok=True)
    debian.run(["cp", "--archive", "--reflink=auto", str(source), str(root)])
    for name in COPIED:
        if (found := Path("/", name)).exists():
            shutil.copy(found.resolve(), root / name)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "etc/sudoers.d/stack").chmod(0o440)
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    debian.run(["chroot", str(root), "useradd", "--create-home", "--home-dir", HOME, "--shell", "/bin/bash", USER])
    (root / HOME[1:]).chmod(0o755)
