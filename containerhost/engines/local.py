# SPDX-License-Identifier: Apache-2.0
"""Find the engines of this host by name, for programs that work with every engine.

Each is an entry point of the group ``containerhost.engines``: a function from :class:`Settings` to a
:class:`LocalEngine`, found by stevedore.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stevedore import DriverManager, NamedExtensionManager
from stevedore.exception import NoMatches

from containerhost.engines.capabilities import LiveMarks, LiveSizes
from containerhost.engines.contract import Containers
from containerhost.errors import SpecError
from containerhost.privileged import Privileged

GROUP = "containerhost.engines"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hold the settings from which any engine of this host is built.

    :ivar endpoint: of the daemon; empty is the default one
    :ivar project: of LXD or Incus; empty is the default one
    """

    endpoint: str
    project: str
    locks: Path
    records: Path


@dataclasses.dataclass(frozen=True)
class LocalEngine:
    """Hold one engine of this host, with its changes of running containers and its root actions.

    :ivar marks: None where running containers keep their devices
    :ivar import_root: imports a root file system, as a tarball, under a name, and returns its image name for a spec;
        its program is /sbin/init
    :ivar remove_root: removes the image of that name. Idempotent
    :ivar require_room: raises EngineError if there is no such storage pool, or no project that permits containers
    :ivar sets_addresses: a granted interface has its addresses when its container runs; else the guest sets them
    """

    engine: Containers
    sizes: LiveSizes[Any]
    marks: LiveMarks[Any] | None
    privileged: Privileged
    import_root: Callable[[bytes, str], str]
    remove_root: Callable[[str], None]
    require_room: Callable[[str], None] = lambda pool: None
    sets_addresses: bool = False


def names() -> tuple[str, ...]:
    return tuple(sorted(point.name for point in NamedExtensionManager(GROUP, names=[]).list_entry_points()))


def load(name: str, settings: Settings) -> LocalEngine:
    """Return an engine by its name.

    :raises SpecError: it is not installed
    """
    try:
        build: Callable[[Settings], LocalEngine] = DriverManager(GROUP, name).driver
    except NoMatches as error:
        raise SpecError(f"{name[:60]!r} is not an engine; use {', '.join(names())}, if need be with "
                        "=ENDPOINT") from error
    except ModuleNotFoundError as error:
        raise SpecError(f"engine {name} needs {error.name}: install its extra of nova-lxd-ext") from error
    return build(settings)
