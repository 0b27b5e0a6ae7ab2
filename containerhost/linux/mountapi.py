# SPDX-License-Identifier: Apache-2.0
"""Call the kernel's mount interface: fsopen(2), fsmount(2), open_tree(2), mount_setattr(2), move_mount(2).

A new mount is detached until it is moved to its target, and disappears with its descriptor: a killed process leaves
none. The C library has no wrappers for these calls yet; their numbers are the same on every machine.
"""

import ctypes
import os
from collections.abc import Mapping

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing

OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
SET_FLAG, SET_STRING, CREATE = 0, 1, 6
RDONLY, NOSUID, NODEV, NOEXEC, IDMAP = 1, 2, 4, 8, 0x100000
REMOUNT, SHARED = 32, 1 << 20  # flags of mount(2), which also has the first four above
CLOEXEC, EMPTY_PATH, MOVE_EMPTY_PATH = 1, 0x1000, 4
HERE = -100  # AT_FDCWD
CLONE = 1  # of open_tree(2)
DETACH, NOFOLLOW = 2, 8  # of umount2(2)

_libc = ctypes.CDLL(None, use_errno=True)


class Attributes(ctypes.Structure):
    """Define struct mount_attr of mount_setattr(2)."""

    _fields_ = (("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
                ("user_namespace", ctypes.c_uint64))


def mounted(kind: str, source: str, options: Mapping[str, str | None], attributes: int) -> int:
    """Return a file system as a detached mount.

    :param options: of the file system; None for one that has no value
    :param attributes: of the mount: RDONLY, NOSUID, NODEV
    :returns: its descriptor, which the caller closes
    """
    with closing(_call(FSOPEN, f"this kernel has no {kind} file system", kind.encode(), CLOEXEC)) as context:
        for key, value in {"source": source, **options}.items():
            _configure(context, SET_FLAG if value is None else SET_STRING, key, value, source)
        _configure(context, CREATE, None, None, source)
        return _call(FSMOUNT, f"{source} cannot be mounted", context, CLOEXEC, attributes)


def _configure(context: int, command: int, key: str | None, value: str | None, source: str) -> None:
    texts = (None if text is None else text.encode() for text in (key, value))
    try:
        _call(FSCONFIG, f"{source} cannot be mounted", context, command, *texts, 0)
    except HostActionFailed as error:
        raise HostActionFailed(f"{error}{_words(context)}") from error.__cause__


def _words(context: int) -> str:
    """Return the file system's own error messages: lines that begin with e, w or i."""
    said = []
    try:
        while line := os.read(context, 8192):
            said.append(line.decode(errors="replace")[2:].strip())
    except OSError:
        return f" ({'; '.join(said)})" if said else ""
    return ""


def shift(mount: int, user_namespace: int) -> None:
    """Map the owners of files in a detached mount to the users of a user namespace."""
    wanted = Attributes(IDMAP, 0, 0, user_namespace)
    _call(MOUNT_SETATTR, "this file system cannot be shown with a container's user ids", mount, b"", EMPTY_PATH,
          ctypes.byref(wanted), ctypes.sizeof(wanted))


def shown_again(source: str) -> int:
    """Return a detached mount of ``source``, a file or a directory.

    :returns: its descriptor, which the caller closes
    """
    return _call(OPEN_TREE, f"{source} cannot be shown elsewhere", HERE, source.encode(), CLONE | os.O_CLOEXEC)


def place(mount: int, target: str, directory: int = HERE) -> None:
    """Attach a detached mount at ``target``.

    :param directory: a descriptor of the directory that contains ``target``; no link is followed there
    """
    _call(MOVE_MOUNT, f"nothing can be mounted at {target}", mount, b"", directory, target.encode(), MOVE_EMPTY_PATH)


def mount(target: str, flags: int, kind: str = "", options: str = "") -> None:
    """Call mount(2) for a file system without a source."""
    if _libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode()) < 0:
        raise _failure(f"{target} cannot be mounted so")


def unmount(target: str, *, lazily: bool = False) -> None:
    """Unmount what is at ``target``.

    :param lazily: processes with open files keep them
    :raises HostActionFailed: a process of the host has a file of it open
    """
    if _libc.umount2(target.encode(), NOFOLLOW | (DETACH if lazily else 0)) < 0:
        raise _failure(f"{target} cannot be unmounted")


def _call(number: int, problem: str, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        raise _failure(problem)
    return result


def _failure(problem: str) -> HostActionFailed:
    code = ctypes.get_errno()
    failed = HostActionFailed(f"{problem}: {os.strerror(code)}")
    failed.__cause__ = OSError(code, os.strerror(code))
    return failed
