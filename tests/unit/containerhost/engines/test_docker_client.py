import os
import socket

import docker.errors
import fixtures
import requests
import testtools

from containerhost import errors
from containerhost.engines.docker import refusals, sdk
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
            error = refusals.refusal("start container c1", status, text)
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
        folder = self.useFixture(fixtures.TempDir()).path
        path = os.path.join(folder, "s")
        settings = Settings(f"unix://{path}", request_timeout=1)
        self.assertRaises(errors.EngineUnavailable, DockerClient(settings).containers)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(path)
            deaf.listen()
            self.assertRaises(errors.EngineTimeout, DockerClient(settings).containers)
