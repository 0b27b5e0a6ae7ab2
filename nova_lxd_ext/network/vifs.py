# SPDX-License-Identifier: Apache-2.0
"""Provide a server's Neutron ports as interfaces of its container: before its start, while it runs, after its end."""

import contextlib
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from nova import exception, objects
from nova.network import model, os_vif_util
from os_vif.objects.instance_info import InstanceInfo
from oslo_log import log as logging

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.engines.contract import ContainerState, Engine, Status, first_process
from containerhost.engines.network.veth import Veths
from containerhost.engines.spec import Nic, Part
from containerhost.inventory.scan import HostView
from containerhost.rollback import Rollback
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.network.vifconfig import Kind
from nova_lxd_ext.network.vifdirect import DirectPorts
from nova_lxd_ext.network.vifevents import VifEvents
from nova_lxd_ext.network.vifplug import Plugs

LOG = logging.getLogger(__name__)


class Ports(AttachmentProvider):
    def __init__(self, engine: Engine, veths: Veths, plugs: Plugs, direct: DirectPorts, events: VifEvents) -> None:
        self._engine = engine
        self._veths = veths
        self._plugs = plugs
        self._direct = direct
        self._events = events

    # Attachment provider

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse ports that a container cannot have.

        :raises SpecError: a container cannot have one of the ports, or not with the flavor's keys
        """
        for vif in requested.network_info:
            vifconfig.require_holdable(vif, instance.flavor.extra_specs)

    def expecting(self, instance: objects.Instance, requested: RequestedResources) -> AbstractContextManager[None]:
        return self._events.expecting(instance, requested.network_info)

    def attach_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Part, ...]:
        vifs = tuple(requested.network_info)
        names = vifconfig.names(vifs)
        direct = [vif for vif in vifs if vifconfig.kind(vif) is Kind.DIRECT]
        grants = self._direct.attach_all(instance, direct, names, view)
        return tuple(grants.get(vif["id"]) or self._make_interface(instance, vif, names[vif["id"]]) for vif in vifs)

    def prepare(self, instance: objects.Instance, network_info: model.NetworkInfo) -> None:
        """Create and plug the pairs of a server that will arrive.

        Once its ports are bound here, neutron's agent wires only ports that it already knows: it treats the
        remaining binding on the old host as that of a leaving server.
        """
        for vif in filter(vifconfig.has_pair, network_info):
            self._make_interface(instance, vif, "")

    def _make_interface(self, instance: objects.Instance, vif: model.VIF, name: str) -> Nic:
        """Create the pair unless it exists, and plug its host end."""
        pair = vifconfig.pair(instance.uuid, vif)
        if self._veths.ready(pair):
            self._veths.set_up(pair.host_end, True)
        else:
            # Remove the switch's port of a former interface with that name.
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

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Unplug and remove the server's pairs; functions of its direct ports are released with its other devices."""
        with contextlib.ExitStack() as each:  # an error in one does not prevent others from being unplugged
            each.callback(self._remove_marked, vifconfig.owners_mark(instance.uuid))
            for vif in filter(vifconfig.has_pair, requested.network_info):
                each.callback(self._unplug, described(instance), vif)

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        owners = {labels.uuid(state.labels) for state in alive}
        for name, mark in self._marked(f"{vifconfig.MARK} ").items():
            owner = vifconfig.remembered(name, mark)[0]
            if owner not in owners:
                LOG.warning("Interface %s remains of a server without a container: it is removed", name,
                            instance_uuid=owner)
                self._remove_marked(mark)

    def _marked(self, beginning: str) -> dict[str, str]:
        return {name: mark for name, mark in self._veths.marked(beginning).items() if vifconfig.is_host_end(name, mark)}

    def _remove_marked(self, beginning: str) -> None:
        for name, mark in self._marked(beginning).items():
            owner, vif = vifconfig.remembered(name, mark)
            self._unplug(InstanceInfo(uuid=owner, name=owner), vif)

    def _unplug(self, server: InstanceInfo, vif: model.VIF) -> None:
        self._plugs.unplug(server, vif)
        self._veths.remove(vifconfig.host_end(vif))

    # Requests of nova

    def plug(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        """Connect the ports of a running server, for example at nova-compute's start, keeping existing interfaces.

        :raises VirtualInterfacePlugException: nova sets the server to ERROR
        """
        try:
            for vif in network_info or ():
                if vifconfig.kind(vif) is not Kind.DIRECT and self._veths.marks(vifconfig.pair(instance.uuid, vif)):
                    self._plug(instance, vif)
        except errors.ContainerHostError as error:
            raise exception.VirtualInterfacePlugException(str(error)) from error

    def unplug(self, instance: objects.Instance, network_info: model.NetworkInfo | None) -> None:
        """Disconnect the ports of a server whose container no longer runs here."""
        self.release_all(instance, RequestedResources.of(network_info), self._direct.view())

    # Hot-plug

    def attach(self, instance: objects.Instance, state: ContainerState, vif: model.VIF) -> str:
        """Attach one more port to a container, running or not, and return the name of its interface there.

        It does not wait for the wiring: nova's caller would time out before."""
        network_info, view = model.NetworkInfo([vif]), self._direct.view()
        self.require_possible(instance, RequestedResources.of(network_info), view)
        name = vifconfig.free_name(vif, state.interfaces)
        with Rollback(f"attaching port {vif['id']} to server {instance.uuid}") as undo:
            if vifconfig.has_pair(vif):
                self._veths.make(vifconfig.pair(instance.uuid, vif))  # an existing interface is kept
            given: list[Part] = []
            undo.on_error("the port", self._withdraw, instance, vif, given, view)
            part = self._attach_one(instance, vif, name, view)
            if state.status is Status.FROZEN:
                self._set_up(instance, False, view)
            given.append(part)
            self._engine.attach(instance.name, part)
        return name

    def _withdraw(self, instance: objects.Instance, vif: model.VIF, given: Sequence[Part], view: HostView) -> None:
        """Detach the parts of a failed attachment; those that cannot be detached stay with the server."""
        for part in given:
            self._engine.detach(instance.name, part)
        self._detach_one(instance, vif, view)

    def _attach_one(self, instance: objects.Instance, vif: model.VIF, name: str, view: HostView) -> Part:
        if not vifconfig.has_pair(vif):
            return self._direct.attach_all(instance, [vif], {vif["id"]: name}, view)[vif["id"]]
        self._plug(instance, vif)
        return vifconfig.nic(vif, name)

    def detach(self, instance: objects.Instance, vif: model.VIF) -> None:
        """Detach a port from a container, running or not. Idempotent.

        A function that this host has lost stays in the container's configuration until its next start: LXD refuses
        to detach from a running container what the kernel has already removed.

        :raises DeviceInUse: a process in it uses the function of a direct port; nothing was changed
        """
        view = self._direct.view()
        part, remaining = self._held(instance, vif, view)
        if part is None and not vifconfig.has_pair(vif) and self._direct.lost(instance, vif):
            LOG.warning("The host has lost the function of port %s: the port is detached without it", vif["id"],
                        instance=instance)
        if isinstance(part, Grant):
            self._direct.require_unused(part)
        if part is not None:
            self._engine.detach(instance.name, part, remaining)
        self._detach_one(instance, vif, view)

    def _held(self, instance: objects.Instance, vif: model.VIF, view: HostView
              ) -> tuple[Part | None, tuple[Part, ...]]:
        """Return the container's part of the port, and its other parts that may share nodes with it."""
        if not vifconfig.has_pair(vif):
            return self._direct.held(instance, vif, view)
        try:
            interfaces = self._engine.container(instance.name).interfaces
        except errors.EngineNotFound:
            return None, ()  # neutron deleted the port during a boot or a deletion
        names = [name for name, parent in interfaces.items() if parent == vifconfig.inner_end(vif)]
        return (vifconfig.nic(vif, names[0]) if names else None), ()

    def _detach_one(self, instance: objects.Instance, vif: model.VIF, view: HostView) -> None:
        if vifconfig.has_pair(vif):
            self._unplug(described(instance), vif)
        else:
            self._direct.release(instance, vif, first_process(self._engine, instance.name), view)

    # Pause and live migration

    def pause(self, instance: objects.Instance) -> None:
        """Set the links down, because a frozen container's kernel would still answer."""
        self._set_up(instance, False, self._direct.view())

    def resume(self, instance: objects.Instance) -> None:
        self._set_up(instance, True, self._direct.view())

    def _set_up(self, instance: objects.Instance, up: bool, view: HostView) -> None:
        for host_end in self._marked(vifconfig.owners_mark(instance.uuid)):
            self._veths.set_up(host_end, up)
        self._direct.set_link_state(instance, up, view)


def described(instance: objects.Instance) -> InstanceInfo:
    return os_vif_util.nova_to_osvif_instance(instance)
