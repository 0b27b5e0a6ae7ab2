# SPDX-License-Identifier: Apache-2.0
"""Check the features of the engines' daemons on this host by querying them."""

from collections.abc import Callable, Iterator, Mapping

from containerhost.devices.findings import Finding, note
from containerhost.engines.docker import features as docker
from containerhost.engines.lxd import features as lxd
from containerhost.errors import EngineError
from containerhost.linux.process.daemons import DAEMONS, running
from containerhost.operator.doctor.hostdata import HostData

NAME = "daemons"
_ASK: Mapping[str, Callable[[], Iterator[Finding]]] = {"lxd": lxd.check, "incusd": lxd.check, "dockerd": docker.check}


def check(data: HostData) -> Iterator[Finding]:
    """Yield findings; none for a captured tree, which has no daemons."""
    if not data.host.live:
        return
    found = dict.fromkeys(name for _, name in running(data.host))
    if not found:
        yield note(NAME, "engines", "neither LXD nor Incus nor Docker runs here", "install one of them")
    for name in found:
        try:
            yield from _ASK[name]()
        except ModuleNotFoundError as error:  # optional: its driver is not installed
            yield note(NAME, name, f"it cannot be asked: there is no Python package {error.name}",
                       "install it with the driver for this engine, `nova-lxd-ext[onedock]` say, if that is used here")
        except EngineError as error:
            yield note(NAME, name, f"it cannot be asked: {error}",
                       f"look at {DAEMONS[name]}, and ask as a user who may use its socket")
