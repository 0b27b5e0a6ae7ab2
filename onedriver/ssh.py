# SPDX-License-Identifier: Apache-2.0
"""Run commands on nodes from the front-end, over ssh, as oneadmin."""

from onedriver.program import reason

#: Keys and users are oneadmin's, in ~/.ssh, as OpenNebula has them.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "--")
UNREACHABLE = 255  # ssh's own exit status for a failed connection


def problem(host: str, what: str, status: int | None, complaints: bytes) -> str:
    """Return the reason of a failed command over ssh.

    :param status: None if it did not end
    """
    said = reason(complaints)
    if status == UNREACHABLE:
        return f"{host} cannot be reached over ssh: {said or 'no reason was given'}"
    return f"{host}: {said}" if said else f"{host}: {what} " + (
        "did not end" if status is None else f"failed with status {status}")
