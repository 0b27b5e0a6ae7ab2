# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import stat
import threading
from pathlib import Path

import fixtures
import testtools

from onedriver.errors import DriverError
from onedriver.node import single_instance
from onedriver.node.single_instance import AlreadyRunning


class SingleInstanceTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.name = f"lxdone-test/{os.getpid()}/{id(self)}"

    def test_a_name_is_taken_once_and_free_at_the_end(self) -> None:
        with single_instance.take(self.name):
            self.assertRaises(AlreadyRunning, single_instance.take, self.name)
        single_instance.take(self.name).close()

    def test_the_holder_is_ended_and_waited_for(self) -> None:
        listener, over = single_instance.take(self.name), []

        def hold() -> None:
            connection = single_instance.await_end(listener)
            listener.close()
            over.append(1)
            connection.close()

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        self.assertTrue(single_instance.end(self.name, 60))
        self.assertEqual([1], over)
        self.assertFalse(single_instance.end(self.name, 60))

    def test_one_that_hangs_up_before_the_name_is_free_is_waited_for(self) -> None:
        """As the kernel may close what a process had open in any order."""
        listener = single_instance.take(self.name)
        hung_up = threading.Event()

        def hold() -> None:
            single_instance.await_end(listener).close()
            hung_up.wait(60)
            listener.close()

        threading.Thread(target=hold, daemon=True).start()
        threading.Timer(0.1, hung_up.set).start()
        self.assertTrue(single_instance.end(self.name, 60))
        self.assertNotIn(self.name, single_instance.names())

    def test_a_holder_that_goes_on_is_told(self) -> None:
        with single_instance.take(self.name):
            self.assertIn("did not end", str(self.assertRaises(AlreadyRunning, single_instance.end, self.name, 0.05)))

    def test_a_look_does_not_end_the_holder(self) -> None:
        with single_instance.take(self.name) as listener:
            self.assertTrue(single_instance.is_held(self.name))
            self.assertIn(self.name, single_instance.names())
            for _ in range(2):
                self.assertIsNone(single_instance.asked_to_end(listener))
        self.assertFalse(single_instance.is_held(self.name))

    def test_a_name_of_a_killed_process_is_free(self) -> None:
        pid = os.fork()
        if pid == 0:
            single_instance.take(self.name)
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertTrue(single_instance.path_of(self.name).exists())
        self.assertFalse(single_instance.end(self.name, 60))
        single_instance.take(self.name).close()

    def test_an_ended_process_leaves_no_file(self) -> None:
        listener = single_instance.take(self.name)

        def hold() -> None:
            connection = single_instance.await_end(listener)
            listener.close()
            connection.close()

        threading.Thread(target=hold, daemon=True).start()
        single_instance.end(self.name, 60)
        self.assertFalse(single_instance.path_of(self.name).exists())

    def test_of_many_that_take_a_name_at_once_one_has_it(self) -> None:
        gate, taken = threading.Barrier(8), []

        def work() -> None:
            gate.wait(60)
            with contextlib.suppress(AlreadyRunning):
                taken.append(single_instance.take(self.name))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(1, len(taken))
        taken[0].close()

    def test_a_name_is_no_path(self) -> None:
        for name in ("", "../x", "a//b", "/x", "x" * 200, "a\nb", "a/../b/.."):
            if not single_instance.NAME.fullmatch(name) or len(name) > single_instance.LONGEST:
                self.assertRaises(DriverError, single_instance.take, name)

    def test_directory_that_others_can_write_is_refused(self) -> None:
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(single_instance, "RUN", base / "run"))
        single_instance.take(self.name).close()
        place = single_instance.directory()
        self.assertEqual([0o700] * 2, [stat.S_IMODE(path.stat().st_mode) for path in (place, place.parent)])
        place.chmod(0o777)
        self.assertIn("writable by no other", str(self.assertRaises(DriverError, single_instance.take, self.name)))
