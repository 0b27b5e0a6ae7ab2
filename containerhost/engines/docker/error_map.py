# SPDX-License-Identifier: Apache-2.0
"""Map Docker's failures to this project's errors, by their messages and statuses."""

import re
from collections.abc import Mapping

from containerhost import errors

# Docker reports these with status 400 or 500, so only the message identifies them.
TEXTS: tuple[tuple[re.Pattern[str], type[errors.EngineError]], ...] = (
    (re.compile(r"no space left|disk quota exceeded", re.I), errors.StorageFull),
    (re.compile(r"removal of container \S+ is already in progress", re.I), errors.EngineBusy),
    (re.compile(r"context deadline exceeded|timed? ?out", re.I), errors.EngineTimeout),
)

STATUSES: Mapping[int, type[errors.EngineError]] = {
    404: errors.EngineNotFound,
    409: errors.EngineConflict,
    503: errors.EngineUnavailable,
    504: errors.EngineTimeout,
}

#: What stands before the runtime's own words. A cloud that keeps some hundred letters of an error would keep only this.
BEFORE_RUNTIME = re.compile(r"failed to create (?:shim task|task for container): (?:failed to create shim task: )?"
                            r"OCI runtime create failed: (?:runc create failed: )?"
                            r"(?:unable to start container process: )?(?:error during container init: )?")


def error_for(operation: str, status: int, text: str) -> errors.EngineError:
    """Return the error for a failed request: by its message if that is specific, otherwise by its status."""
    known = next((kind for words, kind in TEXTS if words.search(text)), None)
    kind = known or STATUSES.get(status, errors.EngineError)
    return kind(f"{operation}: Docker says: {BEFORE_RUNTIME.sub('', text).strip() or f'HTTP status {status}'}")


def silent(operation: str, endpoint: str) -> errors.EngineError:
    return errors.EngineTimeout(f"{operation}: no answer from {endpoint} in time")


def unreachable(operation: str, endpoint: str, why: object) -> errors.EngineError:
    return errors.EngineUnavailable(
        f"{operation}: cannot talk to {endpoint} ({why}); is the daemon running, and may this user reach it?")


def garbled(operation: str, endpoint: str, why: object) -> errors.EngineError:
    return errors.EngineError(f"{operation}: the answer of {endpoint} is not Docker's: {why}")
