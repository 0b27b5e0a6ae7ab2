# SPDX-License-Identifier: Apache-2.0
"""Build the document of a container's resources, /run/containerhost/resources.json. Pure.

A JSON object:

- ``schema``: 1; a reader ignores keys it does not know
- ``generation``: a number that grows with every change
- ``cpus``: ``count``; ``cores``: the host's cores it is bound to, none when the engine chooses; with affinity
  cpumempin ``ranks``: the cores of each MPI process
- ``memory``: bytes
- ``devices``: of each ``id`` (PCI address, or that of a slice or place), ``kind`` (``gpu``, ``gpu-slice``,
  ``gpu-share``, ``net``), ``vendor`` (PCI id), ``uuid`` (null where it has none), ``nodes`` (paths in /dev),
  ``interface`` (null or its name in the container); ``provenance``, if the host kept it: the device's last hand-over
  and cleaning (:mod:`containerhost.allocation.provenance`)
- ``environment``: variables that inform programs of the devices
- ``announced``: null, or the state after the guest has acknowledged or ``until`` (seconds since 1970) has passed:
  the same keys ``generation``, ``cpus``, ``memory``, ``devices`` and ``environment``; ``stop``, which is true if the
  container will be stopped then, to start again later, maybe on another host
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from containerhost import vendors
from containerhost.devices.grants import Grant
from containerhost.devices.model import Device
from containerhost.engines import marks
from containerhost.engines.spec import ContainerSpec

SCHEMA = 1
LABEL = marks.RESOURCES
FILE = "resources.json"
ACKNOWLEDGED = "ack.json"

Document = dict[str, Any]
BODY = ("cpus", "memory", "devices", "environment")
STOP = "stop"


def of(spec: ContainerSpec) -> Document:
    """Return the part of a document that is determined by a container's specification."""
    ranks = {"ranks": [sorted(cores) for cores in spec.cpu.ranks]} if spec.cpu.ranks else {}
    return {"cpus": {"count": spec.cpu.count, "cores": sorted(spec.cpu.cores), **ranks}, "memory": spec.memory.size,
            "devices": [_device(grant) for grant in spec.grants],
            "environment": _environment([grant.device for grant in spec.grants])}


def _device(grant: Grant) -> Document:
    device = grant.device
    return {"id": device.id, "kind": device.kind.value, "vendor": device.vendor_id, "uuid": device.uuid,
            "nodes": [node.path for node in grant.nodes], "interface": grant.netdev.name if grant.netdev else None,
            **({"provenance": dict(grant.provenance)} if grant.provenance else {})}


def _environment(devices: Sequence[Device]) -> dict[str, str]:
    return {name: value for vendor in vendors.load() for name, value in vendor.environment(devices).items()}


def with_document(spec: ContainerSpec, before: str | None = None) -> ContainerSpec:
    """Return the specification with the document among its labels."""
    return dataclasses.replace(spec, labels=dict(spec.labels) | {LABEL: following(of(spec), before)})


def following(body: Document, before: str | None) -> str:
    present = parse(before)
    if present is not None and all(present.get(key) == body[key] for key in BODY):
        return str(before)
    return text({"schema": SCHEMA, "generation": generation(present) + 1, **body, "announced": None})


def resized(before: str | None, count: int, cores: Collection[int], memory: int) -> str:
    """Return the document of a container with another size and the same devices."""
    return following({"cpus": {"count": count, "cores": sorted(cores)}, "memory": memory, **devices_in(before)}, before)


def with_devices(before: str, grants: Sequence[Grant]) -> str:
    """Return the document of a container with other devices and the same size.

    :param before: its present document; its entries of remaining devices are kept
    """
    present = parse(before) or {}
    known = {device["id"]: device for device in present.get("devices", [])}
    return following({"cpus": present.get("cpus"), "memory": present.get("memory"),
                      "devices": [known.get(grant.device.id) or _device(grant) for grant in grants],
                      "environment": _environment([grant.device for grant in grants])}, before)


def devices_in(document: str | None) -> Document:
    """Return the devices part of a document."""
    present = parse(document) or {}
    return {"devices": present.get("devices", []), "environment": present.get("environment", {})}


def exchanged(before: str, going: Collection[str], coming: Sequence[Grant], known: Mapping[str, Device]) -> str:
    """Return the document of a container that loses some devices and gets others, with the same size."""
    present = parse(before) or {}
    kept = [device for device in present.get("devices", []) if device["id"] not in going]
    there = {device["id"] for device in kept}
    devices = kept + [_device(grant) for grant in coming if grant.device.id not in there]
    variables = _environment([known[device["id"]] for device in devices if device["id"] in known])
    return following({key: present.get(key) for key in BODY} | {"devices": devices, "environment": variables}, before)


def stopping(before: str) -> str:
    """Return the document to acknowledge before a container is stopped."""
    present = parse(before) or {}
    return text(present | {"generation": generation(present) + 1, STOP: True})


def renumbered(document: str, number: int) -> str:
    return text((parse(document) or {}) | {"generation": number})


def announcing(before: str, coming: str, until: int) -> str:
    """Return the document that announces a change."""
    later = parse(coming) or {}
    stop = {STOP: True} if later.get(STOP) else {}
    return text((parse(before) or {}) | {"announced": {key: later.get(key) for key in ("generation", *BODY)} | stop
                                         | {"until": until}})


def shrinks(before: str | None, coming: str) -> bool:
    """Return whether the container loses cores, memory or a device, or is stopped."""
    present, later = parse(before), parse(coming)
    if present is None or later is None:
        return False
    there = {device["id"] for device in later["devices"]}
    return (STOP in later or later["cpus"]["count"] < present["cpus"]["count"] or later["memory"] < present["memory"]
            or any(device["id"] not in there for device in present["devices"]))


def generation(document: Document | None) -> int:
    found = document.get("generation") if document else None
    return found if isinstance(found, int) else 0


def parse(content: str | bytes | None) -> Document | None:
    """Parse a document; None if it is not a JSON object, because a file in a container may have any content."""
    try:
        found = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def text(document: Document) -> str:
    return json.dumps(document, sort_keys=True)
