# SPDX-License-Identifier: Apache-2.0
"""Load the administrator's options of a node: a TOML file whose keys are the fields of a driver's dataclass.

Without a file all options have their defaults. Unknown options, and options of the wrong type, are refused: a
misspelt restriction would otherwise be ignored.
"""

import dataclasses
import os
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from containerhost.engines.spec import PROCESSES
from onedriver.errors import DriverError
from onedriver.node.pcifilter import PciFilter

CORES = re.compile(r"([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?")
LONGEST = 86_400.0  # seconds


class BadOptions(DriverError):
    """Signal that the options cannot be used."""


@dataclasses.dataclass(frozen=True)
class NodeOptions:
    """Hold the options that every driver has.

    :ivar endpoint: the engine's socket
    :ivar datastores: directory of OpenNebula's datastores on this node
    :ivar state: directory of the driver's files for each VM
    :ivar owners: directory of the allocation records (device to container); all drivers of the node share it
    :ivar stop_timeout: seconds for a guest to shut down
    :ivar shrink_notice: seconds that a listening guest has to release resources
    :ivar request_timeout: seconds without an answer of the engine
    :ivar operation_timeout: seconds an operation of the engine may take
    :ivar exec_timeout: seconds a command of ``onevm exec`` may take; then it is killed
    :ivar migration_timeout: seconds that one round of copying a VM to another node may take in a live migration
    :ivar process_limit: maximum number of processes and threads of a container; a template may request fewer
    :ivar reserved_cores: cores for the host, which no container with an affinity gets: ``0-1,32``
    :ivar memlock: locked-memory limit of containers with RDMA: ``unlimited`` or bytes
    :ivar management_nodes: give umad and issm with InfiniBand functions
    :ivar gpu_capabilities: which of the GPU driver's libraries come with a GPU (``compute``, ``utility``…)
    :ivar pci_filter, pci_short_address, pci_device_name: of :class:`PciFilter`
    """

    endpoint: str = ""
    datastores: str = "/var/lib/one/datastores"
    state: str = ""
    owners: str = "/var/lib/containerhost/owners"
    stop_timeout: int = 120
    shrink_notice: int = 30
    request_timeout: int = 30
    operation_timeout: int = 300
    exec_timeout: int = 3600
    migration_timeout: int = 3600
    process_limit: int = PROCESSES
    reserved_cores: str = ""
    memlock: str = "unlimited"
    management_nodes: bool = False
    gpu_capabilities: tuple[str, ...] = ()
    pci_filter: tuple[str, ...] = ("*:*:*",)
    pci_short_address: tuple[str, ...] = ()
    pci_device_name: tuple[str, ...] = ()

    @property
    def pci(self) -> PciFilter:
        return PciFilter(self.pci_filter, self.pci_short_address, self.pci_device_name)


Options = TypeVar("Options")


def path_of(driver: str) -> Path:
    """Return a driver's file of options: ``/etc/DRIVER.toml``, unless $DRIVER_CONF names another."""
    return Path(os.environ.get(f"{driver.upper()}_CONF", f"/etc/{driver}.toml"))


def load(kind: type[Options], path: Path) -> Options:
    """Load options from a TOML file.

    :param kind: a dataclass in which every field has a default
    :raises BadOptions: the file cannot be read, or has an unknown option
    """
    try:
        return read(kind, values_of(path))
    except BadOptions as error:
        raise BadOptions(f"{path}: {error}") from error


def values_of(path: Path) -> dict[str, Any]:
    """Return the content of a file of options, {} without a file; raise BadOptions if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadOptions(f"the options cannot be read: {error}") from error


def read(kind: type[Options], values: dict[str, Any]) -> Options:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - defaults.keys())
    if unknown:
        raise BadOptions(f"there is no option {', '.join(unknown)}; there are {', '.join(defaults)}")
    cores = values.get("reserved_cores", "")
    if isinstance(cores, str) and not CORES.fullmatch(cores):
        raise BadOptions(f"reserved_cores must be a list of cores such as 0-1,32, but is {cores!r}")
    found = kind(**{key: typed(key, value, defaults[key]) for key, value in values.items()})
    for pattern in values.get("pci_device_name", ()):
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOptions(f"pci_device_name: {pattern!r} is not a regular expression: {error}") from error
    return found


def typed(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadOptions(f"{key} must be a list of texts, but is {value!r}")
        return tuple(value)
    if type(value) is not type(default):
        raise BadOptions(f"{key} must be a {type(default).__name__}, but is {value!r}")
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise BadOptions(f"{key} must be 1 or more, but is {value}")
    if isinstance(value, float) and not 0 < value < LONGEST:
        raise BadOptions(f"{key} must be a number above 0, but is {value}")
    return value
