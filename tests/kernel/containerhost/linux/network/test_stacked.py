# SPDX-License-Identifier: Apache-2.0
"""Interfaces of other network namespaces that stand on one of this namespace, on the real kernel."""

import subprocess
import sys

import testtools

from tests.commands import ROOT

# In ``other``: a macvlan of d0 that was made there, a macvtap that was moved there, and the peer of a veth.
PREPARE = """
mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add other && ip netns add empty
ip link add d0 type veth peer name d1
ip link add link d0 netns other name m0 type macvlan
ip link add link d0 name t0 type macvtap && ip link set t0 netns other
ip link add w0 type veth peer name w1 netns other
"""
TELL = """
import socket
from containerhost.linux.network import stacked
numbers = {name: number for number, name in socket.if_nameindex()}
found = stacked.elsewhere()
print(sorted(found.get(numbers["d0"], ())), found.get(numbers["d1"], ()), found.get(numbers["w0"]))
"""


class StackedTest(testtools.TestCase):
    def test_interfaces_of_named_namespaces_are_found(self) -> None:
        command = ["unshare", "--net", "--mount", "sh", "-ec", f'{PREPARE}exec "$0" -c "$1"', sys.executable, TELL]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        expected = [f"{name} in network namespace /run/netns/other" for name in ("m0", "t0")]
        peer = ("w1 in network namespace /run/netns/other",)
        self.assertEqual(f"{expected} () {peer}\n", done.stdout, done.stderr)
