# SPDX-License-Identifier: Apache-2.0
"""Images that attack the host, through the cache and the real LXD into a container that starts."""

import gzip
import hashlib
import threading
from pathlib import Path
from typing import Any

import fixtures
import testtools
from nova import exception
from nova.objects.image_meta import ImageMeta
from oslo_utils import units, uuidutils

from containerhost.engines.lxd.images import Images
from containerhost.engines.spec import CloudInit, ContainerSpec, Cpu, Memory, RootDisk
from nova_lxd_ext.image import images
from tests import hostileimages, levels
from tests.functional.lxd import POOL, Lxd
from tests.unit.containerhost.images import imagekit

SECRET = "architecture: secret\ncreation_date: 5\n"
HANGS = 120  # s
USER_DATA = "\nssh-ed25519 of the tenant\n"


class Glance:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def download(self, context: Any, id_or_uri: str, data: Any = None, dest_path: Any = None,
                 trusted_certs: Any = None) -> None:
        Path(dest_path).write_bytes(self._content)


class TestHostileImages(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.lxd = self.useFixture(Lxd())
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.victim = self.directory / "host" / "victim"
        self.victim.parent.mkdir()
        self.victim.write_text(SECRET)
        self.good = self.lxd.images["unified"]
        self.addCleanup(self._delete_images)

    def _delete_images(self) -> None:
        for image in self.lxd.store.having(images.IMAGE_ID):
            self.lxd.store.delete(image.fingerprint)

    def fetch(self, content: bytes, root_gb: int = 1) -> str | None:
        """:returns: the image's fingerprint; None where it was refused"""
        meta = ImageMeta.from_dict({"id": uuidutils.generate_uuid(), "checksum": hashlib.md5(content).hexdigest()})
        cache = images.Cache(Images(self.lxd.daemon.client()), Glance(content), self.directory / "images",
                             lambda: self.lxd.engine.server().architectures)
        try:
            return cache.ensure(None, meta, root_gb)
        except exception.ImageUnacceptable:
            return None

    def test_padding_of_one_image_makes_no_other_with_the_same_root_larger(self) -> None:
        """LXD has one image for both, and what is remembered of it."""
        content = gzip.compress(imagekit.unified())
        padded = content + gzip.compress(bytes(64 * units.Mi), 1)
        self.assertEqual(self.fetch(padded, 2), self.fetch(content))
        self.assertEqual(self.fetch(content), self.fetch(padded, 2))
        self.assertEqual(1, len(self.lxd.store.having(images.IMAGE_ID)))
        (image,) = self.lxd.store.having(images.IMAGE_ID)
        self.assertLess(int(image.properties[images.UNPACKED]), units.Mi)

    def boot(self, content: bytes) -> Path | None:
        """Boot as far as it goes.

        :returns: where the container's root is; None where there is no container
        """
        fingerprint = self.fetch(content)
        if fingerprint is None:
            return None
        self.addCleanup(self.lxd.engine.delete, "c1")
        self.lxd.engine.create(ContainerSpec(name="c1", image=fingerprint, cpu=Cpu(1), memory=Memory(128 * units.Mi),
                                             root=RootDisk(POOL), cloud_init=CloudInit(user_data=USER_DATA)))
        self.lxd.engine.start("c1")
        return Path(f"/proc/{self.lxd.engine.client.state('c1')['pid']}/root")

    def attack(self, name: str, content: bytes) -> None:
        done: list[Path | Exception | None] = []

        def work() -> None:
            try:
                done.append(self.boot(content))
            except Exception as error:
                done.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(HANGS)
        self.assertFalse(thread.is_alive(), f"{name}: the boot hangs")
        self.assertEqual(SECRET, self.victim.read_text(), f"{name}: the host's file was written")
        self.assertEqual([self.victim], list(self.victim.parent.iterdir()), f"{name}: a file of the host is new")
        self.assertNotIsInstance(done[0], Exception, name)
        if isinstance(done[0], Path):
            metadata = self.lxd.engine.client.get("instances", "c1", "metadata", asked="read its metadata")
            self.assertNotEqual("secret", metadata["architecture"], f"{name}: the host's file was read")
            found = done[0] / "etc/read"
            self.assertFalse(found.exists(), f"{name}: the host's file was read")
        self.lxd.engine.delete("c1")

    def test_a_far_date_in_one_of_two_metadata_files_leaves_the_store_readable(self) -> None:
        self.fetch(hostileimages.dated(self.good))
        # LXD 5.0 fails to list, read and delete an image of such a date.
        for image in self.lxd.engine.client.images():
            self.assertEqual(image, self.lxd.engine.client.image(image["fingerprint"]))

    def test_device_nodes_are_left_out(self) -> None:
        root = self.boot(hostileimages.devices(self.good))
        assert root is not None
        self.assertEqual([], list((root / "root").iterdir()))


def test_of(name: str) -> Any:
    def test(self: TestHostileImages) -> None:
        build = hostileimages.ATTACKS[name]
        self.attack(name, build(hostileimages.Builder(self.good), str(self.victim)).done())
    return test


ATTACKS = levels.some("hostile images of nova", tuple(hostileimages.ATTACKS), range(0, len(hostileimages.ATTACKS), 2))
for attack in ATTACKS:
    setattr(TestHostileImages, f"test_no_way_out_by_{attack.replace(' ', '_')}", test_of(attack))
