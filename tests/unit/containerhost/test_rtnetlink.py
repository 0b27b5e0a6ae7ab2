"""Messages to the kernel and its answers; what it does with them the functional tests try."""

import errno
import socket
from collections.abc import Sequence

import testtools

from containerhost.errors import HostActionFailed
from containerhost.network import addresses, links, rtnetlink


class Kernel:
    """Answers with what it was given, a datagram for each."""

    def __init__(self, datagrams: Sequence[bytes]) -> None:
        self._datagrams = list(datagrams)

    def recv(self, size: int) -> bytes:
        return self._datagrams.pop(0)


def message(kind: int, body: bytes) -> bytes:
    length = rtnetlink.HEADER.size + len(body)
    return rtnetlink.HEADER.pack(length, kind, 0, 1, 0) + body + bytes(rtnetlink.aligned(length) - length)


class AnswersTest(testtools.TestCase):
    def test_several_in_one_datagram_and_in_several(self) -> None:
        done = message(rtnetlink.DONE, bytes(4))
        kernel = Kernel([message(16, b"one!!") + message(16, b"two"), message(16, b"three"), done])
        self.assertEqual([b"one!!", b"two", b"three"], list(rtnetlink.answers(kernel)))
        self.assertEqual([], list(rtnetlink.answers(Kernel([message(rtnetlink.ERROR, bytes(20))]))))

    def test_a_refusal_is_the_kernels(self) -> None:
        refusal = message(rtnetlink.ERROR, (-errno.EEXIST).to_bytes(4, "little", signed=True) + bytes(16))
        error = self.assertRaises(OSError, list, rtnetlink.answers(Kernel([refusal])))
        self.assertEqual(errno.EEXIST, error.errno)

    def test_the_real_one_tells_of_the_loopback_interface(self) -> None:
        found = rtnetlink.link(index=socket.if_nametoindex("lo"))
        (told,) = rtnetlink.ask("look at lo", rtnetlink.GET_LINK, 0, found)
        self.assertEqual("", links.kind_of(told))
        self.assertEqual(b"lo\0", rtnetlink.attributes(told[rtnetlink.LINK.size:])[links.NAME_OF])

    def test_one_that_is_not_there(self) -> None:
        nowhere = rtnetlink.link(index=0x7FFFFFF0)
        error = self.assertRaises(HostActionFailed, rtnetlink.ask, "look", rtnetlink.GET_LINK, 0, nowhere)
        self.assertEqual("cannot look: No such device", str(error))
        self.assertEqual((), rtnetlink.ask("look", rtnetlink.GET_LINK, 0, nowhere, errno.ENODEV))
        self.assertRaises(HostActionFailed, links.set_up, "nowhere0", True)
        links.remove_veth("nowhere0")


class AttributesTest(testtools.TestCase):
    def test_they_are_read_as_they_are_written(self) -> None:
        written = rtnetlink.text(3, "eth0") + rtnetlink.number(4, 1500) + rtnetlink.attribute(0x8000 | 18, b"x")
        self.assertEqual({3: b"eth0\0", 4: (1500).to_bytes(4, "little"), 18: b"x"}, rtnetlink.attributes(written))
        self.assertEqual(0, len(written) % 4)

    def test_damaged_ones_come_to_an_end(self) -> None:
        self.assertEqual({7: b""}, rtnetlink.attributes(bytes([0, 0, 7, 0])))

    def test_addresses_and_routes(self) -> None:
        self.assertEqual(bytes([2, 24, 0, 0, 5, 0, 0, 0]), addresses.message(5, "10.0.0.1/24")[:8])
        self.assertEqual(bytes([10, 64, 2, 0, 5, 0, 0, 0]), addresses.message(5, "fd00::1/64")[:8])
        found = rtnetlink.attributes(addresses.route(5, "10.0.0.1", 7)[rtnetlink.ROUTE.size:])
        self.assertEqual({4: b"\5\0\0\0", 5: bytes([10, 0, 0, 1]), 6: b"\7\0\0\0"}, found)
