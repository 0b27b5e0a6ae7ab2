# SPDX-License-Identifier: Apache-2.0
"""A server's Neutron ports as interfaces of its container: before its start, while it runs, after its end."""

import contextlib
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from nova import exception, objects
from nova.network import model, os_vif_util
from os_vif.objects.instance_info import InstanceInfo
from oslo_log import log as logging

from containerhost import errors
from containerhost.devices.scan import HostView
from containerhost.engines import ContainerState, Engine, Status, first_process
from containerhost.grants import Grant
from containerhost.network.veth import Veths
from containerhost.rollback import Rollback
from containerhost.spec import Nic, Part
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.network.vifconfig import Kind
from nova_lxd_ext.network.vifdirect import DirectPorts
from nova_lxd_ext.network.vifevents import VifEvents
from nova_lxd_ext.network.vifplug import Plugs
from nova_lxd_ext.server import labels
from nova_lxd_ext.server.outfit import Supplier
from nova_lxd_ext.server.wanted import Wanted

LOG = logging.getLogger(__name__)


class Ports(Supplier):
    def __init__(self, engine: Engine, veths: Veths, plugs: Plugs, direct: DirectPorts, events: VifEvents) -> None:
        self._engine = engine
        self._veths = veths
        self._plugs = plugs
        self._direct = direct
        self._events = events

    # As a supplier

    def require_possible(self, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        """:raises SpecError: a container cannot have one of the ports, or not with what its flavor says"""
        for vif in wanted.network_info:
            vifconfig.require_holdable(vif, instance.flavor.extra_specs)

    def expecting(self, instance: objects.Instance, wanted: Wanted) -> AbstractContextManager[None]:
        return self._events.expecting(instance, wanted.network_info)

    def put_on(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> tuple[Part, ...]:
        vifs = tuple(wanted.network_info)
        names = vifconfig.names(vifs)
        direct = [vif for vif in vifs if vifconfig.kind(vif) is Kind.DIRECT]
        grants = self._direct.put_on(instance, direct, names, view)
        return tuple(grants.get(vif["id"]) or self._put_on(instance, vif, names[vif["id"]]) for vif in vifs)

    def _put_on(self, instance: objects.Instance, vif: model.VIF, name: str) -> Nic:
        """Make the pair unless it is there, and plug its host end."""
        pair = vifconfig.pair(instance.uuid, vif)
        if self._veths.ready(pair):
            self._veths.set_up(pair.host_end, True)
        else:
            # The switch would go on with an interface of that name that is gone.
            self._plugs.unplug(described(instance), vif)
            self._veths.make(pair)
        self._plug(instance, vif)
        return vifconfig.nic(vif, name)

    def _plug(self, instance: objects.Instance, vif: model.VIF) -> None:
        self._plugs.plug(described(instance), vif)
        host_end = vifconfig.host_end(vif)
        received, sent = vifconfig.shapes(instance.flavor.extra_specs)
        if received is not None:
            self._veths.shape(host_end, received)
        if sent is not None:
            self._veths.shape_sent(host_end, sent)

    def take_off(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        """Direct ports' functions go back with all other devices of the server."""
        with contextlib.ExitStack() as each:  # one that fails keeps no other from being unplugged
            each.callback(self._remove_marked, vifconfig.owners_mark(instance.uuid))
            for vif in filter(vifconfig.has_pair, wanted.network_info):
                each.callback(self._unplug, described(instance), vif)

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        owners = {labels.uuid(state.labels) for state in alive}
        for name, mark in self._veths.marked(f"{vifconfig.MARK} ").items():
            owner = vifconfig.remembered(name, mark)[0]
            if owner not in owners:
                LOG.warning("Interface %s is left of a server that has no container: it is removed", name,
                            instance_uuid=owner)
                self._remove_marked(mark)

    def _remove_marked(self, beginning: str) -> None:
        for name, mark in self._veths.marked(beginning).items():
            owner, vif = vifconfig.remembered(name, mark)
            self._unplug(InstanceInfo(uuid=owner, name=owner), vif)

    def _unplug(self, server: InstanceInfo, vif: model.VIF) -> None:
        self._plugs.unplug(server, vif)
        self._veths.remove(vifconfig.host_end(vif))

    # As nova asks for them

    def plug(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        """Connect the ports of a server that runs, at nova-compute's start say; interfaces that it has stay.

        :raises VirtualInterfacePlugException: nova sets the server to ERROR
        """
        try:
            for vif in network_info or ():
                if vifconfig.kind(vif) is not Kind.DIRECT and self._veths.marks(vifconfig.pair(instance.uuid, vif)):
                    self._plug(instance, vif)
        except errors.ContainerHostError as error:
            raise exception.VirtualInterfacePlugException(str(error)) from error

    def unplug(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        """Disconnect the ports of a server whose container does not run here any more."""
        self.take_off(None, instance, Wanted.of(network_info), self._direct.view())

    # Hot

    def attach(self, instance: objects.Instance, state: ContainerState, vif: model.VIF) -> str:
        """Give a container, running or not, one more port; the name of its interface there. Wiring is not waited for:
        nova's caller would give up before.

        :param state: the container's
        """
        network_info, view = model.NetworkInfo([vif]), self._direct.view()
        self.require_possible(instance, Wanted.of(network_info), view)
        name = vifconfig.free_name(vif, state.interfaces)
        with Rollback(f"attaching port {vif['id']} to server {instance.uuid}") as undo:
            if vifconfig.has_pair(vif):
                self._veths.make(vifconfig.pair(instance.uuid, vif))  # an interface in the way stays
            given: list[Part] = []
            undo.on_error("the port", self._withdraw, instance, vif, given, view)
            part = self._put_on_one(instance, vif, name, view)
            if state.status is Status.FROZEN:
                self._set_up(instance, False, view)
            given.append(part)
            self._engine.attach(instance.name, part)
        return name

    def _withdraw(self, instance: objects.Instance, vif: model.VIF, given: Sequence[Part], view: HostView) -> None:
        """What cannot be taken from the container stays the server's, and goes to nobody else."""
        for part in given:
            self._engine.detach(instance.name, part)
        self._take_off_one(instance, vif, view)

    def _put_on_one(self, instance: objects.Instance, vif: model.VIF, name: str, view: HostView) -> Part:
        if not vifconfig.has_pair(vif):
            return self._direct.put_on(instance, [vif], {vif["id"]: name}, view)[vif["id"]]
        self._plug(instance, vif)
        return vifconfig.nic(vif, name)

    def detach(self, instance: objects.Instance, vif: model.VIF) -> None:
        """Take a port from a container, running or not; done already when it has it no more.

        A function that is gone from this host stays in the container's configuration until its next start: LXD refuses
        to take from a running container what the kernel took from it before.

        :raises DeviceInUse: a process in it uses the function of a direct port; nothing was changed
        """
        view = self._direct.view()
        part, remaining = self._held(instance, vif, view)
        if part is None and not vifconfig.has_pair(vif) and self._direct.lost(instance, vif):
            LOG.warning("The function of port %s is gone from this host: the port is detached without it", vif["id"],
                        instance=instance)
        if isinstance(part, Grant):
            self._direct.require_unused(part, self._engine.pid(instance.name))
        if part is not None:
            self._engine.detach(instance.name, part, remaining)
        self._take_off_one(instance, vif, view)

    def _held(self, instance: objects.Instance, vif: model.VIF, view: HostView
              ) -> tuple[Part | None, tuple[Part, ...]]:
        """What the container has of the port, and what else it has that could share nodes with it."""
        if not vifconfig.has_pair(vif):
            return self._direct.held(instance, vif, view)
        try:
            interfaces = self._engine.container(instance.name).interfaces
        except errors.EngineNotFound:
            return None, ()  # neutron deleted the port while the server boots or ends
        names = [name for name, parent in interfaces.items() if parent == vifconfig.inner_end(vif)]
        return (vifconfig.nic(vif, names[0]) if names else None), ()

    def _take_off_one(self, instance: objects.Instance, vif: model.VIF, view: HostView) -> None:
        if vifconfig.has_pair(vif):
            self._unplug(described(instance), vif)
        else:
            self._direct.release(instance, vif, first_process(self._engine, instance.name), view)

    # Frozen

    def pause(self, instance: objects.Instance) -> None:
        """A frozen container's kernel would still answer for it."""
        self._set_up(instance, False, self._direct.view())

    def resume(self, instance: objects.Instance) -> None:
        self._set_up(instance, True, self._direct.view())

    def _set_up(self, instance: objects.Instance, up: bool, view: HostView) -> None:
        for host_end in self._veths.marked(vifconfig.owners_mark(instance.uuid)):
            self._veths.set_up(host_end, up)
        self._direct.set_link_state(instance, up, view)


def described(instance: objects.Instance) -> InstanceInfo:
    return os_vif_util.nova_to_osvif_instance(instance)
