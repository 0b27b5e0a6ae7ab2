# SPDX-License-Identifier: Apache-2.0
"""A Debian with Open MPI, sshd and cloud-init, for LXD and for Docker. It starts the quick way: busybox is its init.

What is in ``files/`` lies there under the same names.
"""

from pathlib import Path

from tools import debianimage
from tools.cloud.layout import CHECKOUT
from tools.debianimage import DebianImage, File

CACHE = CHECKOUT / ".cache" / "mpi"
FILES = Path(__file__).parent / "files"
PROGRAM = CHECKOUT / "examples" / "mpi" / "ranks.py"
PACKAGES = ("busybox-static", "cloud-init", "ifupdown", "iproute2", "openmpi-bin", "openssh-server", "python3-mpi4py")
INIT = "/sbin/init"


def recipe() -> DebianImage:
    files = {**debianimage.below(FILES), "usr/local/bin/ranks": File(PROGRAM.read_bytes(), 0o755)}
    return DebianImage(CACHE, PACKAGES, files, {"usr/sbin/init": "/bin/busybox"})
