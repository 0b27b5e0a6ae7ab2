# SPDX-License-Identifier: Apache-2.0
"""Live resize: a server that stays on its host gets another size while its processes go on.

Nova's flow is that of every resize: it claims what the new flavor asks for before, and on confirm or revert frees one
of the two. When it tells the server to leave, everything is changed at once, so that an error leaves the server with
its old size and nova gives the new one's resources back. All that comes later (nova's call to arrive, a revert, the
next start of nova-compute after it was killed) brings the container in line with what nova's record of the server says.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from nova import exception, objects
from nova.compute import vm_states
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import units

from containerhost import errors
from containerhost.devices.scan import HostView
from containerhost.engines import ContainerState, Engine, Status
from containerhost.engines.lxd.client import Seen
from containerhost.engines.lxd.live import Live
from containerhost.grants import Grant
from containerhost.inside import resources
from containerhost.inside.guestnotice import GuestNotice
from containerhost.rollback import Rollback
from containerhost.spec import ContainerSpec, grants_of
from nova_lxd_ext.hardware.flavor_devices import FlavorDevices
from nova_lxd_ext.host import startup
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.server import flavor as flavors
from nova_lxd_ext.server.arrivals import as_it_was, as_it_will_be, is_at_home
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.outfit import Outfit
from nova_lxd_ext.server.states import States
from nova_lxd_ext.server.wanted import Wanted
from nova_lxd_ext.storage import volumeconfig

LOG = logging.getLogger(__name__)


class LiveResize:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, live: Live, notice: GuestNotice, states: States,
                 outfit: Outfit, flavor_devices: FlavorDevices, lifecycle: Lifecycle) -> None:
        self._conf = conf
        self._engine = engine
        self._live = live
        self._notice = notice
        self._states = states
        self._outfit = outfit
        self._flavor_devices = flavor_devices
        self._lifecycle = lifecycle

    def change(self, context: Any, instance: objects.Instance, flavor: objects.Flavor, wanted: Wanted,
               move: objects.Migration, state: ContainerState, view: HostView) -> bool:
        """Let a running server be what the move under way makes of it, if it can go on meanwhile.

        :param flavor: the new one
        :param wanted: what it is to have with the old one
        :param state: the container's
        :returns: whether it has changed; if not it is as it was, to be resized while it is off
        :raises SpecError: the flavor demands a live resize, and it cannot be
        :raises ResizeError: its processes need more memory than it would have
        """
        flavors.live_resize_required(flavor.extra_specs)
        if state.status is not Status.RUNNING or instance.vm_state != vm_states.ACTIVE:
            return False
        coming = as_it_will_be(instance)
        obstacles = self._obstacles_on_the_way(instance, flavor, wanted, move)
        if not obstacles:
            then = self.wanted(wanted, flavor, instance.uuid)
            self._outfit.require_possible(coming, then, view)
            seen = self._live.look(coming.name)
            spec = self._spec(coming, then, seen, view)
            obstacles = self._live.obstacles(seen, spec)
        require_allowed(flavor, obstacles)
        if not obstacles:
            with Rollback(f"live resize of server {instance.uuid}") as undo:
                if self._notice.announce(coming.name, told(seen), spec.labels[resources.LABEL]):
                    undo.on_error("what was announced", self._tell, instance)
                for shortage in self._shortage(coming) if flavor.memory_mb < instance.flavor.memory_mb else ():
                    raise exception.ResizeError(reason=f"{shortage}; end some of them, stop the server first, or "
                                                       "choose a larger flavor")
                obstacles = self._users(coming, spec, view)
                require_allowed(flavor, obstacles)
                if not obstacles:
                    undo.on_error("its former size", self._take_back, context, instance, wanted)
                    self._converge(context, coming, then, spec, seen, view)
                    return True
        LOG.info("The server is resized while it is off: %s", "; ".join(obstacles), instance=instance)
        return False

    def revert(self, context: Any, instance: objects.Instance, wanted: Wanted, move: objects.Migration) -> bool:
        """Let a running server be what it was before the move, while nova still has the resources of both.

        :returns: whether it is; if not, it has to stop, and what is missing is done when it starts
        """
        if (direct(wanted) or volumeconfig.volumes(wanted.block_device_info)
                or fixed_differences(instance.old_flavor, instance.flavor)):
            return False
        try:
            return self.settle(context, as_it_was(instance), self.wanted(wanted, instance.old_flavor, move.uuid),
                               self._outfit.view())
        except errors.ContainerHostError:
            LOG.exception("The server has to stop to be what it was", instance=instance)
            return False

    def settle(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> bool:
        """Let the running container be what nova's record of the server says, if it is not.

        :returns: whether it is; if not, it can be only after a stop
        """
        if direct(wanted):
            return True
        self._live.await_changes(instance.name)
        self._flavor_devices.rebind_driver(instance, view)
        seen = self._live.look(instance.name)
        spec = self._spec(instance, wanted, seen, view)
        if not self._live.differs(seen, spec):
            self._outfit.trim(instance, spec.grants, view)  # who was killed may have claimed more
            if resources.generation(resources.parse(told(seen))) > 1:
                self._tell(instance)
            return True
        volumes = ("nova disconnects volumes at a resize",) if volumeconfig.volumes(wanted.block_device_info) else ()
        obstacles = (*volumes, *self._live.obstacles(seen, spec), *self._users(instance, spec, view),
                     *self._shortage(instance))
        if obstacles:
            LOG.warning("The server must stop to have its size: %s", "; ".join(obstacles), instance=instance)
            return False
        self._converge(context, instance, wanted, spec, seen, view)
        self._tell(instance)
        return True

    def wanted(self, wanted: Wanted, flavor: objects.Flavor, consumer: str) -> Wanted:
        """With what Placement holds for one of the two sizes: that of before is the move's while nova has both."""
        return dataclasses.replace(wanted, allocations=self._flavor_devices.allocations(flavor, consumer))

    @staticmethod
    def _obstacles_on_the_way(instance: objects.Instance, flavor: objects.Flavor, wanted: Wanted,
                              move: objects.Migration) -> tuple[str, ...]:
        """What nova itself does in a resize, and what the ports' and disks' own keys would change."""
        if not is_at_home(move):
            return (f"nova's scheduler chose another host, {move.dest_compute}, for it",)
        found = [f"nova gives port {port} another network function" for port in direct(wanted)]
        if volumeconfig.volumes(wanted.block_device_info):
            found.append("nova disconnects volumes at a resize")
        return (*found, *fixed_differences(instance.flavor, flavor))

    def _users(self, server: objects.Instance, spec: ContainerSpec, view: HostView) -> tuple[str, ...]:
        users = self._flavor_devices.users_of_others(server, spec.grants, self._engine.pid(server.name), view)
        return (f"a device it would lose is in use by {', '.join(users)}",) if users else ()

    def _spec(self, server: objects.Instance, wanted: Wanted, seen: Seen, view: HostView) -> ContainerSpec:
        """As the server is to be, with its grants as far as a look tells."""
        return with_grants(self._lifecycle.spec(server), self._flavor_devices.preview(server, wanted, view), seen)

    def _tell(self, server: objects.Instance) -> None:
        """Write into the container what its marks say."""
        document = told(self._live.look(server.name))
        if document is not None:
            self._notice.tell(server.name, document)

    def _shortage(self, server: objects.Instance) -> tuple[str, ...]:
        """What the processes of a server that is to be smaller need too much, in words; empty when they fit."""
        used, size = self._live.memory_in_use(server.name), server.flavor.memory_mb
        return (f"its processes use {used // units.Mi} MiB of memory, of which flavor {server.flavor.name} gives it "
                f"{size}",) if used > size * units.Mi else ()

    def _converge(self, context: Any, server: objects.Instance, wanted: Wanted, spec: ContainerSpec, seen: Seen,
                  view: HostView) -> None:
        """May be repeated. What the server has to give up goes back to the host when its container does not have it
        any more.

        :param spec: as the server is to be; its grants are allocated now
        :param seen: the container as it is
        """
        grants = grants_of(self._flavor_devices.put_on(context, server, wanted, view))
        self._live.adapt(seen, with_grants(spec, grants, seen))
        self._engine.verify(server.name, grants)
        self._outfit.trim(server, grants, view)
        self._states.changed()

    def _take_back(self, context: Any, instance: objects.Instance, wanted: Wanted) -> None:
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)
        seen, view = self._live.look(instance.name), self._outfit.view()
        spec = self._spec(instance, wanted, seen, view)
        try:
            self._converge(context, instance, wanted, spec, seen, view)
        except errors.NotAsGranted:
            self._live.renew(self._live.look(instance.name), spec)
            self._converge(context, instance, wanted, spec, self._live.look(instance.name), view)


