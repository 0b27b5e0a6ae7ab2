# SPDX-License-Identifier: Apache-2.0
"""Distinguish a timeout from a failure of a request, for every engine with an HTTP API."""

import requests
import urllib3.exceptions

KINDS = (TimeoutError, requests.Timeout, urllib3.exceptions.ReadTimeoutError)


def is_timeout(error: BaseException) -> bool:
    return has_cause(error, *KINDS)


def has_cause(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether the error, or a cause of it, is of these classes.

    requests wraps a read timeout of a streamed body in other errors, and docker every error of its first request."""
    seen: BaseException | None = error
    while seen is not None:
        if any(isinstance(part, kinds) for part in (seen, *seen.args)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
