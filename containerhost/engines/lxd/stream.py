"""Websockets to the daemon: what an operation or the list of events sends and takes while it goes on."""

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib import parse

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import ClientConnection, connect, unix_connect

from containerhost import errors
from containerhost.engines.lxd.client import Settings

CLOSE_LIMIT = 1  # s the daemon has to say good-bye


class Stream:
    """One connection, open from its making to :meth:`close`. One thread may send while another receives.

    :param path: below the daemon's address, e.g. ``/1.0/events``
    :param asked: what it is for, as it stands in errors
    :raises EngineUnavailable: no daemon
    :raises EngineError: the daemon refuses it
    """

    def __init__(self, settings: Settings, path: str, params: Mapping[str, str], asked: str) -> None:
        self._asked = asked
        self._open = contextlib.ExitStack()
        project = {"project": settings.project} if settings.project else {}
        resource = f"{path}?{parse.urlencode({**params, **project})}"
        with _translated(asked, settings.shown()):
            self._connection: ClientConnection = self._open.enter_context(_connecting(settings, resource))

    def send(self, data: bytes) -> None:
        """:raises EngineUnavailable: the other end has closed"""
        try:
            self._connection.send(data)
        except ConnectionClosed as error:
            raise errors.EngineUnavailable(f"{self._asked}: the daemon has closed the connection") from error

    def end_of_input(self) -> None:
        """Tell that no more will be sent; LXD reads an empty text as such."""
        with contextlib.suppress(ConnectionClosed):  # who has ended already needs no telling
            self._connection.send("")

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The next message; None at the end.

        :param timeout: seconds; None waits as long as the connection lives
        :raises EngineTimeout: nothing came in time
        """
        try:
            message = self._connection.recv(timeout)
        except ConnectionClosed:
            return None
        except TimeoutError as error:
            raise errors.EngineTimeout(f"{self._asked}: nothing came within {timeout:g} s") from error
        data = message.encode() if isinstance(message, str) else bytes(message)
        return data or None

    def close(self) -> None:
        """A thread that waits in :meth:`receive` gets None."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _connecting(settings: Settings, resource: str) -> Any:
    limits: dict[str, Any] = {
        "open_timeout": settings.request_timeout, "close_timeout": CLOSE_LIMIT, "compression": None,
        "ping_interval": None}  # the daemon itself looks whether its clients are alive
    url = settings.url()
    if not url.startswith("http+unix://"):
        return connect(f"wss://{url.removeprefix('https://')}{resource}", ssl=_tls(settings), proxy=None, **limits)
    return unix_connect(settings.shown(), f"ws://lxd{resource}", **limits)


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.server_cert)
    if settings.cert:
        context.load_cert_chain(settings.cert, settings.key)
    return context


@contextlib.contextmanager
def _translated(asked: str, endpoint: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise errors.EngineTimeout(f"{asked}: no answer from {endpoint} in time") from error
    except (InvalidHandshake, InvalidURI, ssl.SSLError) as error:
        raise errors.EngineError(f"{asked}: {endpoint} does not open a stream: {error}") from error
    except (OSError, EOFError) as error:
        raise errors.EngineUnavailable(
            f"{asked}: cannot talk to {endpoint} ({error}); is the daemon running, and may this user reach it?"
        ) from error
