from typing import Any

import testtools

from containerhost.errors import DeviceInUse
from containerhost.privileged import Privileged
from containerhost.spec import BlockDevice
from containerhost.storage.withholding import withheld

DISK = BlockDevice("v", "/dev/null", "/dev/vdb")  # any node will do


class Root(Privileged):
    def __init__(self, users: tuple[str, ...] = ()) -> None:
        self.done: list[str] = []
        self._users = users

    def withhold_block(self, pid: int, path: str, number: Any) -> None:
        self.done.append("withhold")

    def restore_block(self, pid: int, path: str, number: Any, mode: int) -> None:
        self.done.append(f"restore {path} {number} {mode:o}")

    def block_users(self, pid: int, path: str, number: Any) -> tuple[str, ...]:
        self.done.append("look")
        return self._users


class WithheldTest(testtools.TestCase):
    def enter(self, root: Root, disk: BlockDevice = DISK, failure: Exception | None = None) -> None:
        with withheld(root, 7, disk, 0o600):
            root.done.append("block")
            if failure:
                raise failure

    def test_nobody_can_open_it_before_it_is_known_that_nobody_has(self) -> None:
        root = Root()
        self.enter(root)
        self.assertEqual(["withhold", "look", "block", "restore /dev/vdb (1, 3) 600"], root.done)

    def test_a_device_in_use_is_given_back(self) -> None:
        root = Root(users=("process 9 (dd)",))
        self.assertIn("process 9 (dd)", str(self.assertRaises(DeviceInUse, self.enter, root)))
        self.assertEqual(["withhold", "look", "restore /dev/vdb (1, 3) 600"], root.done)

    def test_it_is_given_back_after_a_failure(self) -> None:
        root = Root()
        self.assertRaises(KeyError, self.enter, root, failure=KeyError())
        self.assertEqual("restore /dev/vdb (1, 3) 600", root.done[-1])

    def test_a_device_that_is_gone_from_the_host_is_in_nobodys_hands(self) -> None:
        root = Root()
        self.enter(root, BlockDevice("v", "/dev/no-such-device", "/dev/vdb"))
        self.assertEqual(["block"], root.done)
