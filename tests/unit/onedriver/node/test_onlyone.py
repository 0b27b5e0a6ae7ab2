# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import stat
import threading
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import DriverError
from onedriver.node import onlyone
from onedriver.node.onlyone import NotAlone


class OnlyOneTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.name = f"lxdone-test/{os.getpid()}/{id(self)}"

    def test_a_name_is_taken_once_and_free_at_the_end(self) -> None:
        with onlyone.take(self.name):
            self.assertRaises(NotAlone, onlyone.take, self.name)
        onlyone.take(self.name).close()

    def test_the_holder_is_ended_and_waited_for(self) -> None:
        listener, over = onlyone.take(self.name), []

        def hold() -> None:
            connection = onlyone.await_end(listener)
            listener.close()
            over.append(1)
            connection.close()

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        self.assertTrue(onlyone.end(self.name, 60))
        self.assertEqual([1], over)
        self.assertFalse(onlyone.end(self.name, 60))

    def test_one_that_hangs_up_before_the_name_is_free_is_waited_for(self) -> None:
        """As the kernel may close what a process had open in any order."""
        listener = onlyone.take(self.name)
        hung_up = threading.Event()

        def hold() -> None:
            onlyone.await_end(listener).close()
            hung_up.wait(60)
            listener.close()

        threading.Thread(target=hold, daemon=True).start()
        threading.Timer(0.1, hung_up.set).start()
        self.assertTrue(onlyone.end(self.name, 60))
        self.assertNotIn(self.name, onlyone.names())

    def test_a_holder_that_goes_on_is_told(self) -> None:
        with onlyone.take(self.name):
            self.assertIn("did not end", str(self.assertRaises(NotAlone, onlyone.end, self.name, 0.05)))

    def test_a_look_does_not_end_the_holder(self) -> None:
        with onlyone.take(self.name) as listener:
            self.assertTrue(onlyone.is_held(self.name))
            self.assertIn(self.name, onlyone.names())
            for _ in range(2):
                self.assertIsNone(onlyone.asked_to_end(listener))
        self.assertFalse(onlyone.is_held(self.name))

    def test_a_name_of_a_killed_process_is_free(self) -> None:
        pid = os.fork()
        if pid == 0:
            onlyone.take(self.name)
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertTrue(onlyone.path_of(self.name).exists())
        self.assertFalse(onlyone.end(self.name, 60))
        onlyone.take(self.name).close()

    def test_an_ended_process_leaves_no_file(self) -> None:
        listener = onlyone.take(self.name)

        def hold() -> None:
            connection = onlyone.await_end(listener)
            listener.close()
            connection.close()

        threading.Thread(target=hold, daemon=True).start()
        onlyone.end(self.name, 60)
        self.assertFalse(onlyone.path_of(self.name).exists())

    def test_of_many_that_take_a_name_at_once_one_has_it(self) -> None:
        gate, taken = threading.Barrier(8), []

        def work() -> None:
            gate.wait(60)
            with contextlib.suppress(NotAlone):
                taken.append(onlyone.take(self.name))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(1, len(taken))
        taken[0].close()

    def test_a_name_is_no_path(self) -> None:
        for name in ("", "../x", "a//b", "/x", "x" * 200, "a\nb", "a/../b/.."):
            if not onlyone.NAME.fullmatch(name) or len(name) > onlyone.LONGEST:
                self.assertRaises(DriverError, onlyone.take, name)

    def test_directory_that_others_can_write_is_refused(self) -> None:
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(onlyone, "RUN", base / "run"))
        onlyone.take(self.name).close()
        place = onlyone.directory()
        self.assertEqual([0o700] * 2, [stat.S_IMODE(path.stat().st_mode) for path in (place, place.parent)])
        place.chmod(0o777)
        self.assertIn("writable by no other", str(self.assertRaises(DriverError, onlyone.take, self.name)))
