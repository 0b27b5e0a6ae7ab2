# SPDX-License-Identifier: Apache-2.0
"""Find requests that an ended nova-compute did not finish.

Nova records an event of the server's action when a method of nova-compute begins, and its end when that ends. An
event of this host without an end, found before this nova-compute takes requests, belongs to a killed one. A request
without an event waits in the message queue for nova-compute.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import instance_actions

PAGE = 20  # actions of a server per query of nova's database
# Actions without a task state, which nova permits during other tasks, or before the confirmation of a resize ends.
WITHOUT_TASK = frozenset({
    instance_actions.LOCK, instance_actions.UNLOCK, instance_actions.ATTACH_INTERFACE,
    instance_actions.DETACH_INTERFACE, instance_actions.ATTACH_VOLUME, instance_actions.DETACH_VOLUME,
    instance_actions.SWAP_VOLUME, instance_actions.EXTEND_VOLUME, instance_actions.ATTACH_SHARE,
    instance_actions.DETACH_SHARE, instance_actions.TRIGGER_CRASH_DUMP,
    instance_actions.NOVA_MANAGE_REFRESH_VOLUME_ATTACHMENT})
PREFIX = "compute_"
FAILED = "Error"  # nova's result of a failed event


@dataclasses.dataclass(frozen=True)
class Lost:
    """Record which methods of nova-compute for a server's latest task began, ended or failed, here and elsewhere.

    :ivar methods: nova-compute's methods (``resize_instance``) that began on this host and did not end
    :ivar others: the methods that began on other hosts, or ended
    """

    action: objects.InstanceAction | None
    methods: frozenset[str]
    others: frozenset[str]
    ended: frozenset[str]
    failed: frozenset[str] = frozenset()

    @property
    def is_unbegun(self) -> bool:
        """Return whether no host has begun the request: it is queued, or nova-compute was killed before its event."""
        return self.action is not None and not self.methods and not self.others

    def context(self, instance: objects.Instance) -> Any:
        """Return an administrator's context with the request's id, so that nova continues the same action."""
        return nova_context.RequestContext(
            user_id=self.action.user_id if self.action else None, project_id=instance.project_id, is_admin=True,
            request_id=self.action.request_id if self.action else None, overwrite=False)


def of(context: Any, uuid: str, host: str, method: str | None = None) -> Lost:
    """Return the requests of a server's latest task that were lost on ``host``.

    :param method: restrict to the latest task that has begun this method. Nova begins a task only after the previous
        one has ended or is lost; but a start that clears a task state does not end another host's work
    """
    for action in tasks(context, uuid):
        events = [event for event in objects.InstanceActionEventList.get_by_action(context, action.id)
                  if event.event.startswith(PREFIX)]
        if method is None or method in methods(events):
            lost = methods(event for event in events if event.host == host and event.finish_time is None)
            ended = [event for event in events if event.finish_time]
            return Lost(action, lost, methods(events) - lost, methods(ended),
                        methods(event for event in ended if event.result == FAILED))
    return Lost(None, frozenset(), frozenset(), frozenset())


def tasks(context: Any, uuid: str) -> Iterator[objects.InstanceAction]:
    """Yield the server's actions that set a task state, latest first."""
    marker = None
    while page := objects.InstanceActionList.get_by_instance_uuid(context, uuid, limit=PAGE, marker=marker):
        yield from (action for action in page if action.action not in WITHOUT_TASK)
        marker = page[-1].request_id


def methods(events: Iterable[objects.InstanceActionEvent]) -> frozenset[str]:
    return frozenset(event.event.removeprefix(PREFIX) for event in events)
