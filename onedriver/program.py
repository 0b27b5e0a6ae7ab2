# SPDX-License-Identifier: Apache-2.0
"""Translate a script's failure to oned's format. No other module does.

oned takes a line of standard error that begins with ``ERROR: ``, ``INFO: ``, ``WARN: `` or ``DEBUG: `` for the log,
and joins all others, without spaces, as the VM's error. So a failing script prints the reason, which ends with a
period, as its last line, and exits with a status other than zero.
"""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from onedriver.errors import DriverError

LEVELS = {logging.DEBUG: "DEBUG", logging.INFO: "INFO", logging.WARNING: "WARN", logging.ERROR: "ERROR",
          logging.CRITICAL: "ERROR"}
LOG_PREFIXES = ("ERROR: ", "INFO: ", "WARN: ", "DEBUG: ")
OTHER_STATUS = 1
#: What the host lacks, which is no mistake of this program.
HOST_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE,
                         errno.ENFILE})
KNOWN_LENGTH = 2000  # characters; longer messages are truncated, as by the core


class OnedFormatter(logging.Formatter):
    """Format a record, including its traceback, as one line for oned."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            text += f" ({record.exc_info[1]!r})"
        return f"{LEVELS.get(record.levelno, 'INFO')}: {one_line(text)}"


def one_line(text: str) -> str:
    return " ".join(text.split())


def sentence(text: str) -> str:
    """Return one line that ends with a period."""
    line = one_line(text)
    line = line if len(line) <= KNOWN_LENGTH else line[:KNOWN_LENGTH - 3] + "..."
    return line if line.endswith(".") else f"{line}."


def log_to(stream: TextIO) -> None:
    """Send all log records of this process only to ``stream``, in oned's format."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OnedFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def start(main: Callable[[Sequence[str]], int]) -> int:
    """Run a driver's command with the arguments of this process, and return the exit status."""
    if os.geteuid() == 0:
        os.chdir("/")  # programs read configuration files in their working directory, which others may be able to write
    return print_version() if sys.argv[1:] == ["--version"] else main(sys.argv[1:])


def print_version() -> int:
    from importlib import metadata  # noqa: PLC0415  (no action needs it)

    print(f"{Path(sys.argv[0]).name}, version {metadata.version('nova-lxd-ext')}")
    return 0


def run(what: str, body: Callable[[], str | None], known: Mapping[type[Exception], int] | None = None,
        out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Run ``body`` and print its result, or the reason of its failure.

    :param what: the action, as prefix of the reason: ``deploy of VM 12``
    :param known: exit status by class of expected errors
    :returns: the exit status
    """
    out, err = out or sys.stdout, err or sys.stderr
    statuses: Mapping[type[Exception], int] = {DriverError: 1, **(known or {})}
    try:
        result = body()
    except tuple(statuses) as error:
        print(sentence(f"{what}: {error}"), file=err)
        return error.status if isinstance(error, DriverError) else status_of(error, statuses)
    except Exception as error:
        for line in traceback.format_exc().splitlines():
            print(f"DEBUG: {line}", file=err)
        reason = (str(error) if isinstance(error, OSError) and error.errno in HOST_ERRORS
                  else f"a mistake in the driver: {error!r}")
        print(sentence(f"{what}: {reason}; the VM's log has where"), file=err)
        return OTHER_STATUS
    if result:
        print(result, file=out)
    return 0


def reason(complaints: bytes) -> str:
    """Return the reason of a failed driver command: its standard error without the lines for the log."""
    lines = complaints.decode(errors="replace").splitlines()
    return " ".join(line for line in lines if not line.startswith(LOG_PREFIXES))[:1500]


def status_of(error: Exception, statuses: Mapping[type[Exception], int]) -> int:
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), OTHER_STATUS)
