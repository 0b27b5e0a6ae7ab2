# SPDX-License-Identifier: Apache-2.0
"""Real network interfaces for emulated functions: TAPs, and the fabric between them in user space.

A TAP can be moved into a container like the interface of a real function, and its descriptor tells where it is and
what it is called there, so nothing needs to be remembered about it.
"""

import errno
import itertools
import logging
import os
import select
import socket
import threading
from collections.abc import Callable

from tests.fakehost import linux
from tests.fakehost.nets import ARPHRD_INFINIBAND

LOG = logging.getLogger(__name__)

_IPOIB_MTU = 2044
_BURST = 64
_IPV4, _ARP = 0x0800, 0x0806


class Port:
    """The interface of one function, plugged into a fabric.

    :ivar last_name: what it was called when it was last seen
    :ivar last_mac: its MAC then; what a real interface keeps when its namespace dies
    """

    def __init__(self, name: str, fabric: str, mac: str, infiniband: bool) -> None:
        self.descriptor = linux.open_tap(name)
        self.fabric = fabric
        self.infiniband = infiniband
        self.last_name, self.last_mac = name, mac
        try:
            # Frames of an IPoIB interface have Ethernet headers here, in which the kernel searches this address.
            self.frame_address = linux.tap_mac(self.descriptor)
            if infiniband:
                linux.set_tap_type(self.descriptor, ARPHRD_INFINIBAND)
                linux.set_mtu(name, _IPOIB_MTU)
            else:
                linux.set_mac(name, mac)
        except OSError:
            self.close()
            raise

    def name(self) -> str | None:
        """Its present name in whatever namespace it is; None when it was destroyed together with its namespace."""
        try:
            self.last_name = linux.tap_name(self.descriptor)
            self.last_mac = ":".join(f"{octet:02x}" for octet in linux.tap_mac(self.descriptor))
        except OSError as error:
            if error.errno == errno.EBADFD:
                return None
            raise
        return self.last_name

    def namespace(self) -> int:
        return linux.tap_namespace(self.descriptor)

    def set_up(self) -> None:
        linux.set_up(self.last_name)

    def set_carrier(self, up: bool) -> None:
        linux.set_tap_carrier(self.descriptor, up)

    def close(self) -> None:
        os.close(self.descriptor)


class Switch:
    """Carries frames between the ports of each fabric, and tells when an interface came, went or changed.

    :param changed: called, in the switch's thread, when interfaces of this namespace changed or a port was destroyed
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._ports: dict[int, Port] = {}
        self._places: dict[tuple[str, bytes], Port] = {}
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._events = linux.link_events()
        self._epoll.register(self._events, select.EPOLLIN)

    def start(self) -> None:
        threading.Thread(target=self._run, name="switch", daemon=True).start()

    def plug(self, port: Port) -> None:
        with self._lock:
            self._ports[port.descriptor] = port
            self._epoll.register(port.descriptor, select.EPOLLIN)

    def unplug(self, port: Port) -> None:
        """Take a port out and destroy its interface."""
        with self._lock:
            self._epoll.unregister(port.descriptor)
            del self._ports[port.descriptor]
            self._places = {key: value for key, value in self._places.items() if value is not port}
            port.close()

    def _run(self) -> None:
        while True:
            ready = self._epoll.poll(timeout=0.2)
            changed = False
            with self._lock:
                for descriptor, event in ready:
                    if descriptor == self._events.fileno():
                        changed = True
                        self._drain_events()
                    elif port := self._ports.get(descriptor):
                        changed |= self._forward(port) if event & select.EPOLLIN else True
                if not ready:
                    # A name given in a container is not announced here, and it decides what the interface is called
                    # when it falls back to the host.
                    for port in self._ports.values():
                        changed |= port.name() is None
            if changed:
                self._notify()

    def _notify(self) -> None:
        try:
            self._changed()
        except Exception:
            LOG.exception("the emulated host could not follow a change of its interfaces")

    def _drain_events(self) -> None:
        try:
            while True:
                self._events.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            # Too many at once: some were dropped, but that something changed is all that matters.
            if error.errno != errno.ENOBUFS:
                raise

    def _forward(self, source: Port) -> bool:
        """Carry what has arrived at a port; True when the port turns out to be destroyed."""
        for _ in range(_BURST):
            try:
                frame = os.read(source.descriptor, 65536)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno == errno.EBADFD:
                    return True
                raise
            for port in self._receivers(source, frame):
                self._deliver(port, frame)
        return False

    def _receivers(self, source: Port, frame: bytes) -> list[Port]:
        """All others on the fabric, or on InfiniBand the one that is known to have the frame's IPv4 destination.

        IPoIB interfaces made of TAPs have no hardware address to look at, and flooding would have the host forward
        strangers' packets.
        """
        if source.infiniband:
            protocol = int.from_bytes(frame[12:14], "big")
            if protocol == _ARP:
                address_length = frame[18]
                start = 22 + address_length
                self._places[source.fabric, frame[start : start + 4]] = source
            elif protocol == _IPV4:
                self._places[source.fabric, frame[26:30]] = source
                if (port := self._places.get((source.fabric, frame[30:34]))) and port is not source:
                    return [port]
        return [port for port in self._ports.values() if port is not source and port.fabric == source.fabric]

    @staticmethod
    def _deliver(port: Port, frame: bytes) -> None:
        if port.infiniband and not frame[0] & 1:
            frame = port.frame_address + frame[6:]
        try:
            os.write(port.descriptor, frame)
        except OSError as error:
            # The interface is down, full or just being destroyed: a wire loses such frames too.
            if error.errno not in (errno.EIO, errno.EAGAIN, errno.EBADFD, errno.ENOBUFS):
                raise


def open_port(name: str, fabric: str, mac: str, infiniband: bool) -> Port:
    """A port under the given name, or under the next free ``dev<N>`` when the name is taken."""
    taken = {interface for _, interface in socket.if_nameindex()}
    candidates = itertools.chain((name,), (f"dev{number}" for number in itertools.count()))
    return Port(next(each for each in candidates if each not in taken), fabric, mac, infiniband)


def foreign_namespace() -> int:
    """A new network namespace that belongs to nobody; it lives as long as the returned descriptor."""
    made: list[int] = []

    def make() -> None:
        linux.unshare(linux.CLONE_NEWNET)
        made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    _in_thread(make)
    return made[0]


def bring_back(name: str, namespace: int, home: int) -> None:
    """Move an interface from another network namespace to the one that ``home`` stands for."""

    def move() -> None:
        linux.setns(namespace, linux.CLONE_NEWNET)
        linux.move_interface(name, home)

    _in_thread(move)


def _in_thread(action: Callable[[], None]) -> None:
    """Run something in a thread of its own, because a namespace is entered for good."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
