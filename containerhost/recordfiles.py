# SPDX-License-Identifier: Apache-2.0
"""The files of the records that :mod:`containerhost.engines.docker.record` describes, as JSON.

The OCI runtime reads them at each start of a container, which waits for it: nothing large is loaded here.
"""

import json
import os
import re
from typing import Any

from containerhost.errors import EngineError, EngineNotFound
from containerhost.network.nicsetup import NicSetup

FOLDER = "/var/lib/containerhost/docker"
_ID = re.compile(r"[0-9a-f]{64}")


def is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text))


def path(folder: str, container: str) -> str:
    """:param container: Docker's id
    :raises EngineNotFound: it is none
    """
    if not is_id(container):
        raise EngineNotFound(f"{container!r} is no id of a container")
    return os.path.join(folder, f"{container}.json")


def namespace(folder: str, container: str) -> str:
    """Where the runtime keeps the network namespace of a running container."""
    return path(folder, container).removesuffix("json") + "net"


def lock(folder: str, container: str) -> str:
    """Where those exclude each other who read or change what the container has: the runtime during a start and an end,
    the engine during a change. A few containers share a file, so that none is left of each that ever was."""
    return os.path.join(folder, f".lock-{os.path.basename(path(folder, container))[:2]}")


def data(folder: str, container: str) -> Any:
    """:raises EngineNotFound: there is none
    :raises EngineError: it cannot be read
    """
    file = path(folder, container)
    try:
        with open(file, encoding="utf-8") as source:
            return json.load(source)
    except FileNotFoundError as error:
        raise EngineNotFound(f"there is no record {file} of what the container has: this driver did not make it, or "
                             "somebody removed the record; delete the container and make it anew") from error
    except (OSError, ValueError) as error:
        raise untrusted(file, error) from error


def nodes(folder: str, container: str) -> list[tuple[str, int, int]]:
    """Paths, majors and minors of the character nodes that the container has, in their order."""
    found = data(folder, container)
    try:
        return sorted((str(node["path"]), int(node["major"]), int(node["minor"])) for node in found["nodes"])
    except (ValueError, KeyError, TypeError) as error:
        raise untrusted(path(folder, container), error) from error


def netdevs(folder: str, container: str) -> list[tuple[str, str, NicSetup | None]]:
    """Of each interface that the container has, in their order: what the host calls it, its name in the container, and
    what it is set to."""
    found = data(folder, container)
    try:
        return sorted((str(netdev["host_name"]), str(netdev["name"]), nic_setup(netdev.get("setup")))
                      for netdev in found["netdevs"])
    except (ValueError, KeyError, TypeError) as error:
        raise untrusted(path(folder, container), error) from error


def nic_setup(data: Any) -> NicSetup | None:
    return None if data is None else NicSetup(tuple(map(str, data["addresses"])), tuple(map(str, data["gateways"])),
                                              None if data["metric"] is None else int(data["metric"]))


def libraries(folder: str, container: str) -> list[str]:
    """Capabilities of a GPU's driver whose libraries it has, in their order."""
    return sorted(map(str, data(folder, container).get("libraries", ())))


def volumes_in_root(folder: str, container: str) -> bool:
    """Return whether what the container's image calls volumes are folders of its root."""
    return bool(data(folder, container).get("volumes_in_root", False))


def untrusted(file: str, error: Exception) -> EngineError:
    return EngineError(f"record {file} of what the container has cannot be trusted ({error!r}): "
                       "delete the container and make it anew")
