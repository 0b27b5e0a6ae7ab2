# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver import document, host
from onedriver.errors import BadInput
from tests.unit.onedriver.samples import changed, sample


class HostTest(testtools.TestCase):
    def test_a_recorded_datastore_and_image(self) -> None:
        message = document.parse(sample("datastore_cp.xml"), "DS_DRIVER_ACTION_DATA")
        store, image = host.datastore(message.find("DATASTORE")), host.image(message.find("IMAGE"))
        self.assertEqual((101, "eximg", "IMAGE", "exds", "extm", "/var/lib/one//datastores/101", ("/var/tmp/images",)),
                         (store.id, store.name, store.type, store.ds_mad, store.tm_mad, store.base_path,
                          store.safe_directories))
        self.assertEqual((3, "/var/tmp/images/disk.raw", None, None, 16 << 20),
                         (image.id, image.path, image.source, image.format, image.size))

    def test_an_odd_datastore_is_refused(self) -> None:
        odd = changed("datastore_cp.xml", ("<TYPE>0</TYPE><DISK_TYPE>0</DISK_TYPE><STATE>0</STATE><CLUSTERS>",
                                           "<TYPE>9</TYPE><DISK_TYPE>0</DISK_TYPE><STATE>0</STATE><CLUSTERS>"))
        message = document.parse(odd, "DS_DRIVER_ACTION_DATA")
        self.assertIn("TYPE is 9", str(self.assertRaises(BadInput, host.datastore, message.find("DATASTORE"))))
