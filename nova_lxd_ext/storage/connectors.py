# SPDX-License-Identifier: Apache-2.0
"""Connect volumes on the host by os-brick, with errors and timeouts in one place.

os-brick's root actions use its own oslo.privsep context (``[privsep_osbrick]``); a nova-compute that runs as root
performs them itself.
"""

import logging
import os
import stat
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, TypeVar

import os_brick.privileged
from nova import exception, utils
from os_brick import exception as brick
from os_brick.initiator import connector
from oslo_concurrency import processutils
from oslo_config import cfg

from containerhost.linux.process.timelimit import StillRunning, within
from containerhost.rollback import Rollback

LOG = logging.getLogger(__name__)

R = TypeVar("R")

# Exceptions that os-brick's connectors raise.
FAILURES = (brick.BrickException, processutils.ProcessExecutionError, OSError, ValueError, KeyError)


class BackendError(exception.NovaException):
    """Signal a failure of a volume's backend, or of the host's connection to it."""

    msg_fmt = "%(reason)s"


class Connectors:
    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._running: dict[str, futures.Future[Any]] = {}  # by volume: calls that exceeded their time limit
        if os.geteuid() == 0:
            for context in (os_brick.privileged.default, os_brick.privileged.brick_privsep_hide_output):
                context.set_client_mode(False)

    def properties(self) -> dict[str, Any]:
        """Return the connector properties of this host for Cinder (iSCSI initiator, addresses…).

        :raises BackendError:
        """
        options = self._conf.libvirt
        return self._limited("Reading how this host connects volumes", lambda: connector.get_connector_properties(
            utils.get_root_helper(), self._conf.my_block_storage_ip, options.volume_use_multipath,
            enforce_multipath=True, host=self._conf.host))

    def connect(self, volume: str, kind: str, data: Mapping[str, Any],
                too_late: Callable[[Mapping[str, Any]], Any]) -> Mapping[str, Any]:
        """Connect a volume. Idempotent.

        :param too_late: called in another thread with os-brick's result of a connection made after the time limit
        :returns: os-brick's result: ``path`` is its node on the host
        :raises VolumeAttachFailed: it cannot be connected, or not in time
        """
        what = f"Connecting it to host {self._conf.host} ({kind})"
        try:
            device = self._limited(what, lambda: self._connector(kind).connect_volume(dict(data)), volume, too_late)
            with Rollback(f"connecting volume {volume}") as undo:
                undo.on_error("disconnect it", self.disconnect, volume, kind, data, device, force=True)
                require_block_device(device["path"])
        except (BackendError, *FAILURES) as error:
            raise exception.VolumeAttachFailed(volume_id=volume, reason=str(error)) from error
        return device

    def disconnect(self, volume: str, kind: str, data: Mapping[str, Any], device: Mapping[str, Any] | None,
                   force: bool = False) -> None:
        """Disconnect a volume. Idempotent.

        :param device: the result of :meth:`connect`; None if there is none
        :param force: discard unwritten data instead of failing
        :raises BackendError:
        """
        self._limited(f"Disconnecting volume {volume} ({kind})", lambda: self._connector(kind).disconnect_volume(
            dict(data), dict(device) if device else None, force=force), volume)

    def extend(self, volume: str, kind: str, data: Mapping[str, Any]) -> int | None:
        """Update the host's view of a connected volume's size.

        :returns: its size in bytes; None if the backend does not report it
        :raises BackendError:
        """
        return self._limited(f"Extending volume {volume} ({kind})",
                             lambda: self._connector(kind).extend_volume(dict(data)), volume)

    def _connector(self, kind: str) -> Any:
        options = self._conf.libvirt
        return connector.InitiatorConnector.factory(
            kind, utils.get_root_helper(), use_multipath=options.volume_use_multipath,
            device_scan_attempts=options.num_volume_scan_tries, transport=options.iscsi_iface or "default",
            enforce_multipath=options.volume_enforce_multipath,
            do_local_attach=True)  # rbd: map a block device instead of returning a file object

    def _limited(self, what: str, function: Callable[[], R], volume: str | None = None,
                 too_late: Callable[[R], Any] | None = None) -> R:
        """Call ``function`` with the time limit, after any earlier call for the same volume."""
        timeout = self._conf.lxd.volume_timeout
        try:
            self._await_earlier(volume, timeout)
            return within(timeout, what, function)
        except StillRunning as error:
            error.call.add_done_callback(lambda call: _late(call, what, too_late))
            if volume is not None:
                self._running[volume] = error.call
            raise BackendError(reason=f"{what}: {error}") from error
        except FAILURES as error:
            raise BackendError(reason=f"{what}: {error}") from error

    def _await_earlier(self, volume: str | None, timeout: float) -> None:
        call = self._running.get(volume or "")
        if call is not None and not futures.wait([call], timeout).done:
            raise TimeoutError("an earlier call for this volume, which timed out, is still running: repair the "
                               "backend, or restart nova-compute, then try again")
        self._running.pop(volume or "", None)


def _late(call: futures.Future[R], what: str, too_late: Callable[[R], Any] | None) -> None:
    if call.exception() is not None:
        LOG.warning("%s: failed after its timeout: %s", what, call.exception())
    elif too_late is not None:
        LOG.warning("%s: completed after its timeout", what)
        too_late(call.result())


def require_block_device(path: str) -> None:
    """Refuse a connection that is not a block device.

    :raises ValueError: the backend created something else, or nothing
    """
    if not stat.S_ISBLK(os.stat(path).st_mode):
        raise ValueError(f"{path} is not a block device")
