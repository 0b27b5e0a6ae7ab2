# SPDX-License-Identifier: Apache-2.0
import os
import socket
import threading

import fixtures
import requests
import testtools
import urllib3.exceptions

from containerhost import errors
from containerhost.engines.lxd import client
from containerhost.engines.lxd.client import LxdClient, Settings


class TestRefusals(testtools.TestCase):
    def test_every_answer_has_its_error(self):
        for status, text, expected in (
            (404, "anything", errors.EngineNotFound),
            (409, "anything", errors.EngineConflict),
            (412, "ETag doesn't match", errors.EngineChanged),
            (503, "anything", errors.EngineUnavailable),
            (500, "write /x: no space left on device", errors.StorageFull),
            (400, "Failed to run: tar: Disk quota exceeded", errors.StorageFull),
            (400, "Image not found", errors.EngineNotFound),
            (500, "Image not provided for instance creation", errors.EngineNotFound),
            (400, "Failed loading: Storage pool not found", errors.EngineNotFound),
            (400, 'Failed to run: forkstart: "sh" not found: exit status 1', errors.EngineError),
            (400, "Instance is busy running a \"stop\" operation", errors.EngineBusy),
            (500, "Failed to create instance update operation: A matching non-reusable operation has now succeeded",
             errors.EngineBusy),
            (400, "Image with same fingerprint already exists", errors.EngineConflict),
            (500, "UNIQUE constraint failed: instances.name", errors.EngineConflict),
            (400, "shutting down the container failed", errors.EngineError),
            (500, "LXD is shutting down", errors.EngineUnavailable),
            (400, "context deadline exceeded", errors.EngineTimeout),
            (400, "Invalid device option", errors.EngineError),
            (403, "not authorized", errors.EngineError),
        ):
            error = client.error_for("start container c1", status, text)
            self.assertIs(expected, type(error), text)
            self.assertIn("start container c1", str(error))
            self.assertIn(text, str(error))

    def test_failures_of_the_connection(self):
        read = urllib3.exceptions.ReadTimeoutError(None, "/", "Read timed out.")
        for raised, expected in (
            (requests.ConnectionError("refused"), errors.EngineUnavailable),
            (requests.ReadTimeout("slow"), errors.EngineTimeout),
            (requests.ConnectTimeout("slow"), errors.EngineTimeout),
            (requests.ConnectionError(read), errors.EngineTimeout),
            (requests.exceptions.SSLError("not the pinned certificate"), errors.EngineUnavailable),
            (requests.exceptions.ChunkedEncodingError("cut"), errors.EngineUnavailable),
            (requests.exceptions.ContentDecodingError("garbled"), errors.EngineError),
            (ValueError("no certificate"), errors.EngineError),
            (PermissionError("s"), errors.EngineError),
        ):
            error = self.assertRaises(errors.EngineError, self._failing, raised)
            self.assertIs(expected, type(error), raised)
            self.assertIn("asked", str(error))

    @staticmethod
    def _failing(error):
        with client.translated("asked", "where"):
            raise error


class TestSettings(testtools.TestCase):
    def test_urls(self):
        for endpoint, expected in (
            ("/run/lxd.socket", "http+unix://%2Frun%2Flxd.socket"),
            ("https://[::1]:8443/", "https://[::1]:8443"),
        ):
            self.assertEqual(expected, Settings(endpoint=endpoint).url())

    def test_the_environment_names_the_socket(self):
        directory = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.EnvironmentVariable("LXD_DIR", directory))
        path = os.path.join(directory, "unix.socket")
        open(path, "w").close()
        self.assertEqual(path, client.usual_socket())


class TestBrokenDaemons(testtools.TestCase):
    """Test a socket whose other side is no LXD, or one that breaks off."""

    def _client(self, answer):
        """:param answer: bytes sent to each connection, which is then closed"""
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, "s")
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen()

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return LxdClient(Settings(endpoint=path, request_timeout=2))

    def test_an_answer_that_is_json_but_no_object(self):
        for body in (b"[]", b"5", b"null", b'"text"', b'{"type": "sync"}'):
            answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            error = self.assertRaises(errors.EngineError, self._client(answer).server)
            self.assertIn("read the server's description: ", str(error))

    def test_hangs_up(self):
        self.assertRaises(errors.EngineUnavailable, self._client(b"").server)

    def test_breaks_off_in_the_middle(self):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"
        self.assertRaises(errors.EngineError, self._client(answer).server)

    def test_is_something_else(self):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
        self.assertRaises(errors.EngineError, self._client(answer).server)

    def test_does_not_know_the_api(self):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        self.assertRaises(errors.EngineError, self._client(answer).server)

    def test_an_answer_that_is_no_success(self):
        for body in (b'{"error": "no such thing", "error_code": 404, "type": "error"}', b"no such thing"):
            answer = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            error = self.assertRaises(errors.EngineNotFound, self._client(answer).server)
            self.assertEqual("read the server's description: LXD says: no such thing", str(error))

    def test_end_of_an_operation_told_as_incus_does(self):
        """With HTTP status 200, also where the container is not found: the operation itself is known."""
        for code, text, expected in ((500, "The instance is already running", errors.EngineError),
                                     (404, "Instance not found", errors.EngineNotFound)):
            body = b'{"type":"error","error_code":%d,"error":"%s","metadata":null}' % (code, text.encode())
            answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            error = self.assertRaises(errors.EngineError, self._client(answer).wait, {"id": "1"}, "start container c1")
            self.assertEqual((expected, f"start container c1: LXD says: {text}"), (type(error), str(error)))


class TestSessions(testtools.TestCase):
    def test_a_certificate_that_is_none_is_an_error(self):
        file = os.path.join(self.useFixture(fixtures.TempDir()).path, "server.crt")
        settings = Settings(endpoint="https://127.0.0.1:1", server_cert=file)
        self.assertRaises(errors.EngineError, LxdClient(settings).server)
        with open(file, "w") as stream:
            stream.write("nothing")
        error = self.assertRaises(errors.EngineError, LxdClient(settings).server)
        self.assertIn(f"{file}: Unable to load PEM file", str(error))
