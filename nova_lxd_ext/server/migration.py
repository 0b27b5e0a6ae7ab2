# SPDX-License-Identifier: Apache-2.0
"""Servers that change their size or their host: nova's resize and migration.

What a running server on its host can become without a stop is done by :mod:`nova_lxd_ext.server.liveresize`; all else
here, while it is off.

Until nova confirms, the server can go back. On its old host the container stays as it is, stopped and without ports,
volumes and devices, and on one host the old flavor is put back into effect. Whatever fails before nova is told that
the server left, leaves it as it was.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from nova import exception, objects
from nova.compute import task_states
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import units

from containerhost.devices.scan import HostView
from containerhost.engines import Engine, Status
from containerhost.engines.lxd.migration import Transfers
from containerhost.inside import resources
from containerhost.rollback import Rollback
from nova_lxd_ext.errors import as_nova
from nova_lxd_ext.hardware import tags
from nova_lxd_ext.hardware.tags import TellTags
from nova_lxd_ext.host import startup
from nova_lxd_ext.peers import Peers
from nova_lxd_ext.server.arrivals import as_it_will_be, is_at_home
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.liveresize import LiveResize
from nova_lxd_ext.server.outfit import Outfit
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.server.states import States
from nova_lxd_ext.server.wanted import Wanted
from nova_lxd_ext.storage.ephemerals import Ephemerals, sizes

LOG = logging.getLogger(__name__)


class Moves:
    """:param address: ``https://host:port`` at which other hosts reach this one's daemon; None lets no server leave
    :param tell_tags: sets what the guest is told of its devices
    """

    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States, outfit: Outfit, lifecycle: Lifecycle,
                 power: Power, live: LiveResize, transfers: Transfers, ephemerals: Ephemerals, peers: Peers,
                 address: str | None, tell_tags: TellTags = tags.refresh) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._outfit = outfit
        self._lifecycle = lifecycle
        self._power = power
        self._live = live
        self._transfers = transfers
        self._ephemerals = ephemerals
        self._peers = peers
        self._address = address
        self._tell_tags = tell_tags

    # Going

    def leave(self, context: Any, instance: objects.Instance, flavor: objects.Flavor, wanted: Wanted, timeout: int,
              retry_interval: int) -> None:
        """Stop the server, bring its files to its new host if that is another one, and return what it has here. One
        that can change while it runs has changed when this returns, and runs.

        :param timeout: seconds the guest has to shut down by itself
        :raises InstanceFaultRollback: and the server is as it was
        """
        with unharmed(instance):
            move = objects.Migration.get_by_id(context, instance.migration_context.migration_id)
            state = self._states.require(instance)
            wanted, view = self._live.wanted(wanted, instance.flavor, move.uuid), self._outfit.view()
            if self._live.change(context, instance, flavor, wanted, move, state, view):
                return
            self._require_possible(instance, flavor, wanted, move, view)
            with Rollback(f"move of server {instance.uuid}") as undo:
                if state.status is not Status.STOPPED:
                    undo.on_error("start it again", self._start_again, context, instance, wanted)
                    self._power.off(instance, timeout, retry_interval)
                if not is_at_home(move):
                    undo.on_error("what arrived", self._peers.forget, context, move.dest_compute, instance)
                    self._send(context, instance, move.dest_compute)
                self._engine.refit(instance.name, ())
                self._outfit.take_off(context, instance, wanted, view)

    def _require_possible(self, instance: objects.Instance, flavor: objects.Flavor, wanted: Wanted,
                          move: objects.Migration, view: HostView) -> None:
        """Refuse before anything changes, where this host knows; the new one refuses what it knows before the copy."""
        require_no_smaller_ephemerals(instance, flavor, wanted)
        self._require_fits(instance, flavor)
        if is_at_home(move):
            coming = as_it_will_be(instance)
            self._outfit.require_possible(coming, self._live.wanted(wanted, flavor, instance.uuid), view)
            self._lifecycle.spec(coming)
        elif self._address is None:
            raise exception.MigrationError(reason=(
                "its host lets no server leave: [lxd]migration_address, the https address of the host's daemon, is not "
                "set there"))

    def _require_fits(self, instance: objects.Instance, flavor: objects.Flavor) -> None:
        """:raises ResizeError: the server's files are more than the new root disk holds"""
        used = self._engine.metrics(instance.name).disks.get("root", 0)
        if flavor.root_gb and used > flavor.root_gb * units.Gi:
            raise exception.ResizeError(reason=(
                f"the server uses {used / units.Gi:.1f} GiB of its root disk, and flavor {flavor.name} gives it "
                f"{flavor.root_gb} GiB; delete files in it, or choose a larger flavor"))

    def _start_again(self, context: Any, instance: objects.Instance, wanted: Wanted) -> None:
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)
        self._power.on(context, instance, wanted)

    def _send(self, context: Any, instance: objects.Instance, host: str) -> None:
        """Container and disks stay here whatever happens; a transfer that fails is not left waiting for its receiver.

        One after the other: an offer that nobody takes ends within seconds.
        """
        address = self._address or ""
        try:
            offer = self._transfers.offer(instance.name, address)
            self._peers.fetch(context, host, instance, dataclasses.asdict(offer))
            for name in self._ephemerals.names(instance):
                disk = self._ephemerals.offer(name, address)
                self._peers.fetch_disk(context, host, instance, dataclasses.asdict(disk))
        except BaseException:
            self._withdraw(instance)
            raise

    def _withdraw(self, instance: objects.Instance) -> None:
        self._transfers.withdraw(instance.name)
        self._ephemerals.withdraw(instance)

    # Coming

    def arrive(self, context: Any, instance: objects.Instance, wanted: Wanted, power_on: bool) -> None:
        """Let the container be what the server's flavor, ports and claims say now, and start it.

        One that runs has changed already. On an error a container that was stopped stays so, without parts: a hard
        reboot of the server tries again.
        """
        state, view = self._states.require(instance), self._outfit.view()
        if state.status is Status.RUNNING:
            if self._live.settle(context, instance, wanted, view):
                return
            self._strip(context, instance, wanted, view)
        self._outfit.require_possible(instance, wanted, view)
        spec = self._lifecycle.spec(instance)
        with Rollback(f"arrival of server {instance.uuid}") as undo:
            undo.on_error("its parts", self._strip, context, instance, wanted, view)
            with self._outfit.expecting(instance, wanted):
                parts = self._outfit.put_on(context, instance, wanted, view)
                self._tell_tags(context, instance, wanted.network_info)
                spec = resources.told(dataclasses.replace(spec, parts=parts), state.labels.get(resources.LABEL))
                self._engine.reconfigure(instance.name, spec)
            self._outfit.trim(instance, parts, view)
            if power_on:
                self._outfit.start(instance, parts)
        self._states.changed()

    def _strip(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        self._engine.stop(instance.name, timeout=self._conf.lxd.stop_timeout, force=True)
        self._engine.refit(instance.name, ())
        self._outfit.take_off(context, instance, wanted, view)

    # Going back, or not

    def stay(self, context: Any, instance: objects.Instance, wanted: Wanted) -> bool:
        """Nova ends a server where it was resized to before it goes on where it came from. One for which that is the
        same host gets its old size at once, and may run on.

        :returns: whether it does
        """
        if instance.task_state != task_states.RESIZE_REVERTING:
            return False
        move = objects.Migration.get_by_id(context, instance.migration_context.migration_id)
        state = self._states.find(instance)
        running = state is not None and state.status is Status.RUNNING
        return is_at_home(move) and running and self._live.revert(context, instance, wanted, move)

    def go_back(self, context: Any, instance: objects.Instance, move: objects.Migration, wanted: Wanted,
                power_on: bool) -> None:
        """Let the server be at its old size and host again.

        Nova calls this also at its start for a server that was just leaving when it was killed.
        """
        if not is_at_home(move):
            self._withdraw(instance)
            self._peers.forget(context, move.dest_compute, instance)
        if self._states.require(instance).status is Status.STOPPED:
            self._engine.refit(instance.name, ())
            self._outfit.fit_back(instance, wanted)
        elif not is_at_home(move):
            return
        self.arrive(context, instance, self._live.wanted(wanted, instance.flavor, move.uuid), power_on)

    def settle(self, instance: objects.Instance, move: objects.Migration) -> None:
        """The server stays where and as it is now: remove what its old host kept."""
        if not is_at_home(move) and not self._states.is_strangers(instance):
            self._lifecycle.discard(instance.name, instance.uuid)


@contextlib.contextmanager
def unharmed(instance: objects.Instance) -> Iterator[None]:
    """An error of the block tells nova that the server is as it was, and why."""
    try:
        with as_nova(instance, exception.MigrationError):
            yield
    except Exception as error:
        raise exception.InstanceFaultRollback(error) from error


def require_no_smaller_ephemerals(instance: objects.Instance, flavor: objects.Flavor, wanted: Wanted) -> None:
    """:raises ResizeError: the server has more of ephemeral disks than ``flavor`` gives it"""
    present = sum(sizes(instance.flavor, wanted.block_device_info)) // units.Gi
    if flavor.ephemeral_gb < present:
        raise exception.ResizeError(reason=(
            f"the server has {present} GiB of ephemeral disks, and flavor {flavor.name} gives it {flavor.ephemeral_gb} "
            f"GiB; choose a flavor with as much, or save what is on them and boot a new server"))
