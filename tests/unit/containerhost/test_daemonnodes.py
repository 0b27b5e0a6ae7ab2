# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost import charnodes
from containerhost.errors import HostActionFailed
from containerhost.process import daemonnodes


class NamesTest(testtools.TestCase):
    def test_device_and_path(self):
        for name, found in (
            ("unix.gpu--0000--3b--00--0.dev-dri-card0", ("gpu-0000-3b-00-0", "/dev/dri/card0")),
            ("unix.node-a.dev-nvidia--uvm--tools", ("node/a", "/dev/nvidia-uvm-tools")),
            ("unix.x.dev-a.b", ("x", "/dev/a.b")),
        ):
            self.assertEqual(found, daemonnodes.parted(name))

    def test_whose_directory_it_is(self):
        self.assertRaises(HostActionFailed, daemonnodes.home, os.getpid())
        self.assertRaises(HostActionFailed, daemonnodes.home, 1 << 30)


class ForgetTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        home = Path(self.useFixture(fixtures.TempDir()).path)
        self.directory = home / "devices/c1"
        self.directory.mkdir(parents=True)
        self.useFixture(fixtures.MockPatchObject(daemonnodes, "home", lambda server: str(home)))

    def names(self):
        return sorted(path.name for path in self.directory.iterdir())

    def test_only_what_the_daemon_does_not_know_goes(self):
        kept = ["disk.x.dev-a", "unix.known.dev-nvidiactl"]
        for name in (*kept, "unix.gone.dev-nvidia0", "unix.gone.dev-nvidiactl"):
            (self.directory / name).symlink_to("/dev/null")
        kept.append("unix.volume.dev-vdb")  # no character node
        (self.directory / kept[-1]).touch()
        real = os.stat
        with mock.patch.object(charnodes, "take") as take, \
                mock.patch("os.stat", side_effect=lambda path, **more: real(path)):
            self.assertEqual(2, daemonnodes.forget(7, "c1", 99, ["known"]))
        # What a device has that the daemon knows stays in the container.
        self.assertEqual([mock.call(99, "/dev/nvidia0", (1, 3))], take.mock_calls)
        self.assertEqual(kept, self.names())

    def test_nothing_there(self):
        self.assertEqual((0, 0), (daemonnodes.forget(7, "c1", 99, []), daemonnodes.forget(7, "c2", 99, [])))
