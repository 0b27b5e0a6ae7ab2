# SPDX-License-Identifier: Apache-2.0
"""Emit nova's versioned notification ``device_faults.update`` with all unavailable devices of this host.

Each has the complete list, so neither a listener that missed some nor a restarted nova-compute needs a history:
devices not in the list are healthy. It requires versioned notifications in ``[notifications] notification_format``
and a ``[oslo_messaging_notifications] driver``.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import nova.conf
from nova import context
from nova.notifications.objects import base
from nova.objects import base as nova_base
from nova.objects import fields

from containerhost.allocation.faults import Fault
from nova_lxd_ext.hardware.pci import DRIVER

OBJECT = "device_faults"


@nova_base.NovaObjectRegistry.register_notification
class DeviceFaultPayload(base.NotificationPayloadBase):
    VERSION = "1.0"
    fields: ClassVar[dict[str, Any]] = {
        "device": fields.StringField(), "kind": fields.StringField(nullable=True),
        "complaints": fields.ListOfStringsField(), "taint": fields.StringField(nullable=True),
        "state": fields.StringField(), "blocked": fields.StringField(nullable=True),
        "instance_uuid": fields.UUIDField(nullable=True)}

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.device, self.kind, self.complaints, self.taint, self.state, self.blocked = fault[:-1]
        consumer = fault.consumer
        self.instance_uuid = consumer.uuid if consumer and consumer.driver == DRIVER else None


@nova_base.NovaObjectRegistry.register_notification
class DeviceFaultsPayload(base.NotificationPayloadBase):
    VERSION = "1.0"
    fields: ClassVar[dict[str, Any]] = {
        "host": fields.StringField(), "devices": fields.ListOfObjectsField("DeviceFaultPayload")}

    def __init__(self, host: str, found: Sequence[Fault]) -> None:
        super().__init__()
        self.host, self.devices = host, [DeviceFaultPayload(fault) for fault in found]


@nova_base.NovaObjectRegistry.register_notification
class DeviceFaultsNotification(base.NotificationBase):
    VERSION = "1.0"
    fields: ClassVar[dict[str, Any]] = {"payload": fields.ObjectField("DeviceFaultsPayload")}


def emit(found: Sequence[Fault]) -> None:
    """Send the notification, as an error if a device is faulty or blocked, otherwise as information."""
    host = nova.conf.CONF.host
    broken = any(fault.blocked or len(fault.complaints) > (fault.taint is not None) for fault in found)
    DeviceFaultsNotification(
        priority=fields.NotificationPriority.ERROR if broken else fields.NotificationPriority.INFO,
        publisher=base.NotificationPublisher(host=host, source=fields.NotificationSource.COMPUTE),
        event_type=base.EventType(object=OBJECT, action=fields.NotificationAction.UPDATE),
        payload=DeviceFaultsPayload(host, found)).emit(context.get_admin_context())
