# SPDX-License-Identifier: Apache-2.0
"""Wait until neutron has wired a server's ports, so that no server starts without network."""

import contextlib
from collections.abc import Iterator
from typing import Any

from nova import exception, objects
from nova.network import model
from oslo_config import cfg
from oslo_log import log as logging

from nova_lxd_ext.network import vifconfig

LOG = logging.getLogger(__name__)


class VifEvents:
    """Wait for neutron's events about wired ports of servers.

    :param virtapi: nova's interface that receives neutron's events (nova.virt.virtapi.VirtAPI)
    """

    def __init__(self, conf: cfg.ConfigOpts, virtapi: Any) -> None:
        self._conf = conf
        self._virtapi = virtapi

    @contextlib.contextmanager
    def expecting(self, instance: objects.Instance, vifs: model.NetworkInfo) -> Iterator[None]:
        """Wait for Neutron around the plugging: at the end of the block all ports that were down must be wired.

        They have ``[DEFAULT]vif_plugging_timeout`` seconds; 0 does not wait.

        :raises VirtualInterfaceCreateException: a port is not wired, and ``[DEFAULT]vif_plugging_is_fatal`` is set
        """
        events = vifconfig.awaited(vifs) if self._conf.vif_plugging_timeout else []
        if not events:
            yield
            return
        try:
            with self._virtapi.wait_for_instance_event(instance, events, timeout=self._conf.vif_plugging_timeout,
                                                       error_callback=self._failed):
                yield
        except exception.InstanceEventTimeout as error:
            if self._conf.vif_plugging_is_fatal:
                ports = ", ".join(port for _, port in events)
                raise exception.VirtualInterfaceCreateException(
                    f"Neutron did not wire all of the ports {ports} within {self._conf.vif_plugging_timeout} s "
                    f"([DEFAULT]vif_plugging_timeout): see the log of this host's network agent") from error
            LOG.warning("The server starts although neutron has not wired all of its ports", instance=instance)

    def _failed(self, event: str, instance: objects.Instance) -> None:
        LOG.error("Neutron reported a failure of event %s", event, instance=instance)
        if self._conf.vif_plugging_is_fatal:
            raise exception.VirtualInterfaceCreateException(f"Neutron reported a failure: {event}")
