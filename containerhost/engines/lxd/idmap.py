# SPDX-License-Identifier: Apache-2.0
"""Read a container's range of host user ids, which LXD keeps in the instance's configuration."""

import json
from collections.abc import Mapping
from typing import Any

from containerhost.engines.lxd.client import LxdClient
from containerhost.errors import EngineError
from containerhost.linux.storage.idmounts import IdMap, IdRange

RUNNING = (103, 110, 113)  # LXD's status codes of a container that has processes
CURRENT, NEXT = "volatile.idmap.current", "volatile.idmap.next"  # JSON: a list of ranges


def idmap(client: LxdClient, name: str) -> IdMap | None:
    """Return the container's id map.

    :returns: None for a privileged container, whose users are the host's
    """
    return of(client.instance(name)[0])


def of(instance: Mapping[str, Any]) -> IdMap | None:
    config = instance["config"]
    key = CURRENT if instance["status_code"] in RUNNING else NEXT
    try:
        ranges = json.loads(config.get(key) or "[]")
        uids, gids = (tuple(IdRange(part["Nsid"], part["Hostid"], part["Maprange"]) for part in ranges if part[kind])
                      for kind in ("Isuid", "Isgid"))
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"container {instance['name']} has {key}={config.get(key)!r}, which is not an id map of LXD "
                          f"({error!r})") from error
    if not ranges and config.get("security.privileged") != "true":
        raise EngineError(f"container {instance['name']} is unprivileged, but LXD does not report its user ids")
    return IdMap(uids, gids) if ranges else None
