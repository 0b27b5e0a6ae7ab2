# SPDX-License-Identifier: Apache-2.0
"""Servers that send a byte now and then, and images that take all memory."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from unittest import mock

from onedock.datastore import limits
from onedock.datastore.limits import TooSlow
from tests.unit.onedock.datastore.base import DatastoreTestCase

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"
POLL_INTERVAL, LIMIT = 0.02, 0.5  # seconds
LATE = 20  # seconds; no limit by then


class SlowServer:
    """Send what comes at once, then a byte now and then, for ever."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.sendall(self._first)
                end = time.monotonic() + LATE
                while time.monotonic() < end and not self._over.wait(POLL_INTERVAL):
                    connection.sendall(b"x")

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


class TimeTest(DatastoreTestCase):
    @contextlib.contextmanager
    def slow(self, first: bytes) -> Iterator[str]:
        with contextlib.closing(SlowServer(first)) as server, mock.patch.multiple(
                limits, TRANSFER=LIMIT, DESCRIPTIONS=LIMIT):
            yield server.host

    def assert_ended(self, action: str, first: bytes, scheme: str, **image: str) -> None:
        begin = time.monotonic()
        with self.slow(first) as host:
            error = self.assertRaises(TooSlow, self.act, action, {"PATH": f"{scheme}{host}/x", **image},
                                      ONEDOCK_PLAIN_HOSTS=host)
        self.assertLess(time.monotonic() - begin, LATE / 2)
        for words in (f"{scheme}{host}/x was not fetched completely", "within 0.5 seconds", "SAFE_DIRS"):
            self.assertIn(words, str(error))
        self.assertEqual([], self.left() if self.base.exists() else [])

    def test_a_slow_file_is_given_up(self) -> None:
        self.assert_ended("cp", HEADERS, "http://", TYPE="2")
        self.assert_ended("cp", HEADERS, "http://")

    def test_so_are_slow_descriptions(self) -> None:
        for action in ("cp", "stat"):
            self.assert_ended(action, HEADERS, "docker://")

    def test_so_are_slow_headers(self) -> None:
        for action in ("cp", "stat"):
            self.assert_ended(action, b"HTTP/1.1 200 OK\r\nX: ", "http://")

    def test_what_is_in_time_goes_on(self) -> None:
        with limits.within(0.05, "x"):
            pass
        time.sleep(0.1)