def told(seen: Seen) -> str | None:
    """What the container is told of its resources."""
    return seen.label(resources.LABEL)


def with_grants(spec: ContainerSpec, grants: tuple[Grant, ...], seen: Seen) -> ContainerSpec:
    """And with what the container that was ``seen`` is to be told of all it has."""
    return resources.told(dataclasses.replace(spec, parts=grants), told(seen))


def require_allowed(flavor: objects.Flavor, obstacles: Sequence[str]) -> None:
    """:raises SpecError: the flavor is only for a live resize, and there are obstacles"""
    if obstacles and flavors.live_resize_required(flavor.extra_specs):
        raise errors.SpecError(f"Flavor {flavor.name} (lxd:live_resize=required) is only for a resize during which the "
                               f"server goes on, and it cannot: {'; '.join(obstacles)}. Stop the server first, or "
                               "choose another flavor.")


def fixed_differences(old: objects.Flavor, new: objects.Flavor) -> tuple[str, ...]:
    """What of two flavors only a server that is off can change, in words."""
    found = []
    if (old.ephemeral_gb, old.swap) != (new.ephemeral_gb, new.swap):
        found.append("ephemeral and swap disks do not change while it runs")
    if vifconfig.shapes(old.extra_specs) != vifconfig.shapes(new.extra_specs):
        found.append("the limits of its ports (quota:vif_*) do not change while it runs")
    return tuple(found)


def direct(wanted: Wanted) -> tuple[str, ...]:
    """Ids of the ports with a network function of their own: a server with one is never resized while it runs."""
    return tuple(vif["id"] for vif in wanted.network_info if vifconfig.kind(vif) is vifconfig.Kind.DIRECT)
