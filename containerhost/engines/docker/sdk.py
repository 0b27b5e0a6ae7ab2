"""The docker SDK, for what streams: its connections, and its failures by this project's names."""

import contextlib
from collections.abc import Iterator

import docker
import docker.errors
import requests
import urllib3.exceptions

from containerhost.engines.docker.refusals import garbled, refusal, silent, unreachable
from containerhost.engines.timeouts import is_timeout


def connection(endpoint: str, timeout: int) -> docker.APIClient:
    return docker.APIClient(endpoint, version="auto", timeout=timeout)


@contextlib.contextmanager
def translated(asked: str, endpoint: str) -> Iterator[None]:
    """Every failure of a request leaves as an EngineError that says what was asked and where."""
    try:
        yield
    except docker.errors.APIError as error:
        raise refusal(asked, error.response.status_code if error.response is not None else 0,
                      str(error.explanation or error)) from error
    except (requests.RequestException, docker.errors.DockerException, urllib3.exceptions.HTTPError,
            OSError) as error:
        # The SDK hides what went wrong with its first request in an error of its own.
        if is_timeout(error):
            raise silent(asked, endpoint) from error
        raise unreachable(asked, endpoint, error) from error
    except ValueError as error:
        raise garbled(asked, endpoint, error) from error
