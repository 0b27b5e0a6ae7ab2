# SPDX-License-Identifier: Apache-2.0
"""Record the reason of a failure where users can read it if nova does not report it.

After a boot fails on one host nova tries the next one; the server's fault has the reason of at most one host, and
none if the others have no room (nova.conductor.manager: "Exhausted all hosts"). A resize whose claim fails records
no reason. For a port that cannot be attached or detached nova reports no reason (nova.compute.manager:
InterfaceAttachFailed). So every failed attempt leaves an event on the server's action with the host and its reason:
``openstack server event show``. As for all of nova's events, reading ``details`` takes microversion 2.84 and the
policy ``os_compute_api:os-instance-actions:events:details``.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import nova.conf
import oslo_messaging as messaging
from nova import exception, objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)
CLAIM, SPAWN, ATTACH, DETACH, LIVE_MIGRATION = (
    "lxd_claim", "lxd_spawn", "lxd_attach_interface", "lxd_detach_interface", "lxd_live_migration")


@contextlib.contextmanager
def record_failure(context: Any, instance: objects.Instance, event: str) -> Iterator[None]:
    """Record the error of the block, if there is one.

    :param event: name of the block in nova's list of the server's events
    """
    try:
        yield
    except Exception as error:
        _record(context, instance, event, error)
        raise


def _record(context: Any, instance: objects.Instance, name: str, error: Exception) -> None:
    event = objects.InstanceActionEvent
    try:
        event.event_start(context, instance.uuid, name, want_result=False, host=nova.conf.CONF.host)
        event.event_finish_with_failure(context, instance.uuid, name, exc_val=error, exc_tb=error.__traceback__,
                                        want_result=False)
    except (exception.NovaException, messaging.MessagingException) as failure:
        # The server was deleted meanwhile, or the conductor is unavailable: report the original error.
        LOG.warning("The reason of %s's failure could not be kept (%s): %s", name, failure, error, instance=instance)
