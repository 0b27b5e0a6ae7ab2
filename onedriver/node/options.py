"""The administrator's options of a node: a TOML file whose keys are the fields of a driver's dataclass.

No file means all defaults. An option that does not exist, or is of the wrong type, is refused: a misspelt restriction
would otherwise be none.
"""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, Protocol, TypeVar

from onedriver.errors import DriverError

LONGEST = 86_400.0  # seconds


class BadOptions(DriverError):
    """The options cannot be used."""


class DeviceOptions(Protocol):
    """What of the options is about devices.

    :ivar memlock: locked-memory limit of containers with RDMA: ``unlimited`` or bytes
    :ivar management_nodes: give umad and issm with InfiniBand functions
    :ivar gpu_capabilities: which of the GPU driver's libraries come with a GPU (``compute``, ``utility``…)
    """

    @property
    def memlock(self) -> str: ...

    @property
    def management_nodes(self) -> bool: ...

    @property
    def gpu_capabilities(self) -> tuple[str, ...]: ...


Options = TypeVar("Options")


def load(kind: type[Options], path: Path) -> Options:
    """:param kind: a dataclass in which every field has a default
    :raises BadOptions: the file cannot be read, or says something that is no option
    """
    try:
        return read(kind, tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        raise BadOptions(f"the options in {path} cannot be read: {error}") from error
    except BadOptions as error:
        raise BadOptions(f"{path}: {error}") from error


def read(kind: type[Options], values: dict[str, Any]) -> Options:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - defaults.keys())
    if unknown:
        raise BadOptions(f"there is no option {', '.join(unknown)}; there are {', '.join(defaults)}")
    return kind(**{key: typed(key, value, defaults[key]) for key, value in values.items()})


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
