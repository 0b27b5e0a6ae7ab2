# SPDX-License-Identifier: Apache-2.0
"""Read the files of the records that :mod:`containerhost.engines.docker.record` describes, as JSON.

The OCI runtime reads them at each start of a container, which waits for it: no large module is imported here.
"""

import json
import os
import re
from typing import Any

from containerhost.errors import EngineError, EngineNotFound
from containerhost.linux.network.ipconfig import IpConfig

DIRECTORY = "/var/lib/containerhost/docker"
_ID = re.compile(r"[0-9a-f]{64}")


def is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text))


def path(directory: str, container: str) -> str:
    """Return the path of a record.

    :param container: Docker's id
    :raises EngineNotFound: it is not an id
    """
    if not is_id(container):
        raise EngineNotFound(f"{container!r} is not an id of a container")
    return os.path.join(directory, f"{container}.json")


def namespace(directory: str, container: str) -> str:
    """Return the file in which the runtime keeps the network namespace of a running container."""
    return path(directory, container).removesuffix("json") + "net"


def lock(directory: str, container: str) -> str:
    """Return the path of the lock around reading or changing a container's record.

    The runtime takes it during a start and an end, the engine during a change. Containers share a few files, so that
    deleted containers leave none."""
    return os.path.join(directory, f".lock-{os.path.basename(path(directory, container))[:2]}")


def data(directory: str, container: str) -> Any:
    """Read the record of a container.

    :raises EngineNotFound: there is none
    :raises EngineError: it cannot be read
    """
    file = path(directory, container)
    try:
        with open(file, encoding="utf-8") as source:
            return json.load(source)
    except FileNotFoundError as error:
        raise EngineNotFound(f"the container's record {file} is missing: this driver did not create the container, or "
                             "the record was removed; delete the container and create it again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise untrusted(file, error) from error


def nodes(directory: str, container: str) -> list[tuple[str, int, int]]:
    """Return the path, major and minor of each character node of the container, in order."""
    found = data(directory, container)
    try:
        return sorted((str(node["path"]), int(node["major"]), int(node["minor"])) for node in found["nodes"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise untrusted(path(directory, container), error) from error


def netdevs(directory: str, container: str) -> list[tuple[str, str, IpConfig | None]]:
    """Return each interface's name on the host, its name in the container and its IP configuration, in order."""
    found = data(directory, container)
    try:
        return sorted((str(netdev["host_name"]), str(netdev["name"]), ip_config(netdev.get("setup")))
                      for netdev in found["netdevs"])
    except (ValueError, KeyError, TypeError) as error:
        raise untrusted(path(directory, container), error) from error


def ip_config(data: Any) -> IpConfig | None:
    return None if data is None else IpConfig(tuple(map(str, data["addresses"])), tuple(map(str, data["gateways"])),
                                              None if data["metric"] is None else int(data["metric"]))


def libraries(directory: str, container: str) -> list[str]:
    """Return the capabilities of a GPU's driver whose libraries the container has, in order."""
    return sorted(map(str, data(directory, container).get("libraries", ())))


def volumes_in_root(directory: str, container: str) -> bool:
    """Return whether the volumes of the container's image are directories of its root."""
    return bool(data(directory, container).get("volumes_in_root", False))


def untrusted(file: str, error: Exception) -> EngineError:
    return EngineError(f"record {file} of what the container has cannot be trusted ({error!r}): "
                       "delete the container and create it again")
