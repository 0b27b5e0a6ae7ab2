# SPDX-License-Identifier: Apache-2.0
"""Undo multi-step actions: each step registers its undo function, and an error runs them in reverse."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

LOG = logging.getLogger(__name__)


class Rollback:
    """Revert completed steps, as a context manager, unless the block ends without an error.

    An undo step that fails is logged and the remaining ones still run: the error that started the roll-back is
    the one the caller must see. ``KeyboardInterrupt`` and ``SystemExit`` are errors here too.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._steps: list[tuple[str, Callable[[], Any]]] = []

    def on_error(self, step: str, undo: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Register ``undo(*args, **kwargs)`` to undo ``step``."""
        self._steps.append((step, lambda: undo(*args, **kwargs)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is None:
            return
        for step, undo in reversed(self._steps):
            try:
                undo()
            except Exception:
                LOG.exception("%s: could not undo step '%s'", self._what, step)
