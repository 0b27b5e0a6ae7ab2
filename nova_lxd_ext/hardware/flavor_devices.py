# SPDX-License-Identifier: Apache-2.0
"""Allocate a server's devices on this host: from nova's claim to grants, and back to the host."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import Consumer
from containerhost.devices.grants import Grant
from containerhost.engines.contract import ContainerState
from containerhost.engines.spec import Part, grants_of
from containerhost.inventory.scan import HostView
from nova_lxd_ext.hardware import accelerators, arqs, devices
from nova_lxd_ext.hardware.allocations import HostSlices
from nova_lxd_ext.instance import flavor
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import RequestedResources, prefix_of

LOG = logging.getLogger(__name__)

DRIVER = "nova"
ENGINE = "lxd"


class FlavorDevices(AttachmentProvider):
    """Allocate the devices of a server's flavor, repair them, and release them.

    :param node_id: this host, as nova's records of PCI devices name it
    """

    def __init__(self, conf: cfg.ConfigOpts, allocator: DeviceAllocator, slices: HostSlices,
                 node_id: Callable[[], int]) -> None:
        self._conf = conf
        self._allocator = allocator
        self._slices = slices
        self._node_id = node_id

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse devices that the server cannot have here.

        :raises DeviceNotFound, DeviceUnhealthy: a claimed device is no longer on this host, or is unhealthy
        :raises SpecError: a flavor key is invalid, or an accelerator does not support containers
        """
        requests = self._requests(instance, requested, view)
        if (least := self._least(instance)) is not None:
            self._allocator.require_gpus(requests, consumer(instance), least, view)
        elif requests:
            self._allocator.preview(requests, consumer(instance), view)

    def _least(self, instance: objects.Instance) -> int | None:
        """Return the minimum number of the server's GPUs; None if it needs all of them."""
        claim = flavor.gpus(instance.flavor.extra_specs, self._conf.lxd.gpu_capabilities)
        return None if claim is None else claim.least

    def _requests(self, instance: objects.Instance, requested: RequestedResources,
                  view: HostView) -> tuple[Request, ...]:
        """Return the requests for the server's claimed devices. Changes nothing; scans the host only if needed."""
        policy = devices.Policy(
            gpu_capabilities=flavor.gpu_capabilities(instance.flavor.extra_specs, self._conf.lxd.gpu_capabilities),
            memlock=self._conf.lxd.rdma_memlock,
            management_nodes=self._conf.lxd.rdma_management_nodes,
            own_guids=self._conf.lxd.rdma_guid_policy == "instance",
            max_tx_rate=flavor.vf_rate(instance.flavor.extra_specs))
        names = (*self._claimed(instance, view), *accelerators.addresses(arqs.of(instance, requested.accel_info)),
                 *self._slices.of(instance, consumer(instance), requested.allocations, view))
        if not names:
            return ()
        ports = [prefix_of(vif) for vif in requested.network_info]
        return devices.requests(instance.uuid, names, view.inventory, policy, ports.count("eth"), ports.count("ib"))

    def _claimed(self, instance: objects.Instance, view: HostView) -> tuple[str, ...]:
        """Return the devices claimed in nova, without detached GPUs that have left the host."""
        found = devices.claimed(instance, self._node_id()) if instance.get_pci_devices() else ()
        if not found or self._least(instance) is None:
            return found
        gone = self._allocator.gone(consumer(instance), view)
        return tuple(name for name in found if name not in gone)

    def attach_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Part, ...]:
        """Allocate all or none for a stopped container.

        Devices that the server already holds stay unchanged, except faulty GPUs: a server that can do without starts
        without them."""
        least = self._least(instance)

        def present(requests: tuple[Request, ...]) -> tuple[Request, ...]:
            return requests if least is None else self._allocator.leave_out(requests, consumer(instance), least, view)

        return self._acquire(instance, requested, view, present)

    def attach_running(self, instance: objects.Instance, requested: RequestedResources, view: HostView
                       ) -> tuple[Part, ...]:
        """Allocate like :meth:`attach_all` for a running container, except currently detached devices."""
        return self._acquire(instance, requested, view, functools.partial(self._present, instance))

    def _present(self, instance: objects.Instance, requests: tuple[Request, ...]) -> tuple[Request, ...]:
        """Return the requests without those for currently detached devices."""
        return (requests if self._least(instance) is None
                else self._allocator.present(requests, consumer(instance)))

    def _acquire(self, instance: objects.Instance, requested: RequestedResources, view: HostView,
                 present: Callable[[tuple[Request, ...]], tuple[Request, ...]]) -> tuple[Part, ...]:
        tried: tuple[Request, ...] | None = None
        while True:
            requests = present(self._requests(instance, requested, view))
            try:
                return self._allocator.acquire(requests, consumer(instance), view) if requests else ()
            except errors.DeviceHeld:
                # The chosen slice may have been allocated to another server meanwhile: choose another one.
                if requests == tried:
                    raise
                tried = requests

    def allocations(self, flavor: objects.Flavor, consumer: str) -> Mapping[str, Any]:
        """Return a consumer's allocations in Placement that are relevant for this flavor."""
        return self._slices.allocations(flavor, consumer)

    def held(self, instance: objects.Instance) -> frozenset[str]:
        """Return the ids of the server's devices on this host."""
        return self._allocator.held_by(consumer(instance))

    def faults(self, instance: objects.Instance) -> tuple[str, ...]:
        """Describe the faults of the server's devices."""
        return self._allocator.faults(consumer(instance))

    def reset_devices(self, instance: objects.Instance, view: HostView) -> None:
        """Reset the server's unhealthy GPUs; the following start refuses one that cannot be reset."""
        for complaint in self._allocator.repair.reset_devices(consumer(instance), view):
            LOG.error("A faulty GPU is not reset: %s", complaint, instance=instance)

    def rebind_driver(self, instance: objects.Instance, view: HostView) -> None:
        """Restore functions whose cleaning was killed."""
        self._allocator.repair.rebind_driver(consumer(instance), view)

    def preview(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Grant, ...]:
        """Return the grants of :meth:`attach_running` as far as they are known in advance; changes nothing."""
        requests = self._present(instance, self._requests(instance, requested, view))
        return self._allocator.preview(requests, consumer(instance), view) if requests else ()

    def users_of_others(self, instance: objects.Instance, grants: Collection[Grant], view: HostView
                        ) -> tuple[str, ...]:
        """Describe the processes that use a device of the server that is not among ``grants``."""
        going = self._allocator.held_by(consumer(instance)) - {grant.device.id for grant in grants}
        held = self._allocator.held(consumer(instance), view) if going else ()
        return self._allocator.users((grant for grant in held if grant.device.id in going), view)

    def release_unused(self, instance: objects.Instance, parts: Sequence[Part], container: int | None,
                       view: HostView) -> None:
        """Release the devices of the other flavor after a resize; detached devices stay the server's own."""
        kept = {grant.device.id for grant in grants_of(parts)}
        if self._least(instance) is not None:
            kept |= self._allocator.detached(consumer(instance)) & set(devices.claimed(instance, self._node_id()))
        for device_id in sorted(self._allocator.held_by(consumer(instance)) - kept):
            for complaint in self._allocator.release_device(device_id, consumer(instance), container, view):
                LOG.error("A released device is blocked: %s", complaint, instance=instance)

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Release every device of a server whose container is stopped or deleted.

        A device that cannot be cleaned stays blocked on the host and is logged: deleting the server must not wait
        for its repair.
        """
        for complaint in self._allocator.release(consumer(instance), view):
            LOG.error("A released device is blocked: %s", complaint, instance=instance)

    def stopped(self, instance: objects.Instance) -> None:
        try:
            complaints = self._allocator.reconciler.clean_ended(consumer(instance))
        except errors.AllocationsUnreadable as error:
            complaints = (str(error),)
        for complaint in complaints:
            LOG.error("A released device is blocked: %s", complaint, instance=instance)

    def any_held(self) -> bool:
        """Return whether any server has a device of this host, as far as the records are readable."""
        try:
            return bool(self._allocator.consumers_of(DRIVER, ENGINE))
        except errors.AllocationsUnreadable:
            return True

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        """Release the devices of containers that are not among ``alive``, and repair the remains of a killed driver.

        The operator must repair unreadable records. Until then no device is allocated, but servers are managed.
        """
        try:
            complaints = self._allocator.reconciler.reconcile(DRIVER, ENGINE, [state.name for state in alive])
        except errors.AllocationsUnreadable as error:
            complaints = (str(error),)
        for complaint in complaints:
            LOG.error("Remains of an interrupted nova-compute: %s", complaint)


def consumer(instance: objects.Instance) -> Consumer:
    return Consumer(driver=DRIVER, engine=ENGINE, container=instance.name, uuid=instance.uuid)
