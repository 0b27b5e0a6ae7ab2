# SPDX-License-Identifier: Apache-2.0
"""Small questions to a starting service; each answers at once and never raises for a service that is not there yet."""

import http.client
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path


def http_answers(url: str) -> bool:
    """Return whether the application behind the URL answers, be it with a choice of versions (300)."""
    try:
        with urllib.request.urlopen(url, timeout=10):  # noqa: S310 (always a service of this cloud)
            return True
    except urllib.error.HTTPError as error:
        return error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False


def port_open(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def socket_open(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def succeeds(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    done = subprocess.run(argv, env=dict(environment), timeout=30, check=False,
                          stdin=subprocess.DEVNULL, capture_output=True)
    return done.returncode == 0
