# SPDX-License-Identifier: Apache-2.0
"""Archives of images get what a container wrote; that Docker takes them is tried on a real one."""

import errno
import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import layerwriter, writtenlayer
from containerhost.engines.docker.images import HOLES_LIMIT, Images, within_quota
from containerhost.engines.docker.layerwriter import UNBOUNDED, Bounds
from containerhost.errors import EngineError
from containerhost.images import layers
from containerhost.images.errors import BadImage
from containerhost.images.members import Stream
from containerhost.images.writer import Writer
from tests.unit.onedock.images import Image, digest

DESCRIBED = {"Config": {"Cmd": ["/bin/true"], "Env": ["A=b"]}, "Created": "2026-01-02T03:04:05Z"}
STATUS = [["Backing Filesystem", "extfs"], ["Native Overlay Diff", "true"]]


class AppendTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.archive, self.upper = base / "archive", base / "upper"
        (self.upper / "etc").mkdir(parents=True)
        (self.upper / "etc/new").write_text("new")
        (self.upper / "etc/link").symlink_to("/etc/shadow")
        (self.upper / "outside").symlink_to("/etc")
        (self.upper / "etc/.wh.passwd").write_text("not one of overlayfs")
        (self.upper / "hard").hardlink_to(self.upper / "etc/new")

    def appended(self, content: bytes) -> tuple[str, dict[str, bytes]]:
        """Return the image's id, and its parts as the engine gets them."""
        self.archive.write_bytes(content)
        image = writtenlayer.append(self.archive, self.upper, DESCRIBED).image
        rebuilt = io.BytesIO()
        with self.archive.open("rb") as file:
            layers.rebuild(Stream(file, 1 << 30), Writer(rebuilt), image)
        rebuilt.seek(0)
        with tarfile.open(fileobj=rebuilt) as parts:
            found = {member.name: parts.extractfile(member).read() for member in parts}  # type: ignore[union-attr]
        return image, found

    def parts(self, content: bytes) -> tuple[dict[str, Any], list[bytes]]:
        """Return the configuration and the layers."""
        image, found = self.appended(content)
        (manifest,) = json.loads(found["manifest.json"])
        self.assertEqual(image, digest(found[manifest["Config"]]))
        return json.loads(found[manifest["Config"]]), [found[name] for name in manifest["Layers"]]

    def test_attribute_that_cannot_be_read_fails(self) -> None:
        """It may say that a directory hides what the image has there."""
        self.useFixture(fixtures.MockPatch("os.getxattr", side_effect=OSError(errno.EIO, "Input/output error")))
        self.assertRaises(OSError, self.appended, Image().saved())

    def test_image_has_one_more_layer_and_the_containers_configuration(self) -> None:
        image = Image()
        config, found = self.parts(image.saved())
        self.assertEqual(image.layers, found[:-1])
        self.assertEqual([digest(layer) for layer in found], config["rootfs"]["diff_ids"])
        self.assertEqual((DESCRIBED["Config"], "linux"), (config["config"], config["os"]))

    def test_layer_follows_no_link_and_hides_nothing_that_overlayfs_does_not(self) -> None:
        _, found = self.parts(Image().saved())
        with tarfile.open(fileobj=io.BytesIO(found[-1])) as layer:
            members = {member.name: (member.type, member.linkname) for member in layer}
        first, second = sorted(("./etc/new", "./hard"), key=list(members).index)  # as the file system has them
        self.assertEqual({"./etc": (tarfile.DIRTYPE, ""), "./etc/link": (tarfile.SYMTYPE, "/etc/shadow"),
                          first: (tarfile.REGTYPE, ""), second: (tarfile.LNKTYPE, first),
                          "./outside": (tarfile.SYMTYPE, "/etc")}, members)

    def test_layer_does_not_begin_like_a_compressed_file(self) -> None:
        """Docker would decompress it."""
        self.upper = self.upper / "etc/opt"
        self.upper.mkdir()
        (self.upper / "BZh").touch()
        _, found = self.parts(Image().saved())
        self.assertTrue(found[-1].startswith(b"./BZh\0"))

    def test_further_layer_has_what_changed_and_an_archive_of_its_own(self) -> None:
        image = Image()
        self.archive.write_bytes(image.saved())
        first = writtenlayer.append(self.archive, self.upper, began=time.time_ns() + 2 * layerwriter.SETTLED)
        (self.upper / "etc/new").unlink()
        second = writtenlayer.append(self.archive, self.upper, before=first.entries)
        self.assertEqual(image.config, json.dumps(self.configuration(self.archive, second.image, 2)).encode())
        rebuilt = io.BytesIO()
        with self.archive.open("rb") as file:
            file.seek(second.offset)
            present = self.configuration(self.archive, first.image)["rootfs"]["diff_ids"]
            layers.rebuild(Stream(file, 1 << 30), Writer(rebuilt), second.image, present)
        rebuilt.seek(0)
        with tarfile.open(fileobj=rebuilt) as parts:
            (manifest,) = json.load(parts.extractfile("manifest.json"))  # type: ignore[arg-type]
            self.assertEqual([layers.ABSENT] * 3, manifest["Layers"][:-1])
            with tarfile.open(fileobj=parts.extractfile(manifest["Layers"][-1])) as layer:
                self.assertEqual({"./etc", "./etc/.wh.new", "./hard"}, set(layer.getnames()))
        with self.archive.open("rb") as file:
            file.seek(second.offset)
            self.assertRaises(BadImage, layers.rebuild, Stream(file, 1 << 30), Writer(io.BytesIO()), second.image)

    def configuration(self, archive: Path, image: str, without: int = 0) -> dict[str, Any]:
        """Return an image's configuration in an archive, without its last layers."""
        with tarfile.open(archive) as found:
            text = next(data for member in found if digest(data := found.extractfile(member).read()) == image)
        config = json.loads(text)
        del config["rootfs"]["diff_ids"][len(config["rootfs"]["diff_ids"]) - without:]
        return dict(config)

    def test_it_can_be_appended_to_again(self) -> None:
        first = self.parts(Image().saved())[1]
        (self.upper / "more").write_text("more")
        second = self.parts(self.archive.read_bytes())[1]
        self.assertEqual(first, second[:-1])


class FlattenTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.archive = Path(self.useFixture(fixtures.TempDir()).path) / "archive"
        root = io.BytesIO()
        with tarfile.open(fileobj=root, mode="w", format=tarfile.PAX_FORMAT) as content:
            for name, size in (("a", 600), ("b" * 300, 0), ("zeros", 2048)):
                info = tarfile.TarInfo(name)
                info.size = size
                content.addfile(info, io.BytesIO(bytes(size)))
            self.end = content.offset
        self.root = root.getvalue()[:self.end + 1024]  # as Docker ends it

    def flatten(self, root: bytes, bounds: Bounds = UNBOUNDED) -> str:
        described = DESCRIBED | {"Architecture": "amd64", "Os": "linux"}
        return writtenlayer.flatten(self.archive, described, lambda layer: layer.write(root), bounds)

    def test_root_is_the_only_layer(self) -> None:
        image = self.flatten(self.root)
        rebuilt = io.BytesIO()
        with self.archive.open("rb") as file:
            layers.rebuild(Stream(file, 1 << 30), Writer(rebuilt), image)
        with tarfile.open(self.archive) as saved, tarfile.open(
                fileobj=saved.extractfile("written-0.tar")) as layer:  # type: ignore[arg-type]
            self.assertEqual([".", "a", "b" * 300, "zeros"], layer.getnames())

    def test_export_that_ends_early_is_refused(self) -> None:
        """Docker ends its answer as usual where it cannot read on, perhaps with a message."""
        for end in (0, 100, 512, 1024, 1536, 2000, 2048, self.end - 1024, self.end, self.end + 512, self.end + 700):
            for message in (b"", b'{"message":"input/output error"}\n'):
                self.assertRaises(tarfile.TarError, self.flatten, self.root[:end] + message)

    def test_no_more_is_written_than_there_is_room(self) -> None:
        size = 512 + len(self.root)
        self.flatten(self.root, Bounds(size))
        self.assertEqual(errno.ENOSPC, self.assertRaises(OSError, self.flatten, self.root, Bounds(size - 1)).errno)

    def test_quota_limits_what_holes_become(self) -> None:
        for quota, below, size in ((None, 0, 1 << 40), ("1000", 10, HOLES_LIMIT + 1010), (str(1 << 50), 0, 1 << 40)):
            container = {"HostConfig": {"StorageOpt": quota and {"size": quota}}}
            self.assertEqual(Bounds(size, print), within_quota(container, Bounds(1 << 40, print), below))

    def test_saved_image_that_ends_early_is_refused(self) -> None:
        client = mock.Mock()
        client.save_image.side_effect = lambda image, target: target.write(self.root)
        images = Images(client)
        images.save("image", self.archive)
        self.assertEqual(self.root, self.archive.read_bytes())
        self.root = self.root[:-1024]
        self.assertRaises(EngineError, images.save, "image", self.archive)


class UpperDirectoryTest(testtools.TestCase):
    def test_only_what_a_layer_has_is_read(self) -> None:
        upper = Path(self.useFixture(fixtures.TempDir()).path)
        info = {"DriverStatus": STATUS, "SecurityOptions": ["name=seccomp,profile=default"]}
        container = {"GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": str(upper)}}}
        self.assertEqual(upper, writtenlayer.upper_directory(info, container))
        for other in ({"DriverStatus": [["Native Overlay Diff", "false"]]}, {"DriverStatus": None},
                      {"DriverStatus": [*STATUS, ["Using metacopy", "true"]]},
                      {"SecurityOptions": ["name=userns"]}, {"SecurityOptions": ["name=rootless"]}):
            self.assertIsNone(writtenlayer.upper_directory(info | other, container))
        for driver in ({"Name": "vfs", "Data": None}, None,
                       {"Name": "overlay2", "Data": {"UpperDir": f"{upper}/none"}}):
            self.assertIsNone(writtenlayer.upper_directory(info, {"GraphDriver": driver}))
