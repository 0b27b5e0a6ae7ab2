# SPDX-License-Identifier: Apache-2.0
"""Parse oned's calls of a VMM script: the arguments of every action and the document on its standard input.

Arguments end with VMID and HOST, except for exec, where the command follows. Standard input is plain XML over ssh
and base64 if oned runs the script itself (``-l``), where three scripts have different names.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onedriver import document, vm
from onedriver.errors import BadInput
from onedriver.vm import Vm

#: Arguments before VMID and HOST.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "deploy": ("file", "host"),
    "shutdown": ("deploy_id", "host"),
    "cancel": ("deploy_id", "host"),
    "reboot": ("deploy_id", "host"),
    "reset": ("deploy_id", "host"),
    "save": ("deploy_id", "checkpoint", "host"),
    "restore": ("checkpoint", "host", "deploy_id"),
    "migrate": ("deploy_id", "destination", "source"),
    "attach_disk": ("deploy_id", "path", "target", "index", "message"),
    "detach_disk": ("deploy_id", "path", "target", "index"),
    "resize_disk": ("deploy_id", "disk_id", "size", "message", "host"),
    "attach_nic": ("deploy_id", "mac", "bridge", "model", "vn_mad", "target"),
    "detach_nic": ("deploy_id", "mac"),
    "snapshot_create": ("deploy_id", "snapshot"),
    "snapshot_revert": ("deploy_id", "snapshot"),
    "snapshot_delete": ("deploy_id", "snapshot"),
    "resize": ("deploy_id",),
    "reconfigure": ("deploy_id", "target", "path"),
    "exec": (),
    "exec_cancel": (),
}

#: Arguments that our own scripts add behind VMID and HOST.
ADDED: Mapping[str, str] = {"migrate": "agent"}

#: Actions that are over in their scripts: nothing has to let go of a context that is a directory before it changes.
IN_SCRIPTS = frozenset({"prereconfigure"})

#: Names of the scripts where oned runs them itself.
LOCAL_NAMES = {"snapshotcreate": "snapshot_create", "snapshotrevert": "snapshot_revert",
               "snapshotdelete": "snapshot_delete"}

NUMBER = re.compile(r"[0-9]{1,9}")
MESSAGE, DEPLOYMENT = "VMM_DRIVER_ACTION_DATA", "VM"


class Call(NamedTuple):
    """Hold one call of a VMM script: the action, its arguments and the description of its VM.

    :ivar arguments: by the names of :data:`ARGUMENTS`; of exec ``command`` and perhaps ``stdin``
    :ivar vm: its target state; for detach_nic its former state
    :ivar document: standard input as it came
    """

    action: str
    arguments: Mapping[str, str]
    vm_id: int
    host: str
    vm: Vm
    document: bytes = b""

    @property
    def deploy_id(self) -> str:
        return self.arguments.get("deploy_id") or self.vm.deploy_id or ""


def call(script: str, argv: Sequence[str], stdin: bytes, own_prefix: str = "LXD_") -> Call:
    """Parse a call of a VMM script.

    :param script: its name as called
    :param argv: without that name
    :raises BadInput: too few arguments, or an incomplete document
    """
    action = LOCAL_NAMES.get(script, script)
    arguments, vm_id, host = split(action, argv)
    element = document.parse_either(stdin, DEPLOYMENT if action == "deploy" else MESSAGE)
    found = element if action == "deploy" else element.find("VM")
    if found is None:
        raise BadInput(f"{action}: the message on standard input has no VM")
    parsed = vm.vm(found, own_prefix)
    require_described(action, vm_id, parsed)
    return Call(action, arguments, vm_id, host, parsed, stdin)


def split(action: str, argv: Sequence[str]) -> tuple[dict[str, str], int, str]:
    """Return the arguments by name, the VM's id and the host."""
    if action not in ARGUMENTS:
        raise BadInput(f"there is no action {action!r}")
    names = ARGUMENTS[action]
    if action == "exec":
        return split_exec(argv)
    if len(argv) < len(names) + 2:
        raise BadInput(f"{action}: called with {len(argv)} arguments, but oned gives {len(names) + 2}: "
                       f"{', '.join((*names, 'VM id', 'host'))}")
    arguments = dict(zip(names, argv, strict=False))
    if action in ADDED and len(argv) > len(names) + 2:
        arguments[ADDED[action]] = argv[len(names) + 2]
    return arguments, number(action, argv[len(names)]), argv[len(names) + 1]


def split_exec(argv: Sequence[str]) -> tuple[dict[str, str], int, str]:
    if len(argv) < 3:
        raise BadInput(f"exec: called with {len(argv)} arguments, but oned gives VM id, host and command")
    values = {"command": argv[2]} | ({"stdin": argv[3]} if len(argv) > 3 else {})
    return values, number("exec", argv[0]), argv[1]


def require_described(action: str, vm_id: int, found: vm.Vm) -> None:
    """Raise BadInput if standard input describes another VM."""
    if found.id != vm_id:
        raise BadInput(f"{action}: it was called for VM {vm_id}, but standard input describes VM {found.id}")


def number(action: str, text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise BadInput(f"{action}: {text[:60]!r} is not a VM id")
    return int(text)
