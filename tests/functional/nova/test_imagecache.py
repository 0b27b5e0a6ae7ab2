# SPDX-License-Identifier: Apache-2.0
"""Nova's upkeep of the image cache on a real image store."""

import gzip
import io
import tarfile
from typing import ClassVar

import fixtures

from nova_lxd_ext.image.images import IMAGE_ID
from tests.functional.nova import base


class ImageCacheTest(base.LxdServers):
    #: The age counts in whole seconds and an image is older than none at once.
    options: ClassVar = {("image_cache", "remove_unused_original_minimum_age_seconds"): 0}

    def setUp(self) -> None:
        super().setUp()
        self._delete_images()  # of tests before this one
        self.addCleanup(self._delete_images)
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.image.images.BOOTING", 0.0))

    def stored(self) -> set[str]:
        return {image.properties[IMAGE_ID] for image in self.lxd.store.having(IMAGE_ID)}

    def content(self, name: str) -> bytes:
        """Return a root file system with a file of this name: the same content would be one image in the store."""
        content = io.BytesIO(gzip.decompress(self.lxd.images["tar.gz"].read_bytes()))
        with tarfile.open(fileobj=content, mode="a") as archive:
            archive.addfile(tarfile.TarInfo(name))
        return content.getvalue()

    def manage(self) -> None:
        """As the periodic task does."""
        self.computes[base.HOST].manager._run_image_cache_manager_pass(base.nova_context.get_admin_context())

    def test_images_are_fetched_ahead_and_go_when_nobody_uses_them(self) -> None:
        first, second = (self.image("tar", self.content(name)) for name in ("first", "second"))
        foreign = self.lxd.imported()
        aggregate = self.admin_api.post_aggregate({"aggregate": {"name": "rack"}})
        self.admin_api.add_host_to_aggregate(aggregate["id"], base.HOST)
        self.admin_api.api_post(f"/os-aggregates/{aggregate['id']}/images",
                                {"cache": [{"id": first}, {"id": second}]}, check_response_status=[202])
        self._wait_for_assert(lambda: self.assertEqual({first, second}, self.stored()), max_retries=60)

        server = self.server(image=first)
        self.manage()
        self.assertEqual({first}, self.stored())
        self._delete_server(server)
        self.manage()
        self.assertEqual(set(), self.stored())
        self.assertEqual(foreign, self.lxd.store.find("busybox").fingerprint)
