# SPDX-License-Identifier: Apache-2.0
import os
import threading
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import charnodes
from containerhost.linux.process import namespaces


class LimitedTest(testtools.TestCase):
    def test_in_another_thread_which_is_over(self) -> None:
        seen: list[threading.Thread] = []
        namespaces.limited(lambda: seen.append(threading.current_thread()), "oops")
        self.assertIsNot(threading.current_thread(), seen[0])
        self.assertFalse(seen[0].is_alive())

    def test_what_the_kernel_refuses_is_told(self) -> None:
        absent = f"{self.useFixture(fixtures.TempDir()).path}/absent"
        error = self.assertRaises(HostActionFailed, namespaces.limited, lambda: os.stat(absent), "cannot do it")
        self.assertEqual("cannot do it: No such file or directory", str(error))
        self.assertRaises(ZeroDivisionError, namespaces.limited, lambda: 1 // 0, "oops")
        self.assertRaises(HostActionFailed, namespaces.within, absent, lambda: None)

    def test_what_never_ends_is_left_when_its_time_is_over(self) -> None:
        over = threading.Event()
        self.addCleanup(over.set)
        error = self.assertRaises(HostActionFailed, namespaces.limited, over.wait, "cannot do it", 0.1)
        self.assertEqual("cannot do it: not done within 0.1 s", str(error))


class RootTest(testtools.TestCase):
    def test_a_map_of_ids(self) -> None:
        table = Path(self.useFixture(fixtures.TempDir()).path) / "map"
        table.write_text("      1000     70000          1\n         0     100000      1000\n")
        self.assertEqual(100000, charnodes.mapped_root(str(table)))
        table.write_text("      1000     70000          1\n")
        self.assertRaises(HostActionFailed, charnodes.mapped_root, str(table))

    def test_this_process_has_the_hosts_users(self) -> None:
        self.assertFalse(charnodes.has_own_users(os.getpid()))
