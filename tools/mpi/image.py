# SPDX-License-Identifier: Apache-2.0
"""A Debian with Open MPI, sshd and cloud-init, for LXD and for Docker. It starts the quick way: busybox is its init.

What is in ``files/`` lies there under the same names.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import debianimage
from tools.cloud.layout import CHECKOUT
from tools.debianimage import DebianImage, File

CACHE = CHECKOUT / ".cache" / "mpi"
FILES = Path(__file__).parent / "files"
PROGRAM = CHECKOUT / "examples" / "mpi" / "ranks.py"
PACKAGES = ("busybox-static", "cloud-init", "ifupdown", "iproute2", "openssh-server")
INIT = "/sbin/init"


def recipe() -> DebianImage:
    return member(CACHE, ("openmpi-bin", "python3-mpi4py"), {"usr/local/bin/ranks": File(PROGRAM.read_bytes(), 0o755)})


def member(cache: Path, packages: Sequence[str], files: Mapping[str, File]) -> DebianImage:
    """Return an image of members of jobs: it does what ``hpcjob`` asks for, runs sshd, and at each boot /etc/rc.local.

    :param packages, files: what it has besides
    """
    return DebianImage(cache, sorted((*PACKAGES, *packages)), {**debianimage.below(FILES), **files},
                       {"usr/sbin/init": "/bin/busybox"}, ("etc/munge/munge.key",))
