# SPDX-License-Identifier: Apache-2.0
"""Read onemonitord's configuration for a node's client: targets and periods of messages. Pure."""

import dataclasses
import re
from collections.abc import Mapping

from onedriver import document
from onedriver.cipher import Encrypt, encryption
from onedriver.document import Element
from onedriver.errors import BadInput
from onedriver.monitor import Type

ROOT = "MONITOR_CONFIGURATION"
AUTO = "auto"
USUAL_PERIOD = 60  # seconds; default if the configuration has no period
SHORT_PERIOD = 5  # seconds; likewise, for information that users wait for
NUMBER = re.compile(r"-?[0-9]{1,9}")
HIGHEST_PORT = 65535

#: The directory of probes of each message.
DIRECTORIES: Mapping[Type, str] = {
    Type.SYSTEM_HOST: "host/system", Type.MONITOR_HOST: "host/monitor", Type.BEACON_HOST: "host/beacon",
    Type.STATE_VM: "vm/status", Type.MONITOR_VM: "vm/monitor", Type.EXEC_VM: "vm/execution",
    Type.SNAPSHOT_VM: "vm/snapshot"}


@dataclasses.dataclass(frozen=True)
class MonitorConfig:
    """Hold the settings of a node's monitoring client: onemonitord's address, encryption and probe periods.

    :ivar address: of onemonitord: a host name or an IP address
    :ivar periods: seconds between rounds for every type of message
    """

    address: str
    port: int
    host: int
    periods: Mapping[Type, int]
    encrypt: Encrypt = bytes


def monitor_config(data: bytes, ssh_client: str) -> MonitorConfig:
    """Parse onemonitord's configuration.

    :param ssh_client: $SSH_CLIENT, whose first word is the front-end if the configuration has ``auto``
    :raises BadInput: it is incomplete, or its key is invalid
    """
    element = document.parse_either(data, ROOT)
    port = number(element, "NETWORK/PORT", None)
    if not 0 < port <= HIGHEST_PORT:
        raise BadInput(f"NETWORK/PORT of the monitoring configuration is {port}, which is not a port")
    periods = {kind: max(1, number(element, f"PROBES_PERIOD/{kind}", SHORT_PERIOD if kind is Type.EXEC_VM else
                                   USUAL_PERIOD)) for kind in DIRECTORIES}
    key = text(element, "NETWORK/PUBKEY")
    return MonitorConfig(address(text(element, "NETWORK/MONITOR_ADDRESS"), ssh_client), port,
                         number(element, "HOST_ID", None), periods, encryption(key) if key else bytes)


def address(configured: str, ssh_client: str) -> str:
    if configured and configured != AUTO:
        return configured
    if not ssh_client.split():
        raise BadInput("NETWORK/MONITOR_ADDRESS is auto, but SSH_CLIENT does not contain the caller: set the "
                       "front-end's address in monitord.conf")
    return ssh_client.split(maxsplit=1)[0]


def text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def number(element: Element, path: str, default: int | None) -> int:
    """Return a number of the configuration; without a default (None) it is required."""
    found = text(element, path)
    if not found and default is not None:
        return default
    if not NUMBER.fullmatch(found):
        raise BadInput(f"{path} of the monitoring configuration is {found[:60]!r}, which is not a number")
    return int(found)
