# SPDX-License-Identifier: Apache-2.0
"""Record which engine and project hold this host's servers, and refuse to run with another one.

Every clean-up compares the host's records with the engine's containers. An engine that never had them returns an
empty list, by which resources of live servers would be removed.
"""

import json
from pathlib import Path

from nova import exception
from oslo_config import cfg
from oslo_log import log as logging

from containerhost.engines.contract import ServerInfo
from containerhost.linux import files, records

LOG = logging.getLogger(__name__)

VERSION = 2  # version of the file


def require_same(conf: cfg.ConfigOpts, server: ServerInfo, in_use: bool, record: bool = True) -> None:
    """Compare the engine with the one recorded at the last start, and record it.

    :param in_use: whether this host has servers, or records of any
    :raises InvalidConfiguration: the engine or project differs; nothing was changed
    """
    path = Path(conf.instances_path) / f"lxd-{conf.host}.engine.json"
    now = {"project": conf.lxd.project, "certificate": server.certificate}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        records.version(found)
        before = {name: found.get(name) for name in now}
    except FileNotFoundError:
        before = None
    except ValueError as error:
        raise exception.InvalidConfiguration(
            f"{path}, which names the daemon and project of this host's servers, cannot be read ({error}): make sure "
            f"that [lxd]endpoint and [lxd]project are theirs, then remove the file and start nova-compute again"
        ) from error
    if before == now:
        return
    if before is not None and in_use:
        raise exception.InvalidConfiguration(
            f"This host's servers are in project {before.get('project')!r} of the daemon with certificate "
            f"{before.get('certificate')!r}, but [lxd]endpoint and [lxd]project point to project {now['project']!r} of "
            f"the daemon with certificate {now['certificate']!r}. Set them back. If the same containers really are "
            f"there now (a renewed certificate, a moved project), remove {path} and start nova-compute again")
    if not record:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.atomic_write(path, records.replacing(path, now, VERSION).encode())
