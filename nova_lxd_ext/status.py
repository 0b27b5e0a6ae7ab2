# SPDX-License-Identifier: Apache-2.0
"""Run ``nova-lxd-ext-status upgrade check``: report what a new release would break on a compute host.

This includes anything that would prevent nova-compute's start or the allocation of devices. Changes nothing.

Exit status as ``nova-status upgrade check``: 0 success, 1 there are warnings, 2 nova-compute would not work as
before, 255 the check itself failed.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import nova.conf
from nova import exception, objects
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from containerhost import errors
from containerhost.allocation.record import VERSION
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, AllocationStore
from containerhost.engines.contract import Engine
from containerhost.images import rebuild
from containerhost.inventory import taints
from containerhost.linux.run import missing
from containerhost.linux.sysfs import Host
from nova_lxd_ext import conf
from nova_lxd_ext.host import engineidentity, startup

IN_PROGRESS = frozenset({State.CLAIMED, State.PREPARED, State.CLEANING})
OK = Result(Code.SUCCESS)


class Checks(upgradecheck.UpgradeCommands):
    """Check the options, the daemon, the allocation records and the host's programs before an upgrade.

    :param engine: the daemon; by default built from the options
    """

    display_title = "Upgrade check of the LXD driver"

    def __init__(self, options: cfg.ConfigOpts, engine: Engine | None = None) -> None:
        self._conf = options
        self._engine = engine

    def _options(self) -> Result:
        try:
            startup.require_usable_names(self._conf.instance_name_template)
        except exception.InvalidConfiguration as error:
            return Result(Code.FAILURE, str(error))
        return OK

    def _daemon(self) -> Result:
        """Check that the daemon responds, has the storage pool, and has this host's servers."""
        try:
            engine = self._engine or engine_of(self._conf)
            server = engine.server()
            startup.require_permitted(engine)
            engine.pool(self._conf.lxd.storage_pool)
            engineidentity.require_same(self._conf, server, bool(self._store().records()), record=False)
        except (errors.ContainerHostError, exception.InvalidConfiguration) as error:
            return Result(Code.FAILURE, str(error))
        return OK

    def _records(self) -> Result:
        try:
            records = self._store().records()
        except errors.AllocationsUnreadable as error:
            return Result(Code.FAILURE, str(error))
        decisions = taints.read(Host())
        complaints = [*_complaints(records.values()), *([decisions.trouble] if decisions.trouble else [])]
        return Result(Code.WARNING, "; ".join(complaints)) if complaints else OK

    def _programs(self) -> Result:
        complaints = missing(rebuild.TOOLS)
        return Result(Code.WARNING, f"Not every image can be booted: {'; '.join(complaints)}") if complaints else OK

    def _store(self) -> AllocationStore:
        return AllocationStore(Path(self._conf.lxd.owners_dir))

    _upgrade_checks = (("Options", _options), ("LXD", _daemon), ("Allocation records", _records),
                       ("Programs", _programs))


def engine_of(options: cfg.ConfigOpts) -> Engine:
    objects.register_all()  # required, as in nova's services
    from nova_lxd_ext import backend  # noqa: PLC0415  (its modules name registered objects when they are loaded)

    return backend.build(options).engine


def _complaints(records: Iterable[Allocation]) -> Iterator[str]:
    """Yield problems of allocations that the operator should know before the services restart."""
    for record in records:
        version = record.rest.get("version", VERSION)
        if record.blocked is not None:
            yield f"{record.device_id} is blocked: {record.blocked}"
        elif record.state in IN_PROGRESS:
            yield (f"{record.device_id} is {record.state} for {record.consumer}: a request is in progress, or was "
                   "interrupted; nova-compute finishes or undoes it at its start")
        if version > VERSION:
            yield (f"the record of {record.device_id} has version {version}, this release writes {VERSION}: a "
                   "later release was here. What it wrote is kept")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"nova-lxd-ext-status, version {metadata.version('nova-lxd-ext')}")
        return 0
    conf.register()
    return upgradecheck.main(nova.conf.CONF, "nova", Checks(nova.conf.CONF), words)
