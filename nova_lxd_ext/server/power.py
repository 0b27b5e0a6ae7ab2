# SPDX-License-Identifier: Apache-2.0
"""Start, stop, reboot and freeze a server's container."""

import functools
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from nova import objects
from nova.compute import task_states
from nova.compute import utils as compute_utils
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import Engine, Status
from containerhost.inventory.scan import HostView
from nova_lxd_ext.host import startup
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server.attachments import DeviceAttachments

LOG = logging.getLogger(__name__)
P = ParamSpec("P")


def outlasting_restart(action: Callable[Concatenate["Power", P], None]) -> Callable[Concatenate["Power", P], None]:
    """Decorate an action to wait for the daemon if it restarts during the action, and repeat the action once.

    Every action here is idempotent. ``[lxd] ready_timeout`` limits the wait.
    """

    @functools.wraps(action)
    def wrapper(self: "Power", *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            action(self, *args, **kwargs)
        except errors.EngineUnavailable as error:
            LOG.warning("The daemon stopped during %s: %s", action.__name__, error)
            self.await_engine()
            action(self, *args, **kwargs)
    return wrapper


class Power:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States, attachments: DeviceAttachments,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._attachments = attachments
        self._clock = clock

    def await_engine(self) -> None:
        """Wait until the engine responds.

        :raises EngineUnavailable: it does not respond within ``[lxd] ready_timeout``
        """
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)

    @outlasting_restart
    def on(self, instance: objects.Instance, requested: RequestedResources, view: HostView | None = None) -> None:
        """Start the container with its server's requested parts. Idempotent.

        While it was off the host may have restarted and renamed nodes and interfaces, or lost a device: so the
        container's configuration is updated first."""
        state = self._states.require(instance)
        # Before it runs: a failed migration may have left INCOMING, and a migration in progress needs OUTGOING.
        left = () if instance.task_state == task_states.MIGRATING else (labels.OUTGOING,)
        self._states.relabel(state, dict.fromkeys((labels.INCOMING, *left)))
        if state.status is Status.FROZEN:
            self._attachments.resume(instance)
            self._engine.unfreeze(instance.name)
        elif state.status is not Status.RUNNING:
            parts = self._attachments.update_devices(instance, requested, view or self._attachments.view())
            self._attachments.start(instance, parts)
        self._states.changed()

    @outlasting_restart
    def off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        """Stop the container. A missing one counts as stopped, because a rebuild begins with this.

        :param timeout: seconds for the guest to shut down before it is killed; 0 kills it immediately
        :param retry_interval: seconds after which the request to a running guest is repeated; 0 sends it once
        """
        state = self._states.find(instance)
        if state is None:
            return
        if state.status is not Status.STOPPED:
            if state.status is Status.FROZEN or not self._shut_down(instance, timeout, retry_interval):
                self._engine.stop(instance.name, timeout=self._conf.lxd.stop_timeout, force=True)
            self._states.changed()
        self._attachments.stopped(instance)

    def _shut_down(self, instance: objects.Instance, timeout: int, retry_interval: int) -> bool:
        """Request a shutdown of the guest, wait for it, and return whether it has shut down."""
        end = self._clock() + timeout
        while (left := int(end - self._clock())) > 0:
            try:
                self._engine.stop(instance.name, timeout=min(retry_interval or left, left))
                return True
            except errors.EngineTimeout:
                LOG.debug("The server is still running, %d s before it is killed", left, instance=instance)
        if timeout:
            LOG.warning("The server did not shut down within %d s and is killed", timeout, instance=instance)
        return False

    def reboot(self, instance: objects.Instance, requested: RequestedResources, soft: bool) -> None:
        """Reboot the server with updated devices.

        Soft: the guest may shut down within the time that nova allows at a stop (the image's
        ``os_shutdown_timeout``, otherwise ``[DEFAULT] shutdown_timeout``), then it is killed as in a hard reboot.
        Hard: it is killed immediately, and sick GPUs are reset.

        :raises DeviceNotFound, DeviceUnhealthy: it could not start after a soft reboot; it keeps running
        """
        if soft:
            self._attachments.require_possible(instance, requested, self._attachments.view())
        allowed = compute_utils.get_value_from_system_metadata(instance, "image_os_shutdown_timeout", int,
                                                               self._conf.shutdown_timeout)
        self.off(instance, timeout=allowed if soft else 0, retry_interval=self._conf.compute.shutdown_retry_interval)
        view = self._attachments.view()  # scan again: a guest may take minutes to shut down
        if not soft:
            self._attachments.reset_devices(instance, view)
        self.on(instance, requested, view)

    @outlasting_restart
    def freeze(self, instance: objects.Instance) -> None:
        self._states.require(instance)
        self._engine.freeze(instance.name)
        self._attachments.pause(instance)
        self._states.changed()

    @outlasting_restart
    def unfreeze(self, instance: objects.Instance) -> None:
        self._states.require(instance)
        self._attachments.resume(instance)
        self._engine.unfreeze(instance.name)
        self._states.changed()
