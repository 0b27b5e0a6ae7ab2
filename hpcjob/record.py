# SPDX-License-Identifier: Apache-2.0
"""Keep the details of a running job's members, including the key, in a directory that only this user can read."""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpcjob.errors import BadJob, JobError
from hpcjob.job import Member
from hpcjob.keys import KeyPair

IDENT = re.compile(r"[a-z0-9-]{1,60}")


@dataclasses.dataclass(frozen=True)
class Record:
    """Describe a started job."""

    cloud: str
    text: str
    members: tuple[Member, ...]
    key: KeyPair


def dump(record: Record) -> str:
    """Return the record as text, with the private key."""
    return json.dumps(dataclasses.asdict(record), indent=1) + "\n"


def load(text: str) -> Record:
    """Return the record of a text.

    :raises ValueError: it is not a record
    """
    try:
        found = json.loads(text)
        members = tuple(Member(**member) for member in found["members"])
        return Record(str(found["cloud"]), str(found["text"]), members, KeyPair(**found["key"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class Records:
    """Store the records of this user's jobs by id."""

    def __init__(self, root: Path | None = None) -> None:
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        self._root = root or Path(state, "hpcjob")

    def path(self, ident: str) -> Path:
        """Return the file of a job's record."""
        if not IDENT.fullmatch(ident):
            raise BadJob(f"{ident!r} is not an id of a job: hpcjob start prints it")
        return self._root / ident / "record.json"

    @contextlib.contextmanager
    def locked(self, ident: str) -> Iterator[None]:
        """Exclude other commands of this user on the job within the block. Without a record nothing is locked.

        :raises JobError: another command changes the job
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                descriptor = os.open(self.path(ident).parent, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise JobError(f"another hpcjob is working on {ident}: wait until it has ended") from error
            yield

    def save(self, ident: str, record: Record) -> None:
        """Write a record atomically.

        :raises BadJob: it cannot be written; an older one is unchanged
        """
        path = self.path(ident)
        new = path.with_suffix(".new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(dump(record))
                file.flush()
                os.fsync(descriptor)
            new.replace(path)
        except OSError as error:
            raise BadJob(f"{path} cannot be written: {error}") from error

    def load(self, ident: str) -> Record:
        """Return a record.

        :raises BadJob: it is missing or unreadable
        """
        path = self.path(ident)
        try:
            return load(path.read_text())
        except FileNotFoundError as error:
            known = sorted(entry.name for entry in self._root.iterdir()) if self._root.is_dir() else []
            raise BadJob(f"{path} is not there: members are replaced where the job was started, by the same user"
                         + (f"; known are {', '.join(known)}" if known else "")) from error
        except (OSError, ValueError) as error:
            raise BadJob(f"{path} cannot be read: {error}") from error

    def forget(self, ident: str) -> None:
        """Remove a record. Idempotent."""
        shutil.rmtree(self.path(ident).parent, ignore_errors=True)
