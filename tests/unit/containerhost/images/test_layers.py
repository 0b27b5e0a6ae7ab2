# SPDX-License-Identifier: Apache-2.0
"""Archives of container images are rebuilt by the digests of their parts, whatever they say about themselves."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile

import testtools
import zstandard

from containerhost.images import layers
from containerhost.images.errors import BadImage
from containerhost.images.members import Stream
from containerhost.images.writer import Writer
from tests.unit.containerhost.images import imagekit

LAYERS = (b"first layer", b"second layer")


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


CONFIG = json.dumps({"rootfs": {"diff_ids": [digest(LAYERS[0]), digest(LAYERS[1]), digest(LAYERS[0])]}}).encode()


class LayersTest(testtools.TestCase):
    def rebuilt(self, content: bytes, image: str = digest(CONFIG)) -> dict[str, bytes]:
        target = io.BytesIO()
        layers.rebuild(Stream(io.BytesIO(content), 1 << 30), Writer(target), image)
        target.seek(0)
        with tarfile.open(fileobj=target) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}

    def test_one_image_without_a_name_in_any_order_and_layout(self):
        hostile = json.dumps([{"Config": "../../etc/passwd", "RepoTags": ["debian:12"], "Layers": ["/etc/shadow"]}])
        for names in (("a.json", "1/layer.tar", "2/layer.tar"), ("blobs/sha256/x", "/y", "/z")):
            files = dict(zip(names, (CONFIG, *LAYERS), strict=True))
            for content in (files | {"manifest.json": hostile.encode()},
                            {"manifest.json": hostile.encode(), "repositories": b"{}"} | dict(reversed(files.items()))):
                found = self.rebuilt(self.archive(content))
                (image,) = json.loads(found.pop("manifest.json"))
                self.assertIsNone(image["RepoTags"])
                self.assertEqual(CONFIG, found[image["Config"]])
                self.assertEqual([LAYERS[0], LAYERS[1], LAYERS[0]], [found[name] for name in image["Layers"]])
                self.assertTrue(all(name.isdecimal() for name in found))

    def archive(self, files: dict[str, bytes]) -> bytes:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as target:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                target.addfile(member, io.BytesIO(content))
        return raw.getvalue()

    def test_what_lacks_a_part_is_refused(self):
        whole = {"a": CONFIG, "b": LAYERS[0], "c": LAYERS[1]}
        for words, files in (("does not contain the image", {"b": LAYERS[0]}), ("lacks the layer", {"a": CONFIG}),
                             ("lacks the layer", whole | {"c": LAYERS[1] + b"x"})):
            self.assertIn(words, str(self.assertRaises(BadImage, self.rebuilt, self.archive(files))))
        for config in (b"{}", b"[]", b"no JSON", b'{"rootfs": {"diff_ids": [1]}}', b'{"rootfs": {"diff_ids": 7}}'):
            error = self.assertRaises(BadImage, self.rebuilt, self.archive({"a": config}), digest(config))
            self.assertIn("does not name its layers", str(error))
        self.assertIn("damaged", str(self.assertRaises(BadImage, self.rebuilt, self.archive(whole)[:1300])))
        self.assertIn("contains more than", str(self.assertRaises(
            BadImage, self.rebuilt, imagekit.tar({str(number): b"" for number in range(layers.FILES_LIMIT + 1)}))))

    def test_packed_layers_are_refused(self):
        """Docker would unpack them as far as there is room before it compares the digest, which is theirs as packed."""
        for compress in (gzip.compress, lzma.compress, bz2.compress, zstandard.compress,
                         lambda content: b"\x50\x2a\x4d\x18\0\0\0\0" + zstandard.compress(content)):
            layer = compress(bytes(100_000))
            config = json.dumps({"rootfs": {"diff_ids": [digest(layer)]}}).encode()
            error = self.assertRaises(BadImage, self.rebuilt, self.archive({"a": layer, "b": config}), digest(config))
            self.assertIn("is packed", str(error))
