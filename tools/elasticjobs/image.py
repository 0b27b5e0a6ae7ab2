# SPDX-License-Identifier: Apache-2.0
"""A Debian with PyTorch, LAMMPS, Open MPI, the programs of examples/elastic and containerhost-guest.

It starts the quick way: busybox is its init. What is in ``files/`` lies there under the same names.
"""

import tempfile
from pathlib import Path

from containerhost.guest import guest
from tools import debian, debianimage
from tools.cloud.layout import CHECKOUT
from tools.debianimage import DebianImage, File

CACHE = CHECKOUT / ".cache" / "elasticjobs"
FILES = Path(__file__).parent / "files"
EXAMPLES = CHECKOUT / "examples" / "elastic"
PROGRAMS = "opt/elastic"  # where the examples are in the image
# PyTorch's threads are OpenMP's, and OpenBLAS of this kind has the same.
PACKAGES = ("busybox-static", "lammps", "libopenblas0-openmp", "openmpi-bin", "python3-torch")
# A third of what the packages bring: Debian's PyTorch is linked with all that OpenCV can do, and pulls compilers and
# drivers of displays in.
LEFT_OUT = (
    "boot/*", "usr/bin/*lto-dump*", "usr/include/*", "usr/lib/gcc/*", "usr/lib/*.a", "usr/lib/*/dri/*",
    "usr/lib/*/libLLVM*", "usr/lib/*/mfx/*", "usr/lib/python3/dist-packages/hypothesis/*",
    "usr/lib/python3/dist-packages/sympy/*", "usr/share/icons/*",
    "usr/share/lammps/*", "usr/share/perl/*", "usr/share/proj/*", "usr/share/X11/*", "usr/share/xml/*",
    "var/cache/*", "var/lib/dpkg/info/*")
INIT = "/sbin/init"
LINKS = {"usr/sbin/init": "/bin/busybox"}


def recipe() -> DebianImage:
    """Return the image, whose programs are compiled now.

    :raises debian.Failed: the program cannot be compiled
    """
    files = {f"{PROGRAMS}/{file.name}": File(file.read_bytes(), 0o755) for file in EXAMPLES.iterdir()
             if file.suffix in (".py", ".lammps")}
    return DebianImage(CACHE, PACKAGES, {
        **base(), **files, f"{PROGRAMS}/openmp": File(compiled(EXAMPLES / "openmp.c"), 0o755)}, LINKS, LEFT_OUT)


def base() -> dict[str, File]:
    """Return the files of an image that starts so and has the helper for guests."""
    helper = Path(guest.__file__).read_bytes()
    return {**debianimage.below(FILES), "usr/local/bin/containerhost-guest": File(helper, 0o755),
            "usr/lib/python3/dist-packages/containerhost_guest.py": File(helper)}


def compiled(source: Path) -> bytes:
    """Return an OpenMP program that needs no library of its image."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / source.stem
        debian.run(["gcc", "-O2", "-fopenmp", "-static", str(source), "-o", str(program)])
        return program.read_bytes()
