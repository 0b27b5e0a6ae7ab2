# SPDX-License-Identifier: Apache-2.0
import os
import struct

from nova_lxd_ext import conf
from nova_lxd_ext.storage import configdrive, directories
from tests.unit.nova import records
from tests.unit.nova.test_lifecycle import LifecycleTest

conf.register()


class DirectoryTest(LifecycleTest):
    def test_only_the_containers_root_reads_the_drive(self) -> None:
        configdrive.write(records.instance(config_drive="True"), (), None, None)
        configdrive.let_read(records.UUID, 100000)
        home = directories.of(records.UUID)
        modes = {str(path.relative_to(home)): path.stat().st_mode & 0o777 for path in (home, *home.rglob("*"))}
        self.assertEqual({".": 0o700, "configdrive": 0o750, "configdrive/openstack": 0o750,
                          "configdrive/openstack/latest": 0o750,
                          "configdrive/openstack/latest/meta_data.json": 0o640}, modes)
        allowed = os.getxattr(home / "configdrive/openstack/latest/meta_data.json", "system.posix_acl_access")
        self.assertIn(struct.pack("<HHI", 2, 4, 100000), allowed)  # user, read, id
