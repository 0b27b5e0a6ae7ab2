# SPDX-License-Identifier: Apache-2.0
"""Limit the rate of a container's interface, immediately if it runs."""

from typing import Any

from containerhost.engines.lxd.engine import LxdEngine
from containerhost.errors import SpecError
from containerhost.rollback import Rollback


def limit(engine: LxdEngine, name: str, nic: str, received: int | None, sent: int | None) -> None:
    """Set the only limits of a bridged interface; on an error the former ones are restored.

    :param received, sent: bits per second; None is no limit
    :raises SpecError: the container has no such interface
    """
    wanted = {"limits.ingress": received, "limits.egress": sent}
    former: dict[str, str] = {}

    def change(instance: dict[str, Any], etag: str) -> None:
        device = instance["devices"].get(f"nic-{nic}")
        if device is None:
            raise SpecError(f"container {name} has no interface {nic} of a bridge")
        former.update(former or device)
        kept = {key: value for key, value in device.items() if key not in (*wanted, "limits.max")}
        write(instance, etag, kept | {key: str(rate) for key, rate in wanted.items() if rate is not None})

    def write(instance: dict[str, Any], etag: str, device: dict[str, str]) -> None:
        devices = instance["devices"] | {f"nic-{nic}": device}
        if devices != instance["devices"]:
            engine.client.replace_instance(name, instance | {"devices": devices}, etag)

    def restore(instance: dict[str, Any], etag: str) -> None:
        if former:
            write(instance, etag, former)

    with Rollback(f"limits of interface {nic} of container {name}") as undo:
        undo.on_error("its former limits", engine.change, name, restore)
        engine.change(name, change)
