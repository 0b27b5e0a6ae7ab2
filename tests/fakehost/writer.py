# SPDX-License-Identifier: Apache-2.0
"""Writes entries into the /sys, /proc and /dev of the emulated host's namespace: nodes are nodes, attributes act."""

import os
import stat
from collections.abc import Callable

from tests.fakehost import linux
from tests.fakehost.attributes import Attribute, Attributes
from tests.fakehost.entries import Action, Entry, Node, Writer


class LiveWriter(Writer):
    """
    :ivar read: what reading an action's file gives; set before the first action is written
    :ivar act: what writing it does
    """

    read: Callable[[Action], str]
    act: Callable[[Action, str], None]

    def __init__(self, attributes: Attributes) -> None:
        super().__init__("/")
        self._attributes = attributes

    def node(self, path: str, entry: Node) -> None:
        os.mknod(path, stat.S_IFCHR, os.makedev(entry.major, entry.minor))
        os.chmod(path, entry.mode)

    def action(self, path: str, entry: Action) -> None:
        if os.path.exists(path):  # only the value for readers has changed, which is computed on each read
            return
        attribute = Attribute(entry.mode, lambda: self.read(entry), lambda text: self.act(entry, text))
        super().action(path, entry)
        linux.mount(self._attributes.add(attribute), path, flags=linux.MS_BIND)

    def unlink(self, path: str, entry: Entry) -> None:
        if isinstance(entry, Action):
            linux.unmount(path)
        super().unlink(path, entry)
