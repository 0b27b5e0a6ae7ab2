import os
import threading
from unittest import mock

import testtools

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

    def test_nobody_ends_what_belongs_to_another_user(self) -> None:
        with onlyone.take(self.name), mock.patch.object(os, "getuid", return_value=os.getuid() + 4321):
            self.assertIn("who alone can end it", str(self.assertRaises(NotAlone, onlyone.end, self.name, 0.05)))
