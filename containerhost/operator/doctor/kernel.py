# SPDX-License-Identifier: Apache-2.0
"""Check the kernel features that containers need, by probing, never by version."""

from collections.abc import Iterator

from containerhost.devices.findings import Finding, note, wrong
from containerhost.operator.doctor.hostdata import HostData

NAME = "kernel"
_USER = "/proc/sys/user/max_user_namespaces"
_SECCOMP = "/proc/sys/kernel/seccomp/actions_avail"
_APPARMOR = "/sys/module/apparmor/parameters/enabled"


def check(data: HostData) -> Iterator[Finding]:
    host = data.host
    if host.number(_USER) == 0:
        yield wrong(NAME, "user namespaces", "the kernel allows none, so no unprivileged container starts",
                    "set sysctl user.max_user_namespaces to its default, half of the kernel's threads-max")
    if host.is_directory("/proc/sys/kernel") and host.text("/proc/sys/kernel/ostype") and not host.exists(_SECCOMP):
        yield wrong(NAME, "seccomp", "the kernel cannot filter system calls", "use one with CONFIG_SECCOMP_FILTER")
    if host.text(_APPARMOR) not in ("Y", None):
        yield note(NAME, "AppArmor", "it is built in, but off: containers are confined only by namespaces",
                   "boot with apparmor=1 security=apparmor, unless another security module is used")
