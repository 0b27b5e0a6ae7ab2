# SPDX-License-Identifier: Apache-2.0
"""Check NVIDIA's driver against its libraries, and the version of its container toolkit."""

import re
import time
from collections.abc import Iterator

from containerhost.devices.findings import Finding, note, wrong
from containerhost.errors import HostActionFailed
from containerhost.linux import run as programs
from containerhost.linux.process import hostusers
from containerhost.linux.sysfs import Host
from containerhost.vendors.nvidia import reset
from containerhost.vendors.nvidia.libraries import TOOL

CHECK = "drivers"
TIMEOUT = 10.0  # s
INTERVAL = 2.0  # s; programs that read a GPU's state once, as nvidia-smi does, end within that time
MODULE = "/sys/module/nvidia/version"
LIBRARY = re.compile(r"libnvidia-ml\.so\.([0-9]{1,4}(?:\.[0-9]{1,4}){1,2})")
DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
# NVIDIA's records of CVE-2026-24260 (up to 1.19.0), CVE-2025-23266 (up to 1.17.7) and CVE-2025-23359 (up to 1.17.3).
SAFE = (1, 19, 1)
VULNERABILITIES = "CVE-2026-24260, CVE-2025-23266, CVE-2025-23359"
_VERSION = re.compile(r"version:?\s+v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})")


def check(host: Host) -> Iterator[Finding]:
    yield from _libraries(host)
    if host.live:
        yield from _toolkit()
        yield from _clients(host)


def _clients(host: Host) -> Iterator[Finding]:
    """Report the host's programs that prevent a reset of a GPU, except persistence mode, which a reset turns off."""
    if users := _users(host):
        time.sleep(INTERVAL)
        later = _users(host)
        users = [user for user in users if user in later]
    if users:
        yield wrong(CHECK, "GPU reset", f"{', '.join(users)} keeps GPUs open: the driver resets none of them when its "
                    "container ends, and it stays blocked", "stop it on hosts whose GPUs are for containers")
    if host.text(reset.MODESET) == "Y":
        yield note(CHECK, "GPU reset", "nvidia_drm runs with modeset=1: a console on a GPU keeps that from being reset",
                   "set options nvidia_drm modeset=0 in /etc/modprobe.d if a reset is refused")


def _users(host: Host) -> list[str]:
    paths = [path for address in host.names(reset.GPUS) for path in reset.nodes(host, address)]
    return [user for user in hostusers.of_nodes(paths) if not user.startswith("nvidia-persiste")]


def _libraries(host: Host) -> Iterator[Finding]:
    """Compare the loaded module with the installed library, which must be of the same release."""
    module = host.text(MODULE)
    found = sorted({match[1] for directory in DIRECTORIES for name in host.names(directory)
                    if (match := LIBRARY.fullmatch(name))})
    if module and found and module not in found:
        yield wrong(CHECK, "NVIDIA driver", f"module nvidia is {module}, but its libraries are {', '.join(found)}: no "
                    "program can use a GPU", "restart the host, or load the module of the installed release: stop what "
                    "uses GPUs, then modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia")


def _toolkit() -> Iterator[Finding]:
    try:
        text = programs.run([TOOL, "--version"], TIMEOUT).stdout
    except HostActionFailed:
        return  # there is none
    version = toolkit_version(text)
    if version is not None and version < SAFE:
        yield wrong(CHECK, "NVIDIA container toolkit", f"version {'.'.join(map(str, version))} lets an image act as "
                    f"the host's root ({VULNERABILITIES})",
                    f"upgrade nvidia-container-toolkit to {'.'.join(map(str, SAFE))} or later")


def toolkit_version(text: str) -> tuple[int, int, int] | None:
    """Parse the tool's output: ``cli-version: 1.17.4``."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
