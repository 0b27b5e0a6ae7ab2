# SPDX-License-Identifier: Apache-2.0
"""Distinguish a request that timed out from one that failed, for every engine that is reached by HTTP."""

import requests
import urllib3.exceptions

KINDS = (TimeoutError, requests.Timeout, urllib3.exceptions.ReadTimeoutError)


def is_timeout(error: BaseException) -> bool:
    return has_cause(error, *KINDS)


def has_cause(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether the error, or one that it hides, is of these classes.

    requests hides a read timeout of a streamed body in other errors, and docker any of its first request."""
    seen: BaseException | None = error
    while seen is not None:
        if any(isinstance(part, kinds) for part in (seen, *seen.args)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
