# SPDX-License-Identifier: Apache-2.0
"""Reset whole GPUs under their driver by NVIDIA's own tool, which refuses while a client uses one.

Clients include the host's own programs. Persistence mode is one, and is off during a reset. Linked GPUs (NVLink) are
reset by one command if a single reset is refused. Source: nvidia-smi(1), ``--gpu-reset`` and ``--persistence-mode``.
"""

import contextlib
import logging
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from containerhost.errors import HostActionFailed, ResetRefused
from containerhost.linux import run as programs
from containerhost.linux.poll import wait_until
from containerhost.linux.process import hostusers
from containerhost.linux.sysfs import Host
from containerhost.vendors.nvidia import nvml

LOG = logging.getLogger(__name__)

TOOL = "nvidia-smi"
TIMEOUT = 120  # s; resetting an NVLink-connected GPU retrains its links
MODE_TIMEOUT = 30  # s
FABRIC_TIMEOUT = 30.0  # s until a GPU has joined the fabric of its NVSwitches after a reset
POLL_INTERVAL = 1.0  # s
MARKS = Path("/run/containerhost/persistence")  # a file for each GPU whose persistence mode is off during a reset
GPUS = "/proc/driver/nvidia/gpus"
MODESET = "/sys/module/nvidia_drm/parameters/modeset"


def reset(address: str, others: Collection[str] = ()) -> bool:
    """Reset a GPU, together with linked GPUs if it cannot be reset alone.

    :param others: further unallocated GPUs
    :returns: False without the tool, or if it reports that this GPU cannot be reset
    :raises ResetRefused: a client uses it, or a linked one
    """
    if shutil.which(TOOL) is None:
        return False
    try:
        _reset([address])
    except HostActionFailed as error:
        if "not supported" in str(error).lower():
            return False
        if "in use" not in str(error).lower() and "link" not in str(error).lower():
            raise
        linked = sorted(_linked(address))
        if not linked or not set(linked) <= set(others):
            raise _refused(address, [peer for peer in linked if peer not in others], error) from error
        try:
            _reset([address, *linked])
        except HostActionFailed as together:
            raise _refused(address, linked, together) from together
    return True


def _reset(addresses: Sequence[str]) -> None:
    with _without_persistence(addresses):
        _run([TOOL, "--gpu-reset", f"--id={','.join(addresses)}"], TIMEOUT)
    wait_until(lambda: not _joining(addresses), FABRIC_TIMEOUT, POLL_INTERVAL)  # else its health reports it


def _joining(addresses: Sequence[str]) -> bool:
    """Return whether a GPU has not yet joined its fabric, as required after a reset."""
    found = nvml.query()
    states = [found[address].state for address in addresses if address in found]
    return any(state is not None and state.fabric for state in states)


@contextlib.contextmanager
def _without_persistence(addresses: Sequence[str]) -> Iterator[None]:
    """Turn off persistence mode and nvidia-persistenced for the GPUs within the block.

    A mark records this meanwhile: the reset that follows a kill turns the mode on again.
    """
    persistent = [address for address in addresses if (MARKS / address).exists() or _is_persistent(address)]
    try:
        for address in persistent:
            _mark(address)
            _run([TOOL, f"--id={address}", "--persistence-mode=0"], MODE_TIMEOUT)
        yield
    finally:
        for address in persistent:
            try:
                _run([TOOL, f"--id={address}", "--persistence-mode=1"], MODE_TIMEOUT)
                (MARKS / address).unlink(missing_ok=True)
            except HostActionFailed as error:
                LOG.error("Persistence mode of GPU %s stays off: %s", address, error)


def _mark(address: str) -> None:
    try:
        MARKS.mkdir(parents=True, exist_ok=True)
        (MARKS / address).touch()
    except OSError as error:
        raise HostActionFailed(f"persistence mode of GPU {address} cannot be turned off safely: {error}") from error


def _is_persistent(address: str) -> bool:
    done = programs.run([TOOL, "--query-gpu=persistence_mode", "--format=csv,noheader", f"--id={address}"],
                        MODE_TIMEOUT)
    return done.returncode == 0 and done.stdout.strip() == "Enabled"


def _run(command: Sequence[str], timeout: int) -> None:
    programs.check(command, timeout, f"`{' '.join(command)}` failed")


def _linked(address: str) -> set[str]:
    """Return the GPUs that are linked with one, directly or indirectly."""
    links = nvml.links_between(nvml.query())
    found, ahead = {address}, {address}
    while ahead:
        ahead = {gpu for pair in links if pair & ahead for gpu in pair} - found
        found |= ahead
    return found - {address}


def _refused(address: str, linked: Sequence[str], error: HostActionFailed) -> ResetRefused:
    """Return the error for a GPU in use by a client: the remedy, the program if known, the tool's message."""
    then = f"then `containerhost scrub {address}`"
    users = hostusers.of_nodes([*nodes(Host(), address), *(node for peer in linked for node in nodes(Host(), peer))])
    if users:
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        return ResetRefused(f"Stop {users[0]}{more}, {then}: the driver resets no GPU in use. "
                            f"Programs of the host have it: {', '.join(users)}. {error}")
    if linked:
        return ResetRefused(f"Free {linked[0]} too, {then}: linked GPUs are reset together. "
                            f"With it must be reset: {', '.join(linked)}. {error}")
    if Host().text(MODESET) == "Y":
        return ResetRefused(f"Load nvidia_drm with modeset=0, {then}: it may have the GPU. {error}")
    return ResetRefused(f"End what uses it, {then}: the driver resets no GPU in use. {error}")


def nodes(host: Host, address: str) -> tuple[str, ...]:
    """Return the GPU's own node; none if the driver does not know the GPU."""
    minor = host.fields(f"{GPUS}/{address}/information").get("Device Minor", "")
    return (f"/dev/nvidia{minor}",) if minor.isascii() and minor.isdigit() else ()
