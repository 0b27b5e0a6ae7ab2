# SPDX-License-Identifier: Apache-2.0
import os
import socket
import threading

import docker.errors
import fixtures
import requests
import testtools

from containerhost import errors
from containerhost.engines.docker import error_map, sdk
from containerhost.engines.docker.client import DockerClient, Settings


class RefusalsTest(testtools.TestCase):
    def test_every_answer_has_its_error(self):
        for status, text, expected in (
            (404, "No such container: c1", errors.EngineNotFound),
            (404, "No such image: x:latest", errors.EngineNotFound),
            (409, "The container name \"/c1\" is already in use", errors.EngineConflict),
            (409, "removal of container c1 is already in progress", errors.EngineBusy),
            (500, "write /x: no space left on device", errors.StorageFull),
            (500, "context deadline exceeded", errors.EngineTimeout),
            (503, "", errors.EngineUnavailable),
            (400, "Invalid container name", errors.EngineError),
            (500, "OCI runtime create failed", errors.EngineError),
        ):
            error = error_map.error_for("start container c1", status, text)
            self.assertIs(expected, type(error), text)
            self.assertIn("start container c1", str(error))

    def test_every_failure_of_a_request_has_its_error(self):
        response = requests.Response()
        response.status_code = 404
        for failure, expected in (
            (docker.errors.APIError("x", response, "No such container"), errors.EngineNotFound),
            (requests.ReadTimeout("x"), errors.EngineTimeout),
            (requests.ConnectionError(TimeoutError()), errors.EngineTimeout),
            (requests.ConnectionError("refused"), errors.EngineUnavailable),
            (docker.errors.DockerException("Error while fetching server API version"), errors.EngineUnavailable),
            (ConnectionResetError(), errors.EngineUnavailable),
            (ValueError("no JSON"), errors.EngineError),
        ):
            error = self.assertRaises(expected, self._fail, failure)
            self.assertIs(expected, type(error))

    def _fail(self, failure):
        with sdk.translated("ask", "unix:///s"):
            raise failure


class ClientTest(testtools.TestCase):
    def test_nobody_there_and_nobody_answers(self):
        directory = self.useFixture(fixtures.TempDir()).path
        path = os.path.join(directory, "s")
        settings = Settings(f"unix://{path}", request_timeout=1)
        self.assertRaises(errors.EngineUnavailable, DockerClient(settings).containers)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(path)
            deaf.listen()
            self.assertRaises(errors.EngineTimeout, DockerClient(settings).containers)

    def test_what_is_no_answer(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, "s")
        for answer, expected in (
            (b"", errors.EngineUnavailable),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n[", errors.EngineUnavailable),
            (b"SSH-2.0-x\r\n", errors.EngineError),
            (b"HTTP/1.0\r\n\r\n", errors.EngineError),
            (b"HTTP/1.0 200 OK\r\n\r\n<html>", errors.EngineError),
            (b"HTTP/1.0 404 Not Found\r\n\r\n{\"message\": \"No such container\"}", errors.EngineNotFound),
            (b"HTTP/1.0 500 Oops\r\n\r\nno JSON", errors.EngineError),
        ):
            error = self.assertRaises(expected, answered, path, answer)
            self.assertIs(expected, type(error), answer)

    def test_answers(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, "s")
        self.assertEqual({"a": 1}, answered(path, b"HTTP/1.0 200 OK\r\nX: y\r\ncontent-LENGTH: 7\r\n\r\n{\"a\":1}"))
        self.assertIsNone(answered(path, b"HTTP/1.0 204 No Content\r\n\r\n"))
        self.assertIsNone(answered(path, b"HTTP/1.0 304 Not Modified\r\n\r\n"))


def answered(path, answer):
    """Return the result of a request to a server that sends this answer."""
    def serve():
        connection = listener.accept()[0]
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=serve)
        server.start()
        try:
            endpoint = f"unix://{path}"
            with sdk.translated("look", endpoint):
                return sdk.Connection(endpoint, "1.41", timeout=10).ask("POST", "/x", {"b": 2})
        finally:
            server.join()
            os.unlink(path)
