"""Keeps why a boot failed where it can be read when nova does not tell.

After a failure that concerns one host nova tries the next one, and when there is none left the server's fault says only
that (nova.conductor.manager: "Exhausted all hosts"). So every failed attempt leaves an event on the server's create
action with the host and its reason: ``openstack server event show``. As for all of nova's events, reading ``details``
takes microversion 2.84 and the policy ``os_compute_api:os-instance-actions:events:details``.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova import exception, objects

LOG = logging.getLogger(__name__)
EVENT = "lxd_spawn"


@contextlib.contextmanager
def kept(context: Any, instance: objects.Instance) -> Iterator[None]:
    """Record the error of the block; nothing is written when there is none."""
    try:
        yield
    except Exception as error:
        _record(context, instance, error)
        raise


def _record(context: Any, instance: objects.Instance, error: Exception) -> None:
    event = objects.InstanceActionEvent
    try:
        event.event_start(context, instance.uuid, EVENT, want_result=False, host=nova.conf.CONF.host)
        event.event_finish_with_failure(context, instance.uuid, EVENT, exc_val=error, exc_tb=error.__traceback__,
                                        want_result=False)
    except exception.NovaException as failure:
        # The server was deleted meanwhile, or the database is away: the boot's own error matters more.
        LOG.warning("The reason why server %s did not boot could not be kept (%s): %s", instance.uuid, failure, error)
