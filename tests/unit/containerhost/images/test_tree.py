# SPDX-License-Identifier: Apache-2.0
"""Names of an image's members that were made to keep a node busy."""

import time

import testtools

from containerhost.images import members
from containerhost.images.errors import BadImage
from containerhost.images.members import DEPTH_LIMIT, Kind, Member
from containerhost.images.rootfs import TREE_LIMIT, Tree


def member(*path: str, kind: Kind = Kind.DIRECTORY, **more: object) -> Member:
    return Member(path, kind, 0o755, 0, 0, 0, **more)  # type: ignore[arg-type]


class TreeTest(testtools.TestCase):
    def test_depth_is_limited(self) -> None:
        members.components("d/" * DEPTH_LIMIT)
        error = self.assertRaises(BadImage, members.components, "d/" * (DEPTH_LIMIT + 1))
        self.assertIn("more than 256 directories deep", str(error))

    def test_repeated_paths_count(self) -> None:
        """One directory, which a compressed archive has many times for almost no bytes."""
        tree, deep = Tree(), member(*["d" * 200] * 20)
        most = TREE_LIMIT // (201 * 20)
        began = time.process_time()
        for _ in range(most):
            tree.place(deep)
        self.assertRaises(BadImage, tree.place, deep)
        self.assertLess(time.process_time() - began, 20)  # usually 1; a path of each directory above takes minutes

    def test_targets_of_hard_links_count(self) -> None:
        tree = Tree()
        tree.place(member("file", kind=Kind.FILE))
        tree._left = 100
        error = self.assertRaises(BadImage, tree.place, member("a", kind=Kind.HARD_LINK, target=("b" * 100,)))
        self.assertIn("the paths of its members", str(error))
