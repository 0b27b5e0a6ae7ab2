# SPDX-License-Identifier: Apache-2.0
"""Find a port for a server of a test."""

import socket


def free_port() -> int:
    """Return a port of 127.0.0.1 at which nothing listens just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
