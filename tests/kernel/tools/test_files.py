# SPDX-License-Identifier: Apache-2.0
import tarfile

from tests.unit.tools.test_files import FilesCase
from tools.cloud import image


class FilesTest(FilesCase):
    def test_the_image_is_a_unified_tarball_that_boots(self) -> None:
        with tarfile.open(image.build(self.directory / "image.tar.gz")) as tar:
            names = tar.getnames()
            self.assertEqual("metadata.yaml", names[0])
            self.assertTrue(tar.getmember("rootfs/bin/busybox").isfile())
            self.assertEqual("/bin/busybox", tar.getmember("rootfs/sbin/init").linkname)
            self.assertEqual({0}, {member.uid for member in tar.getmembers()})
            self.assertEqual(len(names), len(set(names)))
