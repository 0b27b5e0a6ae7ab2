# SPDX-License-Identifier: Apache-2.0
"""Change the size or host of servers: nova's resize and migration.

Changes that a running server supports on its host are made by :mod:`nova_lxd_ext.server.liveresize`; all others
here, while it is off.

Until nova confirms, the move can be reverted. On its old host the container is kept, stopped and without ports,
volumes and devices; on the same host the old flavor is applied again. A failure before nova records that the server
has left keeps it unchanged.
"""

import contextlib
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nova import exception, objects
from nova.compute import task_states
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import units

from containerhost.engines import copyrounds
from containerhost.engines.capabilities import Transfers
from containerhost.engines.contract import ContainerState, Engine, Status
from containerhost.engines.resizelock import resizing
from containerhost.guest import resources
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.scan import HostView
from containerhost.rollback import Rollback
from nova_lxd_ext.errors import as_nova
from nova_lxd_ext.hardware import tags
from nova_lxd_ext.hardware.tags import PublishTags
from nova_lxd_ext.host import startup
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.peers import Peers
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.incoming import as_it_will_be, is_at_home
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.liveresize import LiveResize
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.storage.ephemerals import Ephemerals, sizes

LOG = logging.getLogger(__name__)


class Wanted(enum.Enum):
    """Name the user's request for a move that is copying."""

    AT_ONCE = enum.auto()
    NOT = enum.auto()


class Aborted(exception.MigrationError):
    """Report a move that its user cancelled; the server runs as before."""


