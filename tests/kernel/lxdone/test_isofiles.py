# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import subprocess
import tarfile

from containerhost.linux.run import MEMORY
from lxdone.disk import isofiles
from onedriver.errors import DriverError, NotSupported
from tests.unit.lxdone.test_isofiles import IsoFilesCase, entry


class IsoFilesTest(IsoFilesCase):
    def test_what_takes_it_apart_is_nobody_and_sees_programs_only(self) -> None:
        self.directory.mkdir()
        told = subprocess.check_output(isofiles.alone(self.directory, 20, "sh", "-c", "ulimit -v; id -u; ls /"),
                                       text=True)
        memory, user, *directories = told.split()
        self.assertEqual((str(MEMORY >> 10), "65534"), (memory, user))
        self.assertLessEqual(set(directories), {"usr", "lib", "lib64"})
        self.assertEqual([], os.listdir(self.directory))

    def test_a_list_of_the_hosts_files_shows_none(self) -> None:
        """bsdtar takes it for an archive, and would open what it names."""
        text = b"#mtree\n./stolen type=file contents=/etc/passwd\n./own type=dir\n#"
        self.iso.write_bytes(text.ljust(32769, b"x") + b"CD001\n")
        try:
            isofiles.extract(self.iso, self.directory, 20)
        except DriverError as error:
            self.assertIn("cannot be", str(error))
        found = [path for path in self.directory.rglob("*") if path.is_file() and path.stat().st_size]
        self.assertEqual([], found)
        self.assertFalse(os.path.ismount(self.directory))

    def test_directories_are_never_deeper_than_can_be_removed(self) -> None:
        deep = [entry("a/" * depth, tarfile.DIRTYPE) for depth in range(1, 1100)]
        self.addCleanup(subprocess.run, ["rm", "-rf", str(self.directory)], check=True)
        self.assertRaises(NotSupported, self.extract, *deep)
        self.extract(*deep[:isofiles.DEPTH])
        shutil.rmtree(self.directory)
