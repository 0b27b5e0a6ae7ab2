# SPDX-License-Identifier: Apache-2.0
"""Check a node for every driver, with a remedy for each complaint."""

import pwd
import shutil
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from containerhost.devices.findings import Severity
from containerhost.engines.contract import ContainerState
from containerhost.errors import ContainerHostError
from containerhost.inventory.scan import scan
from containerhost.linux import run as programs
from containerhost.linux.sysfs import Host
from containerhost.operator import doctor
from containerhost.operator.doctor.memlock import hard_limit
from onedriver.errors import DriverError
from onedriver.node import datastores as node_datastores
from onedriver.node.names import LABEL
from onedriver.node.options import NodeOptions

TIMEOUT = 30  # seconds

Check = Callable[[], Iterable[str]]


def run(load: Callable[[], NodeOptions], user: str, names: Sequence[str], tools: Iterable[str],
        uses: Iterable[Sequence[str]], own: Mapping[str, Check]) -> dict[str, list[str]]:
    """Run the checks of a node.

    :param user: the user that OpenNebula's front-end logs in as
    :param names: of the driver's commands; the first is its own
    :param tools: programs that it needs
    :param uses: of :func:`sudo`
    :param own: checks that only this driver has
    """
    def options() -> Iterable[str]:
        load()
        return ()

    checks: dict[str, Check] = {
        "options": options, "devices": lambda: devices(Path(load().owners)),
        "commands": lambda: commands(names), "tools": lambda: programs.missing(tools),
        "datastores": lambda: datastores(Path(load().datastores), user), "sudo": lambda: sudo(user, names[0], uses)}
    return {name: complaints(look) for name, look in (checks | dict(own)).items()}


def complaints(look: Check) -> list[str]:
    try:
        return list(look())
    except (DriverError, ContainerHostError) as error:
        return [str(error)]


def orphan(state: ContainerState, remedy: str) -> str:
    """Name a container whose VM's directory is gone, and the command that removes it: no program does so by itself."""
    return (f"`{remedy}` if `onevm show {state.labels[LABEL]}` shows no VM or a VM that is DONE: container "
            f"{state.name} is {state.status.value} and has what is in no disk, but its VM's directory is not in the "
            "datastore")


def devices(owners: Path) -> Iterable[str]:
    """Check the host's devices, given the directory of the allocation records."""
    seen = doctor.collect(Host(), owners)
    return [str(finding) for name in ("devices", "numa", "cgroups") for finding in doctor.CHECKS[name](seen)
            if finding.severity is Severity.WRONG]


def datastores(path: Path, user: str) -> Iterable[str]:
    """Report a directory of datastores that is missing, or that root cannot enter without following a link."""
    try:
        node_datastores.open_directory(path).close()
    except FileNotFoundError:
        yield (f"there is no directory {path}: install OpenNebula's node package, or make it: install -d -o {user} -g "
               f"{user} -m 750 {path}")


def memlock(wanted: str, daemon: int) -> Iterable[str]:
    """Report a limit of the engine on locked memory that prevents the start of containers with RDMA.

    :param wanted: ``unlimited`` or bytes
    """
    if not any(device.rdma for device in scan(Host()).devices):
        return
    hard = hard_limit(Host(), daemon)
    if hard is not None and (wanted == "unlimited" or int(hard) < int(wanted)):
        yield (f"the option memlock is {wanted}, but the engine (process {daemon}) may give {hard} bytes: every VM "
               "with an RDMA device would fail to start. Give its service LimitMEMLOCK=infinity and CAP_SYS_RESOURCE, "
               f'or set memlock = "{hard}"')


def peer(path: str) -> int:
    """Return the pid of the listener on a socket, which is systemd's for a socket that it created."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    found: int = struct.unpack("3i", credentials)[0]
    return found


def commands(names: Sequence[str]) -> Iterable[str]:
    return [f"there is no command {name}; link it from the virtual environment of the package: ln -s "
            f"/opt/nova-lxd-ext/bin/{name} /usr/local/bin/"
            for name in names if shutil.which(name) is None]


def version(text: str) -> tuple[int, ...]:
    """Parse ``5.0.2`` to (5, 0, 2); parts that are not numbers are skipped."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def sudo(user: str, command: str, uses: Iterable[Sequence[str]]) -> Iterable[str]:
    """Report each kind of use for which the user may not run the driver's command as root without a password."""
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
        asked = ["sudo", "-n", "-l", "-U", user, shutil.which(command) or command, *words]
        if programs.run(asked, TIMEOUT).returncode != 0:
            yield f"{user} may not run `{command} {' '.join(words)}` through sudo; the manual has the line for sudoers"