class Migrations:
    """Resize and cold-migrate servers: send, finish, revert and confirm.

    :param address: ``https://host:port`` at which other hosts reach this one's daemon; None to let no server leave
    :param clock: monotonic clock in seconds
    """

    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States, attachments: DeviceAttachments,
                 lifecycle: Lifecycle, power: Power, live: LiveResize, notice: GuestNotice, transfers: Transfers,
                 ephemerals: Ephemerals, peers: Peers, address: str | None, publish_tags: PublishTags = tags.refresh,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._attachments = attachments
        self._lifecycle = lifecycle
        self._power = power
        self._live = live
        self._notice = notice
        self._transfers = transfers
        self._ephemerals = ephemerals
        self._peers = peers
        self._address = address
        self._publish_tags = publish_tags
        self._clock = clock
        self._asked: dict[str, Wanted] = {}

    # Source

    def migrate(self, context: Any, instance: objects.Instance, flavor: objects.Flavor, requested: RequestedResources,
                timeout: int, retry_interval: int) -> None:
        """Stop the server, bring its files to a new host if there is one, and release its resources here.

        If both engines support it, the new host copies most of the files while the server runs. A guest that listens
        is notified of the stop. A server that can be resized live keeps running, and is resized when this returns.

        :param timeout: seconds for the guest to shut down
        :raises InstanceFaultRollback: the server is unchanged
        """
        self.forget_wishes(instance)
        with unharmed(instance):
            move = objects.Migration.get_by_id(context, instance.migration_context.migration_id)
            state = self._states.require(instance)
            requested, view = self._live.requested(requested, instance.flavor, move.uuid), self._attachments.view()
            if self._live.change(instance, flavor, requested, move, state, view):
                return
            self._require_possible(instance, flavor, requested, move, view)
            with Rollback(f"move of server {instance.uuid}") as undo:
                self.leave(context, instance, None if is_at_home(move) else move.dest_compute, state.status, requested,
                           timeout, retry_interval, undo, view)

    def leave(self, context: Any, instance: objects.Instance, host: str | None, status: Status,
              requested: RequestedResources, timeout: int, retry_interval: int, undo: Rollback,
              view: HostView | None = None) -> None:
        """Stop the server, bring its files to another host if there is one, and release its resources here.

        :param instance: names the migration in its migration context
        :param status: of the container
        :param undo: gets the steps that let it run here again
        :raises Aborted:
        """
        running = status is Status.RUNNING
        with self._withdrawn_on_error(instance):
            copied = False
            if host is not None:
                undo.on_error("what arrived", self._peers.forget, context, host, instance)
                copied = running and self._copy_running(context, instance, host)
            # Otherwise the elastic service would overwrite the notice.
            with resizing(Path(self._conf.lxd.owners_dir), instance.name) if running else contextlib.nullcontext():
                if running and self._announce_stop(instance, undo) and copied and host is not None:
                    copied = self._send_changes(context, instance, host, last=False)  # with the guest's checkpoint
                self._require_wanted(instance)
                if status is not Status.STOPPED:
                    undo.on_error("start it again", self.start_again, instance, requested)
                    self._power.off(instance, timeout, retry_interval)
            if host is not None:
                self._send(context, instance, host, copied)
            self._engine.update_devices(instance.name, ())
            self._attachments.release_all(instance, requested, view or self._attachments.view())

    def ask(self, instance: objects.Instance, wanted: "Wanted") -> None:
        """Request that the copying of a running server in another thread ends after the present round."""
        if self._asked.get(instance.uuid) is not Wanted.NOT:
            self._asked[instance.uuid] = wanted

    def forget_wishes(self, instance: objects.Instance) -> None:
        """Discard earlier requests of users about a move of the server."""
        self._asked.pop(instance.uuid, None)

    def _require_wanted(self, instance: objects.Instance) -> None:
        if self._asked.get(instance.uuid) is Wanted.NOT:
            raise Aborted(reason="it was aborted")

    def _require_possible(self, instance: objects.Instance, flavor: objects.Flavor, requested: RequestedResources,
                          move: objects.Migration, view: HostView) -> None:
        """Refuse what this host can check before any change; the new one checks before the copy."""
        require_no_smaller_ephemerals(instance, flavor, requested)
        self._require_fits(instance, flavor)
        if is_at_home(move):
            coming = as_it_will_be(instance)
            self._attachments.require_possible(coming, self._live.requested(requested, flavor, instance.uuid), view)
            self._lifecycle.spec(coming)
        else:
            self.require_may_leave()

    def require_may_leave(self) -> None:
        if self._address is None:
            raise exception.MigrationError(reason=(
                "its host lets no server leave: [lxd]migration_address, the https address of the host's daemon, is not "
                "set there"))

    def _require_fits(self, instance: objects.Instance, flavor: objects.Flavor) -> None:
        """Refuse a root disk that is too small for the server's files.

        :raises ResizeError: the server's files do not fit on the new root disk
        """
        used = self._engine.metrics(instance.name).disks.get("root", 0)
        if flavor.root_gb and used > flavor.root_gb * units.Gi:
            raise exception.ResizeError(reason=(
                f"the server uses {used / units.Gi:.1f} GiB of its root disk, and flavor {flavor.name} gives it "
                f"{flavor.root_gb} GiB; delete files in it, or choose a larger flavor"))

    def _announce_stop(self, instance: objects.Instance, undo: Rollback) -> bool:
        """Announce the stop to a guest that listens, wait for it, and return whether there is one."""
        undo.on_error("what was announced", self._withdraw_notice, instance)
        document = self._states.require(instance).labels.get(resources.LABEL)
        return document is not None and self._notice.announce(instance.name, document, resources.stopping(document))

    def _withdraw_notice(self, instance: objects.Instance) -> None:
        document = self._states.require(instance).labels.get(resources.LABEL)
        if document is not None:
            self._notice.notify(instance.name, document)

    def start_again(self, instance: objects.Instance, requested: RequestedResources) -> None:
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)
        self._power.on(instance, requested)

    def _copy_running(self, context: Any, instance: objects.Instance, host: str) -> bool:
        """Let another host copy the server repeatedly while it runs, until a round brings few further changes.

        :returns: whether it has copied all but later changes
        """
        for _ in copyrounds.rounds(f"server {instance.uuid} to {host}", self._conf.lxd.migration_rounds, self._clock):
            if not self._send_changes(context, instance, host, last=False):
                return False
            self._require_wanted(instance)
            if instance.uuid in self._asked:
                break
        return bool(self._conf.lxd.migration_rounds > 0)

    def _send_changes(self, context: Any, instance: objects.Instance, host: str, last: bool) -> bool:
        """Send the changes of the container that the other host does not have.

        Its snapshots stay until it is removed here, or goes back: their removal would lengthen the stop.

        :param last: no further changes follow
        :returns: False if one of the hosts cannot do this
        """
        offer = self._transfers.offer_changes(instance.name, self._address or "")
        if offer is None:
            return False
        sent = self._peers.fetch_changes(context, host, instance, dataclasses.asdict(offer), last)
        if not sent:
            self._transfers.withdraw(instance.name)
        return sent

    def _send(self, context: Any, instance: objects.Instance, host: str, copied: bool) -> None:
        """Send container and disks to another host, one after the other; they stay here whatever happens.

        They are offered in turn, because an unused offer expires within seconds.

        :param copied: the other host copied the container while it ran
        """
        address = self._address or ""
        if copied and not self._send_changes(context, instance, host, last=True):
            raise exception.MigrationError(reason=f"{host} does not take the last changes of the server any more")
        if not copied:
            offer = self._transfers.offer(instance.name, address)
            self._peers.fetch(context, host, instance, dataclasses.asdict(offer))
        for name in self._ephemerals.names(instance):
            disk = self._ephemerals.offer(name, address)
            self._peers.fetch_disk(context, host, instance, dataclasses.asdict(disk))

    @contextlib.contextmanager
    def _withdrawn_on_error(self, instance: objects.Instance) -> Iterator[None]:
        """End a transfer whose move fails, so that its receiver does not wait, and remove its snapshots."""
        with Rollback(f"transfers of server {instance.uuid}") as undo:
            undo.on_error("end them", self._withdraw, instance)
            undo.on_error("wait for the daemon", startup.await_server, self._engine, self._conf.lxd.ready_timeout)
            yield

    def _withdraw(self, instance: objects.Instance) -> None:
        self._transfers.withdraw(instance.name)
        self._ephemerals.withdraw(instance)

    def purge(self) -> None:
        """Remove, at the driver's start, the remains of transfers from here, which have all ended.

        Containers that another host is sending have snapshots, too."""
        self._transfers.purge({state.name for state in self._states.all() if labels.INCOMING not in state.labels})

    # Destination

    def finish(self, context: Any, instance: objects.Instance, requested: RequestedResources, power_on: bool,
               awaits_ports: bool = True) -> None:
        """Change the container to the server's current flavor, ports and claims, and start it.

        A running one has already been changed. On an error a stopped container stays stopped, without parts, until a
        hard reboot of the server.

        :param awaits_ports: whether Neutron's events arrive here
        """
        state = self._states.require(instance)
        try:
            self._finish(context, instance, requested, power_on, awaits_ports, state)
        finally:
            if labels.INCOMING in state.labels:
                self._transfers.drop_snapshots(instance.name)  # not earlier, because the server is off while this runs

    def _finish(self, context: Any, instance: objects.Instance, requested: RequestedResources, power_on: bool,
                awaits_ports: bool, state: ContainerState) -> None:
        view = self._attachments.view()
        self._states.relabel(state, {labels.INCOMING: None})
        if state.status is Status.RUNNING:
            if self._live.reconcile(instance, requested, view):
                return
            self._strip(instance, requested, view)
        self._attachments.require_possible(instance, requested, view)
        spec = self._lifecycle.spec(instance)
        with Rollback(f"incoming migration of server {instance.uuid}") as undo:
            undo.on_error("its parts", self._strip, instance, requested, view)
            with self._attachments.expecting(instance, requested) if awaits_ports else contextlib.nullcontext():
                parts = self._attachments.attach_all(instance, requested, view)
                self._publish_tags(context, instance, requested.network_info)
                with self._lifecycle.cores.bound(dataclasses.replace(spec, parts=parts)) as bound:
                    self._engine.reconfigure(instance.name, resources.with_document(
                        bound, state.labels.get(resources.LABEL)))
            self._attachments.release_unused(instance, parts, view)
            if power_on:
                self._attachments.start(instance, parts)
        self._states.changed()

    def _strip(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        self._engine.stop(instance.name, timeout=self._conf.lxd.stop_timeout, force=True)
        self._engine.update_devices(instance.name, ())
        self._attachments.release_all(instance, requested, view)

    # Revert and confirm

    def revert_in_place(self, context: Any, instance: objects.Instance, requested: RequestedResources) -> bool:
        """Revert a live resize on the same host immediately, so that the server keeps running.

        Nova destroys a server at the new size before it starts at the old one.

        :returns: whether it keeps running
        """
        if instance.task_state != task_states.RESIZE_REVERTING:
            return False
        move = objects.Migration.get_by_id(context, instance.migration_context.migration_id)
        state = self._states.find(instance)
        running = state is not None and state.status is Status.RUNNING
        return is_at_home(move) and running and self._live.revert(instance, requested, move)

    def revert(self, context: Any, instance: objects.Instance, move: objects.Migration, requested: RequestedResources,
               power_on: bool) -> None:
        """Restore the server to its old size and host.

        Nova also calls this at its start for a server that was leaving when nova was killed.
        """
        if not is_at_home(move):
            self._withdraw(instance)
            self._peers.forget(context, move.dest_compute, instance)
        if self._states.require(instance).status is Status.STOPPED:
            self._engine.update_devices(instance.name, ())
            self._attachments.revert_resize(instance, requested)
        elif not is_at_home(move):
            self._withdraw_notice(instance)
            return
        self.finish(context, instance, self._live.requested(requested, instance.flavor, move.uuid), power_on)

    def confirm(self, instance: objects.Instance, move: objects.Migration) -> None:
        """Remove the remains on the old host: the server keeps its present host and size."""
        if is_at_home(move):
            self._lifecycle.release_reserved_cores(instance)
        else:
            self.discard(instance)

    def discard(self, instance: objects.Instance) -> None:
        """Remove the remains of a server that is on another host."""
        if not self._states.is_foreign(instance):
            self._lifecycle.discard(instance.name, instance.uuid)


@contextlib.contextmanager
def unharmed(instance: objects.Instance) -> Iterator[None]:
    """Report an error of the block to nova as one that kept the server unchanged."""
    try:
        with as_nova(instance, exception.MigrationError):
            yield
    except Exception as error:
        raise exception.InstanceFaultRollback(error) from error


def require_no_smaller_ephemerals(instance: objects.Instance, flavor: objects.Flavor,
                                  requested: RequestedResources) -> None:
    """Refuse ephemeral disks that are smaller than the server's present ones.

    :raises ResizeError: the server's ephemeral disks exceed those of ``flavor``
    """
    present = sum(sizes(instance.flavor, requested.block_device_info)) // units.Gi
    if flavor.ephemeral_gb < present:
        raise exception.ResizeError(reason=(
            f"the server has {present} GiB of ephemeral disks, and flavor {flavor.name} gives it {flavor.ephemeral_gb} "
            f"GiB; choose a flavor with as much, or save what is on them and boot a new server"))
