# SPDX-License-Identifier: Apache-2.0
"""Record pending changes of the elastic service, and its last observations (``containerhost elastic status``).

After a kill, the next process finishes them.

The sizes themselves are in the containers' configuration: a record that is lost loses none.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from containerhost.linux import records
from containerhost.linux.files import atomic_write
from containerhost.linux.lock import make_directory

LOG = logging.getLogger(__name__)
DIRECTORY = Path("/var/lib/containerhost/elastic")
FILE = "state.json"
VERSION = 2


@dataclasses.dataclass(frozen=True)
class Step:
    """Record a change of a container's size or GPUs that is under way.

    :ivar generation: of the document that the container has
    :ivar mark: with its bounds
    :ivar document: the coming one
    :ivar deadline: by the kernel's monotonic clock, when the guest's time expires; None before it was notified
    :ivar awaited: the generation that the guest must acknowledge; None before it was notified
    :ivar applying: the request was sent to the engine
    :ivar devices: those that the container will lose; none for a change of size
    """

    generation: int
    mark: str
    document: str
    deadline: float | None = None
    applying: bool = False
    devices: tuple[str, ...] = ()
    awaited: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))  # JSON has lists


@dataclasses.dataclass(frozen=True)
class State:
    """Hold the persistent state of the elastic service: pending changes, and the observations of the last round.

    :ivar steps: by engine and container, ``lxd/c1``
    :ivar seen: observations of the last round, as in the status
    :ivar boot_id: the host's boot in which this was written
    """

    steps: Mapping[str, Step] = dataclasses.field(default_factory=dict)
    seen: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    boot_id: str | None = None


class StateFile:
    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.path = directory / FILE
        self._written: State | None = None

    def read(self) -> State:
        """Return the state; an empty one if it is missing or unreadable."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            records.version(found)
            steps = {str(key): records.parsed(Step, json.dumps(step)) for key, step in found["steps"].items()}
            return State(steps, dict(found["seen"]), found.get("boot_id"))
        except FileNotFoundError:
            return State()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            LOG.warning("Changes in progress are unknown: %s cannot be read (%s) and is recreated", self.path,
                        error)
            return State()

    def write(self, state: State) -> None:
        """Write the state durably if it has changed.

        :raises OSError: it cannot be written
        """
        if state == self._written:
            return
        make_directory(self.path.parent)
        atomic_write(self.path, records.replacing(self.path, dataclasses.asdict(state), VERSION).encode(), 0o644)
        self._written = state
