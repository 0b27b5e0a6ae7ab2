# SPDX-License-Identifier: Apache-2.0
"""Check the features of the Docker daemon of this host."""

from collections.abc import Iterator, Mapping
from typing import Any

from containerhost.devices.findings import Finding, note, wrong
from containerhost.engines.docker.config import RUNTIME

CHECK, NAME = "daemons", "docker"


def check() -> Iterator[Finding]:
    """Query the daemon.

    :raises EngineError: it does not answer
    """
    from containerhost.engines.docker.client import DockerClient  # noqa: PLC0415  (an extra: not every host has the SDK)

    yield from missing(DockerClient().info())


def missing(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the missing features. Pure."""
    if RUNTIME not in (info.get("Runtimes") or {}):
        yield note(CHECK, NAME, f"it has no runtime {RUNTIME}, so no container of `onedock` can start",
                   "name containerhost-docker-runtime in /etc/docker/daemon.json, as the manual shows, and restart it")
    if not any(option.startswith("name=seccomp") and "profile=unconfined" not in option
               for option in info.get("SecurityOptions") or ()):
        yield wrong(CHECK, NAME, "it filters no system calls of containers, so a device can be kept in an io_uring, "
                    "where it cannot be found", "remove seccomp-profile from /etc/docker/daemon.json, and restart it")
    for key, what in (("MemoryLimit", "memory"), ("CpuCfsQuota", "processor time"), ("PidsLimit", "processes")):
        if info.get(key) is False:
            yield note(CHECK, NAME, f"it cannot limit {what}", "see the findings of the control groups")
