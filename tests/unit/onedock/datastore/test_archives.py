# SPDX-License-Identifier: Apache-2.0
"""Tarballs of images that were made to keep the front-end busy, and links as older `docker save` writes them."""

import io
import json
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost.engines.docker import writtenlayer
from onedock.datastore import archives, content
from onedock.datastore.archives import Tarball
from onedock.datastore.decompress import Corrupt
from onedock.datastore.image_sources import unpacked
from onedock.datastore.room import Room
from onedriver.errors import BadInput
from tests.unit.containerhost.images.test_headers import END, extended, header, record
from tests.unit.onedock import images
from tests.unit.onedock.images import Image, digest


def tarball(*members: tarfile.TarInfo) -> Tarball:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(member.name.encode().ljust(member.size)))
    return Tarball(raw, "an archive")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


class WrittenTest(testtools.TestCase):
    def test_layer_that_a_node_appended_is_part_of_the_image(self) -> None:
        """Docker since version 25 writes an index, too, which names the image without it."""
        image = Image()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        (base / "upper").mkdir()
        for more in ({}, image.layout()):
            file = base / "archive"
            file.write_bytes(image.saved(more))
            written = writtenlayer.append(file, base / "upper").image
            with file.open("rb") as archive:
                found = archives.read(Tarball(archive, "it"), image.architecture, "it")
            self.assertEqual((written, 3), (digest(found.config), len(found.layers)))


class TarballTest(testtools.TestCase):
    def content(self, archive: Tarball, path: str) -> bytes:
        with archive.open(path) as file:
            return file.read(100)

    def test_header_that_is_searched_in_quadratic_time(self) -> None:
        raw = io.BytesIO(extended(record("comment", b"9" * 900)) + header() + END)
        self.assertIn("255 digits", str(self.assertRaises(Corrupt, Tarball, raw, "an archive")))

    def test_header_that_leads_back(self) -> None:
        raw = io.BytesIO(extended(record("size", b"-1024")) + header() + END)
        self.assertRaises(Corrupt, Tarball, raw, "an archive")

    def test_header_that_leads_behind_the_end(self) -> None:
        raw = io.BytesIO(header(size=4 << 30) + END)
        self.assertRaises(Corrupt, Tarball, raw, "an archive")

    def test_attributes_are_not_kept(self) -> None:
        raw = self.enterContext(tempfile.TemporaryFile())
        attributes = b"".join(record(f"SCHILY.xattr.user.{number}", b"x" * 65000) for number in range(15))
        for number in range(20):
            raw.write(extended(attributes) + header(f"{number}"))
        raw.write(END)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        archive = Tarball(raw, "an archive")
        self.assertLess(tracemalloc.get_traced_memory()[0], len(attributes) // 2)
        self.assertTrue(archive.has("19"))

    def test_files_and_links(self) -> None:
        archive = tarball(member("a/layer.tar", size=20), member("b", tarfile.DIRTYPE),
                          member("b/layer.tar", tarfile.SYMTYPE, "../a/layer.tar"),
                          member("c", tarfile.LNKTYPE, "b/layer.tar"), member("./d", size=10))
        for path in ("a/layer.tar", "b/layer.tar", "c", "./c", "b/../c"):
            self.assertEqual(b"a/layer.tar".ljust(20), self.content(archive, path), path)
        self.assertEqual(b"./d".ljust(10), self.content(archive, "d"))
        self.assertFalse(archive.has("e"))

    def test_parts_are_read_side_by_side(self) -> None:
        archive = tarball(member("a", size=8), member("b", size=8))
        with archive.open("a") as first, archive.open("b") as second:
            pieces = [file.read(4) for file in (first, second, first, second, first)]
        self.assertEqual([b"a   ", b"b   ", b"    ", b"    ", b""], pieces)

    def test_links_that_lead_nowhere(self) -> None:
        archive = tarball(member("loop", tarfile.SYMTYPE, "loop"), member("out", tarfile.SYMTYPE, "../../etc/passwd"),
                          member("dir", tarfile.DIRTYPE))
        for path in ("loop", "out", "dir", "none"):
            self.assertRaises(Corrupt, self.content, archive, path)


class PlatformsTest(testtools.TestCase):
    """Archives that hold several names or several platforms."""

    def setUp(self) -> None:
        super().setUp()
        self.wanted, self.other = Image(), Image("another", architecture="s390x")

    def read(self, *top: dict[str, Any], saved: Image | None = None, without: Image | None = None,
             **more: bytes) -> content.Content:
        files = dict(more)
        for image in (self.wanted, self.other):
            if image is not without:
                files |= image.layout()
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": list(top)}).encode()
        if saved is not None:
            manifest = saved.blobs()[1]
            files["manifest.json"] = json.dumps([{
                "Config": archives.path_of(digest(saved.config)), "RepoTags": ["a:1"],
                "Layers": [archives.path_of(layer["digest"]) for layer in manifest["layers"]]}]).encode()
        raw = io.BytesIO(images.tarball(files))
        found = archives.read(Tarball(raw, "an archive"), content.own_architecture(), "an archive")
        found.require(content.own_architecture())
        return found

    def described(self, image: Image, name: str = "", platform: bool = True) -> dict[str, Any]:
        found = images.descriptor(json.dumps(image.blobs()[1]).encode(), "application/vnd.oci.image.manifest.v1+json")
        found |= {"platform": {"os": "linux", "architecture": image.architecture}} if platform else {}
        return found | ({"annotations": {"org.opencontainers.image.ref.name": name}} if name else {})

    def test_two_names_of_one_image(self) -> None:
        found = self.read(self.described(self.wanted, "1"), self.described(self.wanted, "latest"))
        self.assertEqual(self.wanted.id, found.image)

    def test_two_images_are_refused(self) -> None:
        error = self.assertRaises(BadInput, self.read, self.described(self.wanted, "1"),
                                  self.described(self.other, "2", platform=False))
        self.assertIn("contains 2 images", str(error))

    def test_saved_on_another_machine_with_both_platforms(self) -> None:
        found = self.read(self.described(self.wanted), self.described(self.other), saved=self.other)
        self.assertEqual(self.wanted.id, found.image)

    def test_saved_on_another_machine_without_this_platform(self) -> None:
        self.assertRaises(content.WrongArchitecture, self.read, self.described(self.wanted),
                          self.described(self.other), saved=self.other, without=self.wanted)

    def test_images_of_apptainer_are_named(self) -> None:
        manifest = self.wanted.blobs()[1]
        manifest["layers"][0]["mediaType"] = "application/vnd.sylabs.sif.layer.v1.sif"
        error = self.assertRaises(BadInput, content.layers_of, manifest, "app")
        self.assertIn("app is Apptainer's SIF", str(error))
        with tempfile.TemporaryFile() as file:
            file.write(b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\x00" + bytes(100))
            file.seek(0)
            error = self.assertRaises(BadInput, unpacked(file, Path("/nowhere"), "app.sif", Room(1, 1)).__enter__)
        self.assertIn("app.sif is Apptainer's SIF", str(error))
