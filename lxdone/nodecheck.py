"""Whether a node can run VMs: what is wrong, each with what to do."""

import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from containerhost import doctor, topology
from containerhost.devices.scan import scan
from containerhost.errors import ContainerHostError
from containerhost.sysfs import Host
from lxdone import backend, conf
from onedriver.errors import DriverError

COMMANDS = ("lxdone", "lxdone-monitor")
OLDEST = {"lxd": (5, 0), "incus": (6, 0)}
LIMIT = 30  # seconds


def check(user: str) -> dict[str, list[str]]:
    """:param user: who OpenNebula's front-end logs in as
    :returns: complaints, by what was looked at
    """
    checks: Mapping[str, Callable[[], Iterable[str]]] = {
        "options": options, "engine": engine, "devices": devices, "commands": commands, "sudo": lambda: sudo(user)}
    return {name: complaints(look) for name, look in checks.items()}


def complaints(look: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return list(look())
    except (DriverError, ContainerHostError) as error:
        return [str(error)]


def options() -> Iterable[str]:
    conf.load()
    return ()


def engine() -> Iterable[str]:
    chosen = conf.load()
    lxd = backend.engine(chosen)
    server = lxd.server()
    if version(server.version) < OLDEST.get(server.name, (0,)):
        yield f"{server.name} {server.version} is too old; install {'.'.join(map(str, OLDEST[server.name]))} or later"
    lxd.pool(chosen.storage_pool)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def devices() -> Iterable[str]:
    host = Host()
    return doctor.complaints(scan(host), topology.read(host), Path(conf.load().owners))


def commands() -> Iterable[str]:
    return [f"there is no command {name}; install the package so that its commands are in {place()}"
            for name in COMMANDS if shutil.which(name) is None]


def place() -> str:
    return "/usr/local/bin or /usr/bin"


def sudo(user: str) -> Iterable[str]:
    """Whether the user may run the driver as root without a password."""
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
    for words in (("vmm", "deploy"), ("probe", "host/system")):
        done = subprocess.run(["sudo", "-n", "-l", "-U", user, shutil.which("lxdone") or "lxdone", *words],
                              capture_output=True, timeout=LIMIT, check=False)
        if done.returncode != 0:
            yield f"{user} may not run `lxdone {' '.join(words)}` through sudo; the manual has the line for sudoers"
