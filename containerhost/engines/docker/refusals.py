# SPDX-License-Identifier: Apache-2.0
"""What Docker's answers that are no successes mean: this project's errors, by their words and statuses."""

import re
from collections.abc import Mapping

from containerhost import errors

# Docker reports these as plain 400 or 500: only the words tell them apart.
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


def refusal(asked: str, status: int, text: str) -> errors.EngineError:
    """The error for an answer that is not a success: by its words where they tell more, else by its status."""
    known = next((kind for words, kind in TEXTS if words.search(text)), None)
    kind = known or STATUSES.get(status, errors.EngineError)
    return kind(f"{asked}: Docker says: {BEFORE_RUNTIME.sub('', text).strip() or f'HTTP status {status}'}")


def silent(asked: str, endpoint: str) -> errors.EngineError:
    return errors.EngineTimeout(f"{asked}: no answer from {endpoint} in time")


def unreachable(asked: str, endpoint: str, why: object) -> errors.EngineError:
    return errors.EngineUnavailable(
        f"{asked}: cannot talk to {endpoint} ({why}); is the daemon running, and may this user reach it?")


def garbled(asked: str, endpoint: str, why: object) -> errors.EngineError:
    return errors.EngineError(f"{asked}: the answer of {endpoint} is not Docker's: {why}")
