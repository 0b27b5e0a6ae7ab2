"""A server's devices on this host: from nova's claim to grants, and back to the host."""

import logging
from collections.abc import Callable, Collection

from nova import objects
from oslo_config import cfg

from containerhost import errors
from containerhost.devices.scan import Inventory
from containerhost.engines import Engine
from containerhost.grants import Grant
from containerhost.owners import Owner
from containerhost.possession import Possession, Request
from nova_lxd_ext import devices, flavor

LOG = logging.getLogger(__name__)

DRIVER = "nova"
ENGINE = "lxd"


class Possessions:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, possession: Possession,
                 inventory: Callable[[], Inventory]) -> None:
        self._conf = conf
        self._engine = engine
        self._possession = possession
        self._inventory = inventory

    def requests(self, instance: objects.Instance) -> tuple[Request, ...]:
        """What the server's claimed devices are to be in its container; changes nothing.

        :raises DeviceNotFound: when a claimed device is not on this host any more
        :raises SpecError: on a bad flavor key
        """
        policy = devices.Policy(
            gpu_capabilities=flavor.gpu_capabilities(instance.flavor.extra_specs, self._conf.lxd.gpu_capabilities),
            memlock=self._conf.lxd.rdma_memlock,
            management_nodes=self._conf.lxd.rdma_management_nodes,
            own_guids=self._conf.lxd.rdma_guid_policy == "instance")
        if not instance.get_pci_devices():
            return ()
        return devices.requests(instance, self._inventory(), policy)

    def acquire(self, instance: objects.Instance, requests: Collection[Request]) -> tuple[Grant, ...]:
        """Take possession of all or none. What the server holds already stays as it is."""
        return self._possession.acquire(tuple(requests), owner(instance)) if requests else ()

    def renew(self, instance: objects.Instance) -> tuple[Grant, ...]:
        """Bring the configuration of a stopped container up to date with the devices its server holds."""
        requests = self.requests(instance)
        grants = self.acquire(instance, requests)
        if grants:
            self._engine.regrant(instance.name, grants)
        return grants

    def give_back(self, instance: objects.Instance) -> None:
        """Return every device of a server whose container is gone or stopped.

        One that cannot be cleaned stays blocked on the host and is reported in the log: the server's end must not wait
        for the repair of a device.
        """
        for complaint in self._possession.give_back(owner(instance)):
            LOG.error("Device of server %s came back, but is not used again: %s", instance.uuid, complaint)

    def reconcile(self, alive: Collection[str]) -> None:
        """Return what containers hold that are not among ``alive``: a driver that was killed could not.

        Records that cannot be read are the operator's to repair. Until then no device is handed out, but servers are
        served.
        """
        try:
            complaints = self._possession.reconcile(DRIVER, ENGINE, alive)
        except errors.OwnersUnreadable as error:
            complaints = (str(error),)
        for complaint in complaints:
            LOG.error("Device of a container that is gone: %s", complaint)


def owner(instance: objects.Instance) -> Owner:
    return Owner(driver=DRIVER, engine=ENGINE, container=instance.name, uuid=instance.uuid)
