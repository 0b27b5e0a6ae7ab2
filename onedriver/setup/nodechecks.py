"""What every driver's check of a node looks at: complaints, each with what to do."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from containerhost import topology
from containerhost.devices.scan import scan
from containerhost.errors import ContainerHostError
from containerhost.reports import doctor
from containerhost.sysfs import Host
from onedriver.errors import DriverError

LIMIT = 30  # seconds
PLACE = "/usr/local/bin or /usr/bin"

Check = Callable[[], Iterable[str]]


def run(checks: Mapping[str, Check]) -> dict[str, list[str]]:
    """:returns: complaints, by what was looked at"""
    return {name: complaints(look) for name, look in checks.items()}


def complaints(look: Check) -> list[str]:
    try:
        return list(look())
    except (DriverError, ContainerHostError) as error:
        return [str(error)]


def devices(owners: Path) -> Iterable[str]:
    """:param owners: folder of the ownership records"""
    host = Host()
    return doctor.complaints(scan(host), topology.read(host), owners)


def commands(names: Sequence[str]) -> Iterable[str]:
    return [f"there is no command {name}; install the package so that its commands are in {PLACE}"
            for name in names if shutil.which(name) is None]


def tools(names: Sequence[str]) -> Iterable[str]:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [f"there is no program {name}; install it" for name in names if shutil.which(name, path=path) is None]


def version(text: str) -> tuple[int, ...]:
    """``5.0.2`` as (5, 0, 2); a part that is no number is left out."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def sudo(user: str, command: str, uses: Iterable[Sequence[str]]) -> Iterable[str]:
    """Whether the user may run a driver's command as root without a password.

    :param uses: its arguments, one of each kind that is needed
    """
    try:
        number = pwd.getpwnam(user).pw_uid
    except KeyError:
        yield f"there is no user {user}; install OpenNebula's node package, or name the front-end's user with --user"
        return
    if number == 0:
        return
    if shutil.which("sudo") is None:
        yield "there is no sudo, through which the driver's scripts become root; install it"
        return
    for words in uses:
        done = subprocess.run(["sudo", "-n", "-l", "-U", user, shutil.which(command) or command, *words],
                              capture_output=True, timeout=LIMIT, check=False)
        if done.returncode != 0:
            yield f"{user} may not run `{command} {' '.join(words)}` through sudo; the manual has the line for sudoers"
