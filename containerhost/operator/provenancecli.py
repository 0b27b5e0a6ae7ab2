# SPDX-License-Identifier: Apache-2.0
"""Provide the command ``containerhost provenance``: earlier holders of a device, and how it was cleaned."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from containerhost.allocation import provenance as handovers
from containerhost.allocation.store import AllocationStore
from containerhost.errors import AllocationsUnreadable
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports import report

HEADINGS = ("number", "container", "given", "released", "cleaned", "signature")


@click.command()
@click.argument("device")
@click.option("--container", "uuid", metavar="UUID", help="Only those of the container with this UUID. Needs root.")
@clioptions.as_json
@clioptions.owners
def provenance(device: str, uuid: str | None, as_json: bool, owners_directory: Path | None) -> None:
    """Show the last hand-overs of DEVICE: when a container had it, and how it was cleaned; verify their signatures.

    The containers' ids cannot be traced without this host's key. Status 1 if a signature is invalid."""
    store, device = AllocationStore(clioptions.directory(Path("/"), owners_directory)), device.lower()
    found, key = store.hand_overs(device), store.provenance.public_key()
    if not found:
        scan(Host()).get(device)  # refuses an unknown device
    if uuid is not None and found:
        seed = _seed(store)
        found = [entry for entry in found if entry.get("consumer")
                 == handovers.opaque(seed, device, str(entry.get("given")), uuid)]
    complaints = [handovers.complaint(entry, device, key) for entry in found]
    if as_json:
        click.echo(json.dumps({"device": device, "key": key, "handovers": [
            {**entry, "valid": not wrong} for entry, wrong in zip(found, complaints, strict=True)]}, indent=1))
    elif found:
        rows = [_row(entry, wrong) for entry, wrong in zip(found, complaints, strict=True)]
        click.echo(report.table(HEADINGS, rows))
    else:
        click.echo(f"no hand-over of {device}{f' to the container {uuid}' if uuid else ''} is known here")
    if any(complaints):
        raise SystemExit(1)


def _seed(store: AllocationStore) -> bytes:
    try:
        return store.provenance.seed()
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise AllocationsUnreadable(f"the host's key, by which a container's hand-overs are found, cannot be read from "
                                    f"{store.directory / handovers.KEY}: {error}") from error


def _row(entry: Mapping[str, Any], wrong: str | None) -> tuple[str, ...]:
    cleaned = entry.get("cleaned")
    how = ", ".join(map(str, cleaned)) if isinstance(cleaned, list) else "freed by the operator, not cleaned here"
    return (*(str(entry.get(name)) for name in ("number", "consumer", "given", "released")), how, wrong or "valid")
