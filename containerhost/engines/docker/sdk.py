# SPDX-License-Identifier: Apache-2.0
"""Send requests to Docker's Engine API by the docker SDK (docker-py), and map their failures to errors.

Paths, queries and answers: https://docs.docker.com/reference/api/engine/.
"""

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

import docker
import docker.errors
import requests
import urllib3.exceptions

from containerhost.engines.docker.error_map import error_for, garbled, silent, unreachable
from containerhost.engines.timeouts import has_cause, is_timeout


class Connection(docker.APIClient):
    """Send requests for one thread: a requests session must not be shared."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None,
            query: Mapping[str, object] | None = None) -> Any:
        """Send a request that docker-py does not support, or not with these options.

        :returns: the answer from its JSON; None when it has no content
        """
        url = f"{self.base_url}/v{self.api_version}{path}"
        answer = self.request(method, url, params=query, json=body, timeout=self.timeout)
        self._raise_for_status(answer)
        return json.loads(answer.content) if answer.content else None


@contextlib.contextmanager
def translated(operation: str, endpoint: str) -> Iterator[None]:
    """Translate every failure of a request to an EngineError that names the operation and the daemon."""
    try:
        yield
    except docker.errors.APIError as error:
        raise error_for(operation, error.response.status_code if error.response is not None else 0,
                        str(error.explanation or error)) from error
    except (requests.RequestException, docker.errors.DockerException, urllib3.exceptions.HTTPError,
            OSError) as error:
        # The SDK wraps the error of its first request in an error of its own.
        if is_timeout(error):
            raise silent(operation, endpoint) from error
        if has_cause(error, http.client.BadStatusLine) and not has_cause(error, ConnectionError):
            raise garbled(operation, endpoint, error) from error
        raise unreachable(operation, endpoint, error) from error
    except ValueError as error:
        raise garbled(operation, endpoint, error) from error
