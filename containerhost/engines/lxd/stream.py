# SPDX-License-Identifier: Apache-2.0
"""Open websockets to the daemon, for operations and for the event stream.

pylxd 2.4 has no timeout for its websockets, keeps the whole output of a command in memory, cannot kill a command,
and omits the project.

The protocol is the websockets package's, without its own input and output: those block in a way that holds up the whole
process where nova's threads are eventlet's (nova 33).
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self
from urllib import parse

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from containerhost import errors
from containerhost.engines.lxd.client import Settings
from containerhost.linux.poll import is_readable

CHUNK = 64 * 1024  # bytes
LARGEST = 1 << 20  # bytes; the largest message
DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Stream:
    """Manage one connection, open until :meth:`close`. One thread may send while another receives.

    :param path: below the daemon's address, e.g. ``/1.0/events``
    :param asked: its purpose, for errors
    :param send_timeout: seconds to wait for the other end to read; None waits as long as the connection lives
    :raises EngineUnavailable: no daemon
    :raises EngineError: the daemon refuses it
    """

    def __init__(self, settings: Settings, path: str, params: Mapping[str, str], asked: str,
                 send_timeout: float | None = None) -> None:
        self._asked = asked
        self._lock = threading.Lock()  # protects the protocol, and keeps the order of sent frames
        self._reading = threading.Lock()  # keeps the order of received messages
        self._frames: list[Frame] = []
        self._message = b""
        self._waiting = self._closed = False
        project = {"project": settings.project} if settings.project else {}
        resource = f"{path}?{parse.urlencode({**params, **project})}"
        with _translated(asked, settings.shown()):
            self._socket, uri = _connected(settings)
            try:
                self._protocol = ClientProtocol(parse_uri(uri + resource), max_size=LARGEST)
                self._shake_hands()
                self._socket.settimeout(send_timeout)
            except BaseException:
                self._socket.close()
                raise

    def _shake_hands(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
            self._take(self._socket.recv(CHUNK))
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)

    def _take(self, data: bytes) -> None:
        """Pass received bytes to the protocol; none mean the end."""
        with self._lock:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._frames += [frame for frame in self._protocol.events_received() if isinstance(frame, Frame)]
            with contextlib.suppress(OSError):  # the peer may have closed after its last frame
                self._flush()

    def send(self, data: bytes) -> None:
        """Send a message.

        :raises EngineUnavailable: the other end has closed, or does not read
        """
        self._send(lambda: self._protocol.send_binary(data))

    def end_of_input(self) -> None:
        """Signal the end of the input, which LXD reads from an empty text message."""
        with contextlib.suppress(errors.EngineUnavailable):  # the peer may have closed
            self._send(lambda: self._protocol.send_text(b""))

    def _send(self, step: Callable[[], None]) -> None:
        try:
            with self._lock:
                step()
                self._flush()
        except (InvalidState, OSError) as error:
            why = "does not read from" if isinstance(error, TimeoutError) else "has closed"
            raise errors.EngineUnavailable(f"{self._asked}: the daemon {why} the connection") from error

    def receive(self, timeout: float | None = None) -> bytes | None:
        """Return the next message; None at the end.

        :param timeout: seconds; None waits as long as the connection lives
        :raises EngineTimeout: no data arrived in time
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.opcode is Opcode.CLOSE:
                    return None
                if frame.opcode in DATA:
                    self._message += frame.data
                    if frame.fin:
                        message, self._message = self._message, b""
                        return message or None
            if not self._wait_for_more(end):
                return None

    def _wait_for_more(self, end: float | None) -> bool:
        """Wait until more can be read."""
        if not self._reading.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
            raise errors.EngineTimeout(f"{self._asked}: no data arrived in time")
        self._waiting = True
        try:
            if self._closed or self._protocol.close_rcvd is not None:
                return False
            if not self._is_readable(None if end is None else max(0.0, end - time.monotonic())):
                raise errors.EngineTimeout(f"{self._asked}: no data arrived in time")
            data = self._socket.recv(CHUNK)
            self._take(data)
            return bool(data) or bool(self._frames)
        except (OSError, ValueError, EOFError):
            return False  # the connection broke, or was closed here
        finally:
            self._waiting = False
            self._reading.release()
            if self._closed:
                self._socket.close()

    def _is_readable(self, timeout: float | None) -> bool:
        return (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0) or is_readable(self._socket,
                                                                                                       timeout)

    def end(self, timeout: float) -> None:
        """Close the protocol, and wait until the other end agrees.

        Messages that arrive until then are dropped, unless a thread receives them.

        :param timeout: maximum seconds to wait
        """
        limit = time.monotonic() + timeout
        with contextlib.suppress(errors.EngineError):
            self._send(self._protocol.send_close)
            while self._wait_for_more(limit):
                pass

    def await_hang_up(self, timeout: float) -> None:
        """Wait until the other end, which agreed to close, closes the connection.

        :param timeout: maximum seconds to wait
        """
        limit = time.monotonic() + timeout
        if self._reading.acquire(timeout=timeout):  # else a receiving thread holds the lock, and no more data arrives
            try:
                while self._is_readable(max(0.0, limit - time.monotonic())) and self._socket.recv(CHUNK):
                    pass
            except (OSError, ValueError):
                pass  # the connection broke, or is closed
            finally:
                self._reading.release()

    def abort(self) -> None:
        """Close the connection of a thread that waits in :meth:`send`."""
        with contextlib.suppress(OSError):  # the daemon has closed it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. A thread that waits in :meth:`receive` gets None and releases the socket.

        It would not wake (eventlet's do not) if the socket were closed under it."""
        self._closed = True
        with contextlib.suppress(errors.EngineUnavailable):
            self._send(self._protocol.send_close)
        self.abort()
        if not self._waiting:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _connected(settings: Settings) -> tuple[socket.socket, str]:
    """Return a connection to the daemon, and its address as websockets call it."""
    url = settings.url()
    if url.startswith("http+unix://"):
        local = socket.socket(socket.AF_UNIX)
        local.settimeout(settings.request_timeout)
        try:
            local.connect(settings.shown())
        except BaseException:
            local.close()
            raise
        return local, "ws://lxd"
    address = parse.urlsplit(url)
    plain = socket.create_connection((address.hostname or "", address.port or 443), settings.request_timeout)
    return _tls(settings).wrap_socket(plain, server_hostname=address.hostname), f"wss://{address.netloc}"


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
    except (InvalidHandshake, ssl.SSLError) as error:
        raise errors.EngineError(f"{asked}: {endpoint} does not open a stream: {error}") from error
    except (OSError, EOFError) as error:
        raise errors.EngineUnavailable(
            f"{asked}: cannot talk to {endpoint} ({error}); is the daemon running, and may this user reach it?"
        ) from error
