# SPDX-License-Identifier: Apache-2.0
"""Streams to a websocket server of another make."""

import contextlib
import fcntl
import functools
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fixtures
import testtools
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.sync.server import ServerConnection, unix_serve

from containerhost import errors
from containerhost.engines import consolebridge
from containerhost.engines.lxd import stream
from containerhost.engines.lxd.client import Settings
from containerhost.engines.lxd.stream import Stream

TIMEOUT = 30  # s


class StreamTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = str(Path(self.useFixture(fixtures.TempDir()).path) / "unix.socket")
        self.seen: list[object] = []
        server = unix_serve(self.serve, self.path, compression=None)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        self.addCleanup(serving.join)
        self.addCleanup(server.shutdown)

    def serve(self, connection: ServerConnection) -> None:
        """Say what is heard in capital letters; "pieces" and "large" are answered otherwise, an empty text ends."""
        self.seen.append(connection.request.path)
        for message in connection:
            self.seen.append(message)
            if message == "":
                return
            if message == b"pieces":
                connection.send([b"one ", b"two ", b"three"])
            elif message == b"endless":
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        connection.send(b"more")
            elif message == b"large":
                connection.send(b"x" * 500_000)
            else:
                connection.send(message.upper())

    def stream(self, **settings: object) -> Stream:
        made = Stream(Settings(endpoint=self.path, **settings), "/1.0/events", {"type": "a b"}, "try it")
        self.addCleanup(made.close)
        return made

    def test_messages_both_ways(self) -> None:
        stream = self.stream()
        for said, answer in ((b"hello", b"HELLO"), (b"pieces", b"one two three"), (b"large", b"x" * 500_000)):
            stream.send(said)
            self.assertEqual(answer, stream.receive(TIMEOUT))
        self.assertEqual("/1.0/events?type=a+b", self.seen[0])

    def test_the_project_is_named(self) -> None:
        stream = self.stream(project="lab")
        stream.send(b"x")
        stream.receive(TIMEOUT)
        self.assertIn("project=lab", self.seen[0])

    def test_nothing_in_time(self) -> None:
        stream = self.stream()
        self.assertRaises(errors.EngineTimeout, stream.receive, 0.01)
        stream.send(b"still there")
        self.assertEqual(b"STILL THERE", stream.receive(TIMEOUT))

    def test_the_end_of_either_side_is_an_end(self) -> None:
        stream = self.stream()
        stream.end_of_input()
        self.assertIsNone(stream.receive(TIMEOUT))
        self.assertIsNone(stream.receive(TIMEOUT))
        self.assertEqual("", self.seen[-1])
        self.assertRaises(errors.EngineUnavailable, stream.send, b"too late")

    def test_closing_wakes_who_waits(self) -> None:
        stream, got = self.stream(), []
        waiting = threading.Thread(target=lambda: got.append(stream.receive()))
        waiting.start()
        stream.close()
        waiting.join(TIMEOUT)
        self.assertEqual([None], got)
        stream.close()

    def test_an_end_that_both_agree_to(self) -> None:
        for receives in (False, True):
            with self.subTest(receives):
                stream, got = self.stream(), []
                stream.send(b"endless")
                waiting = threading.Thread(target=lambda: got.extend(iter(stream.receive, None)))  # noqa: B023
                if receives:
                    waiting.start()
                begin = time.monotonic()
                stream.end(TIMEOUT)
                stream.await_hang_up(TIMEOUT)
                self.assertLess(time.monotonic() - begin, TIMEOUT / 2)
                self.assertRaises(errors.EngineUnavailable, stream.send, b"too late")
                if receives:
                    waiting.join(TIMEOUT)
                    self.assertFalse(waiting.is_alive())

    def test_a_process_with_thousands_of_open_files(self) -> None:
        """select(2) takes no number above 1023."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), max(limits[1], 2048)))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with mock.patch.object(stream, "_connected", side_effect=self.connected_late):
            made = self.stream()
        made.send(b"hello")
        self.assertEqual(b"HELLO", made.receive(TIMEOUT))

    @staticmethod
    def connected_late(settings: Settings) -> tuple[socket.socket, str]:
        with socket.socket(socket.AF_UNIX) as early:
            early.connect(settings.shown())
            return socket.socket(fileno=fcntl.fcntl(early, fcntl.F_DUPFD_CLOEXEC, 1024)), "ws://lxd"

    def listening(self, serve: Callable[[socket.socket], None], **options: object) -> Stream:
        """Return a stream to a server of one connection."""
        path = f"{self.path}.one"
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            self.addCleanup(connection.close)
            serve(connection)

        answering = threading.Thread(target=answer)
        answering.start()
        self.addCleanup(answering.join)
        stream = Stream(Settings(endpoint=path), "/", {}, "try it", **options)
        self.addCleanup(stream.close)
        return stream

    def test_an_end_that_the_other_does_not_answer(self) -> None:
        for receives in (False, True):
            with self.subTest(receives):
                stream = self.listening(lambda connection: connection.sendall(said(shaken_hands(connection))))
                waiting = threading.Thread(target=stream.receive, daemon=True)
                if receives:
                    waiting.start()
                begin = time.monotonic()
                ending = threading.Thread(target=lambda: (stream.end(0.1), stream.await_hang_up(0.1)),  # noqa: B023
                                          daemon=True)
                ending.start()
                ending.join(TIMEOUT / 2)
                self.assertFalse(ending.is_alive())
                self.assertTrue(0.2 <= time.monotonic() - begin < TIMEOUT / 2)
                self.assertRaises(errors.EngineUnavailable, stream.send, b"too late")
                Path(f"{self.path}.one").unlink()

    def test_a_console_that_its_guest_does_not_read(self) -> None:
        """A client that hangs up meanwhile would never be noticed."""
        made = self.listening(lambda connection: connection.sendall(said(shaken_hands(connection))), send_timeout=0.5)
        client, ours = socket.socketpair()
        bridging = threading.Thread(target=consolebridge.bridge, args=(ours, made), daemon=True)
        bridging.start()
        client.settimeout(1)
        with client, contextlib.suppress(OSError):
            client.sendall(bytes(8 << 20))
        bridging.join(TIMEOUT / 2)
        ended = not bridging.is_alive()
        made.abort()
        self.assertTrue(ended)

    def test_who_hangs_up_after_the_last_message(self) -> None:
        """A daemon does so whose command ends at once."""
        def serve(connection: socket.socket, opened: threading.Event | None) -> None:
            protocol = shaken_hands(connection)
            if opened:
                connection.sendall(said(protocol))
                opened.wait(TIMEOUT)
            protocol.send_binary(b"all")
            protocol.send_close()
            connection.shutdown(socket.SHUT_RD)  # the reply has no receiver
            connection.sendall(said(protocol))

        for opened in (None, threading.Event()):  # with the handshake, and after it
            with self.subTest(opened):
                stream = self.listening(functools.partial(serve, opened=opened))
                if opened:
                    opened.set()
                self.assertEqual([b"all", None], [stream.receive(TIMEOUT), stream.receive(TIMEOUT)])
                Path(f"{self.path}.one").unlink()

    def test_who_does_not_answer_as_a_daemon(self) -> None:
        self.assertRaises(errors.EngineUnavailable, Stream, Settings(endpoint="/nonexistent"), "/", {}, "try it")


def shaken_hands(connection: socket.socket) -> ServerProtocol:
    """Return the protocol of a server that has accepted, and has not said so yet."""
    protocol = ServerProtocol()
    protocol.receive_data(connection.recv(1 << 16))
    (request,) = protocol.events_received()
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    return protocol


def said(protocol: ServerProtocol) -> bytes:
    return b"".join(protocol.data_to_send())
