# SPDX-License-Identifier: Apache-2.0
"""Install the scripts that OpenNebula copies from its front-end to every node."""

import contextlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux.files import atomic_write
from onedriver.errors import DriverError

PACKAGE = Path(__file__).parents[2]
SHARED = Path("share/nova-lxd-ext/opennebula")
MODE = 0o755


class NotInstalled(DriverError):
    """Signal that files of this package are missing."""


def source() -> Path:
    """Return the directory with ``remotes`` and the stanzas of a checkout or a package, or raise NotInstalled."""
    places = (PACKAGE / "etc/opennebula", PACKAGE / SHARED, Path(sysconfig.get_path("data")) / SHARED)
    for place in places:
        if (place / "remotes").is_dir():
            return place
    raise NotInstalled(f"the driver's scripts are in none of {', '.join(map(str, places))}: reinstall the package")


def sample(driver: str) -> Path:
    """Return the file of a node's options, with every option at its default."""
    return source().parent / f"{driver}.toml.sample"


def files(driver: str) -> list[Path]:
    """Return a driver's files, relative to ``remotes``: below KIND/DRIVER, KIND/DRIVER.d or KIND/DRIVER-probes.d."""
    directory = source() / "remotes"
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in found if path.parts[1] in (driver, f"{driver}.d", f"{driver}-probes.d"))


def install(remotes: Path, driver: str) -> list[Path]:
    """Install the driver's files, and return the new or changed ones; other files stay."""
    content = {file: (source() / "remotes" / file).read_bytes() for file in files(driver)}
    with as_owner(remotes):
        return [file for file, text in content.items() if install_one(text, remotes / file)]


def install_one(content: bytes, target: Path) -> bool:
    if target.is_file() and target.read_bytes() == content and os.access(target, os.X_OK):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, content, MODE)
    return True


@contextlib.contextmanager
def as_owner(remotes: Path) -> Iterator[None]:
    """Act as the directory's owner in the block: files get that owner, and root cannot be misled by links."""
    owner, groups = remotes.stat(), os.getgroups()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def uninstall(remotes: Path, driver: str) -> list[Path]:
    """Remove only this driver's files, and directories that are then empty; return the files."""
    names = files(driver)
    with as_owner(remotes):
        found = [file for file in names if (remotes / file).is_file()]
        for file in found:
            (remotes / file).unlink()
            for directory in (remotes / file).parents:
                if directory == remotes:
                    break
                with contextlib.suppress(OSError):  # it contains files of others
                    directory.rmdir()
    return found
