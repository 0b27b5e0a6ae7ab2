# SPDX-License-Identifier: Apache-2.0
"""Check the options and the engine before nova-compute starts."""

import collections
import contextlib
import re
from pathlib import Path

from nova import context, exception, objects
from nova.virt import node
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import Engine, ServerInfo
from containerhost.images import rebuild
from containerhost.linux.lock import FileLock
from containerhost.linux.poll import retry
from containerhost.linux.run import missing
from nova_lxd_ext.host import engineidentity

LOG = logging.getLogger(__name__)

# LXD's rule for instance names (documentation of instances): a host name that does not begin with a digit or a dash.
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
UNLIMITED = frozenset({"dir"})  # pool types that may not enforce a disk's size
POLL_INTERVAL = 1.0  # seconds between two polls of a daemon that is starting
END_TIMEOUT = 10.0  # seconds for a killed nova-compute to end

_alone: dict[Path, contextlib.ExitStack] = {}  # locks that are held until this process ends


def require_alone(conf: cfg.ConfigOpts) -> None:
    """Refuse to start while another nova-compute of this name runs.

    It would treat the other one's requests as interrupted ones, and undo them.

    :raises InvalidConfiguration: another process runs as this host
    """
    path = Path(conf.instances_path) / f"lxd-{conf.host}.lock"
    if path in _alone:
        return
    held = contextlib.ExitStack()
    held.enter_context(FileLock(path, END_TIMEOUT).held(lambda told: exception.InvalidConfiguration(
        f"another nova-compute serves as host {conf.host!r} already ({told}). Stop it first, or give this one another "
        "[DEFAULT]host")))
    _alone[path] = held


def require_same_name(host: str) -> None:
    """Refuse to start where nova's record of this compute node has another host's name.

    Nova refuses as well, but only after the driver's start, which removes copies of servers that are elsewhere.

    :raises InvalidConfiguration: the host was renamed
    """
    uuid = node.read_local_node_uuid()
    if uuid is None:
        return
    try:
        recorded = objects.ComputeNode.get_by_uuid(context.get_admin_context(), uuid).host
    except exception.ComputeHostNotFound:
        return
    if recorded != host:
        raise exception.InvalidConfiguration(
            f"nova has this compute node ({uuid}) as host {recorded!r}, and [DEFAULT]host is {host!r}: set it to "
            f"{recorded!r} again. A host that has servers cannot be renamed")


def check(conf: cfg.ConfigOpts, engine: Engine, in_use: bool) -> None:
    """Check the options and the engine.

    :param in_use: whether this host has servers, or records of any
    :raises InvalidConfiguration: with the correction
    :raises EngineUnavailable: the daemon does not respond within ``[lxd] ready_timeout``
    """
    require_usable_names(conf.instance_name_template)
    server = await_server(engine, conf.lxd.ready_timeout)
    engineidentity.require_same(conf, server, in_use)
    for complaint in missing(rebuild.TOOLS):
        LOG.warning("Not every image can be booted: %s", complaint)
    LOG.info("%s %s answers; containers go to project %s, storage pool %s", server.name, server.version,
             conf.lxd.project, conf.lxd.storage_pool)
    require_permitted(engine)
    try:
        pool = engine.pool(conf.lxd.storage_pool)
    except errors.EngineNotFound as error:
        raise exception.InvalidConfiguration(
            f"[lxd]storage_pool names {conf.lxd.storage_pool!r}, which the daemon does not have: create it or name "
            f"another ({error})") from error
    if pool.driver in UNLIMITED:
        LOG.warning("Storage pool %s is of type %s: it enforces the flavor's disk size only if its file system has "
                    "project quotas; without them, one server can fill the host", pool.name, pool.driver)


def require_permitted(engine: Engine) -> None:
    """Refuse a project whose restrictions would make the daemon refuse every server; report all keys at once.

    :raises InvalidConfiguration: with all keys
    """
    words = engine.forbidden()
    if words is not None:
        raise exception.InvalidConfiguration(f"[lxd]project: {words}")


def await_server(engine: Engine, limit: int) -> ServerInfo:
    """Wait for the daemon, which may start after nova-compute at boot, and return its description."""
    return retry(engine.server, (errors.EngineUnavailable, errors.EngineTimeout), limit, POLL_INTERVAL)


def require_usable_names(template: str) -> None:
    try:
        name = template % 2**31
    except TypeError:
        # Nova's alternative form contains fields of the server (nova.objects.Instance.name).
        name = template % collections.defaultdict(lambda: "0", uuid="0" * 36, id=2**31)
    if not NAME.fullmatch(name):
        raise exception.InvalidConfiguration(
            f"[DEFAULT]instance_name_template = {template!r} makes names such as {name!r}, which the engine refuses: "
            f"a name begins with a letter and has at most 63 letters, digits and dashes.")
