# SPDX-License-Identifier: Apache-2.0
"""Find the requests of nova that a nova-compute which ended did not finish.

Nova writes an event to the server's action when a method of nova-compute begins, and its end when that ends. An event
of this host without an end, found before this nova-compute takes requests, belongs to one that was killed. A request
without an event waits in the message queue: nova-compute will receive it.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from nova import context as nova_context
from nova import objects

LATEST = 1  # of a server's actions: nova begins none before the one before has ended, or was lost
PREFIX = "compute_"


@dataclasses.dataclass(frozen=True)
class Lost:
    """:ivar action: what the user asked for
    :ivar methods: nova-compute's methods (``resize_instance``) that began on this host and did not end
    :ivar others: the methods that began on other hosts, or ended
    :ivar ended: those of them that ended
    """

    action: objects.InstanceAction | None
    methods: frozenset[str]
    others: frozenset[str]
    ended: frozenset[str]

    def context(self, instance: objects.Instance) -> Any:
        """Return an administrator's context of the request itself, so that nova adds what follows to the same
        action."""
        return nova_context.RequestContext(
            user_id=self.action.user_id if self.action else None, project_id=instance.project_id, is_admin=True,
            request_id=self.action.request_id if self.action else None, overwrite=False)


def of(context: Any, uuid: str, host: str) -> Lost:
    """Return the requests of a server's latest action that were lost on ``host``.

    :param uuid: the server's
    """
    actions = objects.InstanceActionList.get_by_instance_uuid(context, uuid, limit=LATEST)
    if not actions:
        return Lost(None, frozenset(), frozenset(), frozenset())
    events = [event for event in objects.InstanceActionEventList.get_by_action(context, actions[0].id)
              if event.event.startswith(PREFIX)]
    lost = methods(event for event in events if event.host == host and event.finish_time is None)
    return Lost(actions[0], lost, methods(events) - lost, methods(event for event in events if event.finish_time))


def methods(events: Iterable[objects.InstanceActionEvent]) -> frozenset[str]:
    return frozenset(event.event.removeprefix(PREFIX) for event in events)
