# SPDX-License-Identifier: Apache-2.0
"""The system calls and ioctls that Python's standard library does not offer (3.11), one function each.

Numbers are those of the kernel's headers: linux/mount.h, linux/sched.h, linux/if_tun.h, linux/sockios.h.
"""

import ctypes
import fcntl
import os
import socket
import struct

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x2000000, 0x20000000, 0x40000000

_PR_SET_PDEATHSIG = 1
_IFF_TAP, _IFF_NO_PI, _IFF_UP = 0x0002, 0x1000, 0x1
_TUNSETIFF, _TUNSETLINK, _TUNGETIFF = 0x400454CA, 0x400454CD, 0x800454D2
_TUNSETCARRIER, _TUNGETDEVNETNS = 0x400454E2, 0x54E3
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFMTU = 0x8913, 0x8914, 0x8922
_SIOCSIFHWADDR, _SIOCGIFHWADDR, _SIOCGIFINDEX = 0x8924, 0x8927, 0x8933
_ARPHRD_ETHER = 1
_NETLINK_ROUTE, _RTMGRP_LINK = 0, 1
_RTM_SETLINK, _NLM_F_REQUEST, _NLM_F_ACK = 19, 1, 4
_IFLA_NET_NS_FD = 28

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode())
    _check(result, f"cannot mount {source} on {target}")


def bind(source: str, target: str) -> None:
    """Show ``source``, with all that is mounted below it, also at ``target``."""
    mount(source, target, flags=MS_BIND | MS_REC)


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"cannot unmount {target}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "cannot make a namespace (this needs root)")


def setns(descriptor: int, flags: int) -> None:
    _check(_libc.setns(descriptor, flags), "cannot enter the namespace")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone, however it went."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0), "prctl")


def open_tap(name: str) -> int:
    """Make a TAP interface in the present network namespace; it lives as long as the descriptor is open.

    :raises OSError: EBUSY when the name is taken
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, f"cannot make the interface {name}: {error.strerror}") from error
    return descriptor


def tap_name(descriptor: int) -> str:
    """The interface's present name, in whatever namespace it is.

    :raises OSError: EBADFD when it was destroyed with its namespace
    """
    return fcntl.ioctl(descriptor, _TUNGETIFF, bytes(40))[:16].rstrip(b"\0").decode()


def tap_namespace(descriptor: int) -> int:
    """The inode of the network namespace that the interface is in.

    :raises OSError: EBADFD when it was destroyed with its namespace
    """
    namespace = fcntl.ioctl(descriptor, _TUNGETDEVNETNS)
    try:
        return os.fstat(namespace).st_ino
    finally:
        os.close(namespace)


def tap_mac(descriptor: int) -> bytes:
    return fcntl.ioctl(descriptor, _SIOCGIFHWADDR, bytes(40))[18:24]


def set_tap_type(descriptor: int, arphrd: int) -> None:
    fcntl.ioctl(descriptor, _TUNSETLINK, arphrd)


def set_tap_carrier(descriptor: int, up: bool) -> None:
    fcntl.ioctl(descriptor, _TUNSETCARRIER, struct.pack("i", up))


def _interface_ioctl(request: int, name: str, value: bytes = b"") -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), value))[16:]


def set_up(name: str) -> None:
    (flags,) = struct.unpack_from("H", _interface_ioctl(_SIOCGIFFLAGS, name))
    _interface_ioctl(_SIOCSIFFLAGS, name, struct.pack("H", flags | _IFF_UP))


def set_mtu(name: str, octets: int) -> None:
    _interface_ioctl(_SIOCSIFMTU, name, struct.pack("i", octets))


def set_mac(name: str, mac: str) -> None:
    octets = bytes.fromhex(mac.replace(":", ""))
    _interface_ioctl(_SIOCSIFHWADDR, name, struct.pack("H6s", _ARPHRD_ETHER, octets))


def interface_index(name: str) -> int:
    return int(struct.unpack_from("i", _interface_ioctl(_SIOCGIFINDEX, name))[0])


def link_events() -> socket.socket:
    """A socket that has something to read whenever an interface of this namespace comes, changes or goes."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_ROUTE)
    events.bind((0, _RTMGRP_LINK))
    return events


def move_interface(name: str, namespace: int) -> None:
    """Move an interface of the present network namespace into the one that the descriptor stands for."""
    body = struct.pack("BxHiII", 0, 0, interface_index(name), 0, 0)
    body += struct.pack("HHi", 8, _IFLA_NET_NS_FD, namespace)
    header = struct.pack("IHHII", 16 + len(body), _RTM_SETLINK, _NLM_F_REQUEST | _NLM_F_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as route:
        route.sendto(header + body, (0, 0))
        (error,) = struct.unpack_from("i", route.recv(4096), 16)
    if error:
        raise OSError(-error, f"cannot move {name}: {os.strerror(-error)}")
