# SPDX-License-Identifier: Apache-2.0
"""Write numbered files in a container with busybox, and check after a move that none is lost or changed."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

# A file is on the root and on the volatile disk before its number, time and checksum are noted.
WRITER = """
trap 'exit 0' TERM
mkdir -p /written
number=$(ls /written | sort -n | tail -n 1)
while :; do
    number=$((number + 1))
    head -c 2000 /dev/urandom > /written/.new
    cp /written/.new /media/1/$number
    mv /written/.new /written/$number
    set -- $(sha256sum /written/$number)
    echo $number $EPOCHREALTIME $1 >> /notes
    sleep 0.08
done
"""
INSTALL = f"cat > /new << 'END'\n{WRITER}END\nmv /new /writer\n"
# It starts again with the container: by busybox's init, or as the container's first program.
BY_INIT = f"{INSTALL}echo '::respawn:/bin/sh /writer' >> /etc/inittab; kill -HUP 1"
FIRST_PROGRAM = "sh -c 'while ! test -f /writer; do sleep 0.1; done; . /writer'"
WATCH = "while :; do tail -n 1 /notes; sleep 0.05; done"
READ = "cat /notes; echo --; cd /written; sha256sum *; echo --; cd /media/1; sha256sum [0-9]*"


class Note(NamedTuple):
    """:ivar time: when the file was there, in seconds since the epoch"""

    number: int
    time: float
    sum: str


def notes(text: str) -> list[Note]:
    lines = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return [Note(int(number), float(time), checksum) for number, time, checksum in lines]


def entered(pid: int | None, script: str) -> Sequence[str]:
    """Return the host's command that runs a script in the container of a process."""
    return ("nsenter", "--target", str(pid), "--all", "sh", "-c", script)


@contextlib.contextmanager
def watched(command: Sequence[str]) -> Iterator[Callable[[], set[Note]]]:
    """Read the notes from outside until the container stops.

    :param command: runs WATCH in the container
    """
    with tempfile.NamedTemporaryFile() as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield lambda: set(notes(Path(file.name).read_text()))
        finally:
            process.kill()
            process.wait()


def checked(text: str, seen: Collection[Note] = ()) -> list[Note]:
    """Check that each file that was noted inside, or seen from outside, is on both disks as it was written.

    :param text: what READ prints
    :returns: the notes inside
    :raises AssertionError: a file is missing or another one
    """
    inside, *disks = text.split("--\n")
    noted, (root, disk) = notes(inside), map(_checksums, disks)
    problems = {
        "the sequence of files has gaps": set(range(1, len(root) + 1)) ^ set(root),
        "files that were noted differ": {note.number for note in {*seen, *noted} if note.sum != root.get(note.number)},
        "files differ on the disk": {number for number in root if root[number] != disk.get(number)},
    }
    if found := [f"{problem}: {sorted(numbers)[:20]}" for problem, numbers in problems.items() if numbers]:
        raise AssertionError("; ".join(found))
    return noted


def longest_pause(noted: Collection[Note], after: int) -> float:
    """Return the most seconds between two files, of which the second has a higher number than ``after``."""
    return max(later.time - earlier.time for earlier, later in pairwise(sorted(noted)) if later.number > after)


def _checksums(text: str) -> dict[int, str]:
    return {int(name): checksum for checksum, name in (line.split() for line in text.splitlines())}
