# SPDX-License-Identifier: Apache-2.0
"""Connect the drivers of different compute hosts over nova's own message bus.

A server must be on its new host before nova records that it left the old one: nova cannot undo a move whose second
half fails. So the old host's driver asks the new host's to fetch the container, and waits. A client with access to
the bus controls every compute host anyway, so the bus may carry a transfer's one-time secrets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import oslo_messaging as messaging
from nova import exception, objects, rpc
from nova.objects import base
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors

LOG = logging.getLogger(__name__)

TOPIC = "lxd-peers"
VERSION = "1.2"  # 1.1: receive_disk; 1.2: receive_changes
BASE_VERSION = "1.1"  # version of older requests: another host may have the previous release


class Receiver(Protocol):
    """Handle requests of drivers on other hosts."""

    def receive(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None: ...

    def receive_changes(self, context: Any, instance: objects.Instance, offer: dict[str, Any], last: bool) -> bool: ...

    def receive_disk(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None: ...

    def forget(self, context: Any, instance: objects.Instance) -> None: ...


class Endpoint:
    """Receive requests of other hosts from the message bus, and return failures as nova's classes."""

    target = messaging.Target(version=VERSION)

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    @messaging.expected_exceptions(exception.NovaException)
    def receive(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        with serializable():
            self._receiver.receive(context, instance, offer)

    @messaging.expected_exceptions(exception.NovaException)
    def receive_changes(self, context: Any, instance: objects.Instance, offer: dict[str, Any], last: bool) -> bool:
        with serializable():
            return self._receiver.receive_changes(context, instance, offer, last)

    @messaging.expected_exceptions(exception.NovaException)
    def receive_disk(self, context: Any, instance: objects.Instance, offer: dict[str, Any]) -> None:
        with serializable():
            self._receiver.receive_disk(context, instance, offer)

    def forget(self, context: Any, instance: objects.Instance) -> None:
        self._receiver.forget(context, instance)


class Peers:
    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._server: Any = None

    def listen(self, host: str, receiver: Receiver) -> None:
        """Start answering the other hosts' drivers."""
        self.close()
        target = messaging.Target(topic=TOPIC, server=host)
        self._server = rpc.get_server(target, [Endpoint(receiver)], base.NovaObjectSerializer())
        self._server.start()

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server.wait()
            self._server = None

    def fetch(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        """Make ``host`` fetch the server's container, and wait until it exists there.

        :raises MigrationError: it failed, or does not answer
        """
        self._ask(context, host, "receive", instance, offer=offer)

    def fetch_changes(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any], last: bool
                      ) -> bool:
        """Make ``host`` fetch the changes of the server's container that it does not have, and wait.

        :param last: no further changes follow; only a host of an earlier release reads this
        :returns: whether it did; otherwise it cannot, and has nothing
        """
        try:
            return bool(self._ask(context, host, "receive_changes", instance, VERSION, offer=offer, last=last))
        except exception.MigrationError as error:
            cause = error.__cause__  # from a host with the previous release
            if (isinstance(cause, messaging.UnsupportedVersion)
                    or (isinstance(cause, messaging.RemoteError) and cause.exc_type == "UnsupportedVersion")):
                return False
            raise

    def fetch_disk(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        """Make ``host`` fetch one of the server's ephemeral disks, after its container."""
        self._ask(context, host, "receive_disk", instance, offer=offer)

    def _ask(self, context: Any, host: str, method: str, instance: objects.Instance, version: str = BASE_VERSION,
             **arguments: Any) -> Any:
        try:
            return self._client(host, version).call(context, method, instance=instance, **arguments)
        except messaging.MessagingException as error:
            raise exception.MigrationError(
                reason=f"nova-compute on {host} did not answer ({type(error).__name__}: {error}); is it the same "
                       f"driver, and does it run?") from error

    def forget(self, context: Any, host: str, instance: objects.Instance) -> None:
        """Make ``host`` remove what it fetched for a failed move, as soon as it can, without waiting."""
        self._client(host).cast(context, "forget", instance=instance)

    def _client(self, host: str, version: str = BASE_VERSION) -> Any:
        """Return a client of another host, whose heartbeats detect early that it has ended."""
        client = rpc.get_client(messaging.Target(topic=TOPIC, version=VERSION), VERSION, base.NovaObjectSerializer())
        return client.prepare(server=host, version=version, timeout=self._conf.lxd.migration_timeout,
                              call_monitor_timeout=self._conf.rpc_response_timeout)


@contextmanager
def serializable() -> Iterator[None]:
    """Convert errors that only this process defines to ones that the calling host's process knows."""
    try:
        yield
    except (errors.ContainerHostError, OSError) as error:
        raise exception.MigrationError(reason=str(error)) from error
