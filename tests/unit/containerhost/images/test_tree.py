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

    def test_nothing_lies_below_what_is_no_directory(self) -> None:
        for kind, more in ((Kind.FILE, {}), (Kind.SYMLINK, {"link": "/"}), (Kind.DEVICE, {})):
            tree = Tree()
            tree.place(member("a", "b", kind=kind, **more))
            error = self.assertRaises(BadImage, tree.place, member("a", "b", "c"))
            self.assertIn("lies below 'a/b', which is no directory", str(error))
            self.assertIn("twice", str(self.assertRaises(BadImage, tree.place, member("a", "b"))))

    def test_hard_links_lead_to_what_comes_before(self) -> None:
        tree = Tree()
        tree.place(member("a", "link", kind=Kind.SYMLINK, link="x"))
        found = tree.place(member("b", kind=Kind.HARD_LINK, target=("a", "link")))
        self.assertEqual((Kind.SYMLINK, "x"), (found.kind, found.link) if found else None)
        for target in (("a",), ("none",), ("a", "link", "more"), ()):
            self.assertRaises(BadImage, tree.place, member("c", kind=Kind.HARD_LINK, target=target))
