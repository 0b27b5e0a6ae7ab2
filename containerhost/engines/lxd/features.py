# SPDX-License-Identifier: Apache-2.0
"""Check the features of the LXD or Incus daemon of this host, by its API extensions."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from containerhost.devices.findings import Finding, note, wrong
from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.config import CDI_HOTPLUG
from containerhost.engines.lxd.restrictions import forbidden, in_words

CHECK, NAME = "daemons", "lxd"
_NEEDED: Mapping[str, str] = {"kernel_limits": "containers with RDMA devices get no locked memory"}
_BETTER: Mapping[str, str] = {
    "limits_hugepages": "servers with huge pages are refused",
    "gpu_cdi": "libraries of a GPU's driver come only by the vendor's older way",
    CDI_HOTPLUG: "a GPU that comes while the container runs brings no libraries of its driver",
    "numa_cpu_placement": "a server on NUMA nodes gets a fixed list of cores, not the nodes'"}


def check() -> Iterator[Finding]:
    """Query the daemon.

    :raises EngineError: it does not answer
    """
    client = LxdClient()
    yield from missing(client.extensions)
    yield from restricted(client.get("projects", asked="list the projects", params={"recursion": "1"}))


def restricted(projects: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the projects in which the drivers' containers cannot be created. Pure."""
    for project in projects:
        keys = forbidden(project["config"])
        if keys:
            yield note(CHECK, NAME, in_words(project["name"], keys), "if the containers of a cloud go there, do so")


def missing(extensions: Collection[str]) -> Iterator[Finding]:
    """Yield the missing features. Pure."""
    for level, wanted in ((wrong, _NEEDED), (note, _BETTER)):
        for name, without in wanted.items():
            if name not in extensions:
                yield level(CHECK, NAME, f"it has no API extension {name}: {without}",
                            "a later release of LXD or Incus has it")
