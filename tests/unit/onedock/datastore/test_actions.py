# SPDX-License-Identifier: Apache-2.0
import errno
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import zstandard

from onedock.datastore import actions, archives, store
from onedock.datastore.content import Content, Layer, WrongArchitecture
from onedock.datastore.decompress import Corrupt
from onedock.datastore.digests import DigestMismatch, SizeMismatch
from onedock.datastore.record import Record
from onedock.datastore.room import RESERVE, TooLarge
from onedock.datastore.store import OLD, Store
from onedriver.errors import BadInput, NotSupported
from tests.unit.onedock.datastore.base import DatastoreTestCase
from tests.unit.onedock.images import Image, compressed, digest, tarball, write
from tests.unit.onedock.messages import message
from tests.unit.onedriver.samples import sample

METACHARACTERS = ("; touch /tmp/x", "$(id)", "`id`", "' \" |&", "-rf", "a\nEOT\nb", "../../etc")


class ImagesTest(DatastoreTestCase):
    def test_every_form_becomes_the_same_image(self) -> None:
        image = Image()
        layout = image.layout()
        for number, path in enumerate((
            self.file(image.saved(), "saved.tar"), self.file(gzip.compress(image.saved()), "saved.tar.gz"),
            self.file(lzma.compress(image.saved()), "saved.tar.xz"),
            self.file(zstandard.compress(image.saved()), "saved.tar.zst"), self.file(tarball(layout), "oci.tar"),
            self.file(tarball(image.layout(zstandard.compress)), "oci-zstd.tar"),
            self.file(tarball(image.layout(bytes)), "oci-plain.tar"), write(self.files / "layout", layout),
        ), 1):
            source = self.registered(path)
            record = Record.read(source)
            self.assertEqual((image.id, str(path)), (record.image, record.reference))
            directory = self.base / ".images" / (record.directory or "")
            self.assertEqual(image.config, (directory / "config.json").read_bytes())
            for layer in image.layers:
                self.assertEqual(layer, (directory / digest(layer).partition(":")[2]).read_bytes())
            self.assertEqual({digest(layer): number + 1 for layer in image.layers}, self.layers())

    def test_a_damaged_image_can_be_removed_and_keeps_no_datastore_from_being_monitored(self) -> None:
        damaged, other = (self.registered(self.file(Image("base", own).saved(), own)) for own in ("a", "b"))
        damaged.write_text("")
        with mock.patch.object(store, "OLD", -1):
            self.assertIn("FREE_MB", self.act("monitor"))
            self.assertEqual([2, 2, 3], sorted(self.layers().values()))
            self.act("rm", {"SOURCE": str(damaged)})
            self.act("monitor")
        self.assertEqual(([2, 2], True), (sorted(self.layers().values()), other.exists()))

    def test_a_layer_is_there_once_and_as_long_as_an_image_has_it(self) -> None:
        first, second = (self.registered(self.file(Image("base", own).saved(), own)) for own in ("a", "b"))
        self.assertEqual([2, 2, 3], sorted(self.layers().values()))
        third, _ = self.act("clone", {"PATH": str(first)}).split()
        self.assertEqual([2, 3, 4], sorted(self.layers().values()))
        for source, layers in ((first, [2, 2, 3]), (second, [2, 2]), (third, [])):
            self.act("rm", {"SOURCE": str(source)})
            self.assertEqual(layers, sorted(self.layers().values()))
        self.assertEqual([], self.left())

    def test_layer_of_another_image_is_not_had_by_its_digest(self) -> None:
        secret = Image("secret")
        self.registered(self.file(secret.saved()))
        before = self.left()
        forged = self.file(secret.saved({"0/layer.tar": tarball({"file": b"mine"})}), "forged")
        self.assertRaises(DigestMismatch, self.act, "cp", {"PATH": str(forged)})
        self.assertEqual(before, self.left())

    def test_layers_are_fetched_anew_from_a_registry_that_nobody_named(self) -> None:
        """It may be a tenant's, and name a layer of which it has the digest alone."""
        image, opened = Image("secret"), mock.MagicMock(side_effect=BadInput("there is no layer"))
        layers = (Layer(opened, digest(image.layers[0]), 1000),)
        found = Content(image.config, layers, "docker://host/tool:1", 1000)
        self.registered(self.file(image.saved()))
        with mock.patch("onedock.datastore.registry.Registry.content", return_value=found):
            for path, attributes in (("docker://r.example/tool:1", {"ONEDOCK_HOSTS": "r.example"}),
                                     ("docker://r.example/tool:1", {"ONEDOCK_PLAIN_HOSTS": "r.example"}),
                                     ("docker://tool:1", {})):
                self.act("cp", {"PATH": path}, **attributes)
            opened.assert_not_called()
            self.assertRaises(BadInput, self.act, "cp", {"PATH": "docker://r.example/tool:1"})
        opened.assert_called_once()

    def test_a_layer_that_an_image_has_twice(self) -> None:
        source = self.registered(self.file(Image("same", "other", "same").saved()))
        self.assertEqual([2, 2], list(self.layers().values()))
        self.act("rm", {"SOURCE": str(source)})
        self.assertEqual([], self.left())

    def test_a_link_in_an_archive_is_followed_within_it(self) -> None:
        # docker save writes a layer that an image has twice as a link.
        image = Image("same", "same")
        self.registered(self.file(image.saved(links={"1/layer.tar": "../0/layer.tar"})))
        self.act("rm", {"SOURCE": str(next(self.base.glob("*.image")))})
        image = Image("one", "two")
        for target in ("../../../../etc/passwd", "../1/layer.tar", "/etc/passwd"):
            self.assert_refused(Corrupt, "", self.file(image.saved(links={"1/layer.tar": target})))

    def test_another_architecture_is_refused(self) -> None:
        other = Image(architecture="s390x")
        for path in (self.file(other.saved(), "a"), self.file(tarball(other.layout()), "b"),
                     write(self.files / "layout", other.layout())):
            self.assert_refused(WrongArchitecture, "s390x", path)
        self.registered(self.files / "a", ONEDOCK_ARCHITECTURE="s390x")

    def test_a_damaged_archive_is_refused(self) -> None:
        image = Image("x" * 20000)
        saved, packed = image.saved(), gzip.compress(image.saved())
        config = f"{image.id.partition(':')[2]}.json"
        for content in (b"", b"#!/bin/sh\n", saved[:len(saved) // 2], packed[:len(packed) // 2],
                        packed[:20] + b"x" + packed[21:], tarball({}), tarball({"manifest.json": b"{"}),
                        tarball({"manifest.json": b"[" * 100_000}), image.saved(images=[]), image.saved(images=[7]),
                        image.saved(images={"Config": config}), image.saved(images=[{"Config": config, "Layers": [7]}]),
                        image.saved(images=[{"Config": config, "Layers": ["missing"]}]),
                        image.saved(images=[{"Config": config, "Layers": []}]),
                        image.saved({"manifest.json": json.dumps([{"Config": "other", "Layers": []}]).encode(),
                                     "other": b'{"rootfs": {"diff_ids": ["../../etc/passwd"]}}'}),
                        tarball({"index.json": b'{"manifests": [{"digest": "sha256:../../../x", "size": 1}]}'}),
                        tarball({"index.json": b'{"manifests": 7}'})):
            self.assert_refused(Corrupt, "", self.file(content))

    def test_layer_larger_than_its_manifest_says_is_refused(self) -> None:
        image = Image(os.urandom(20000).hex())
        real = image.blobs

        def smaller(pack: Any = compressed) -> tuple[dict[str, bytes], dict[str, Any]]:
            blobs, manifest = real(pack)
            manifest["layers"][0]["size"] = 1  # which OpenNebula's quota would count
            return blobs, manifest

        self.registered(write(self.files / "layout", image.layout()))
        self.act("rm", {"SOURCE": str(next(self.base.glob("*.image")))})
        with mock.patch.object(image, "blobs", smaller):
            self.assert_refused(SizeMismatch, "more bytes than", write(self.files / "smaller", image.layout()))

    def test_another_content_than_the_digest_says_is_refused(self) -> None:
        image, other = Image("one"), Image("other")
        layout = image.layout()
        (layer,) = (name for name, content in layout.items() if content == compressed(image.layers[0]))
        for content in (image.saved({"0/layer.tar": other.layers[0]}),
                        image.saved({f"{image.id.partition(':')[2]}.json": image.config + b" "}),
                        tarball(layout | {layer: compressed(other.layers[0])}),
                        tarball(layout | {layer: layout[layer][:-9]}),
                        tarball(layout | {f"blobs/{image.id.replace(':', '/')}": b"{}"})):
            self.assert_refused(DigestMismatch, "", self.file(content))

    def test_an_archive_of_several_images_is_refused(self) -> None:
        image = Image()
        config = f"{image.id.partition(':')[2]}.json"
        self.assert_refused(BadInput, "contains 2 images", self.file(image.saved(images=[{"Config": config}] * 2)))

    def test_only_files_of_safe_directories(self) -> None:
        other = Path(self.useFixture(fixtures.TempDir()).path)
        (other / "archive").write_bytes(Image().saved())
        (self.files / "link").symlink_to(other / "archive")
        (self.files / "directory").symlink_to(other)
        write(self.files / "layout", Image().layout())
        (self.files / "layout/index.json").unlink()
        (self.files / "layout/index.json").symlink_to(other / "archive")
        os.mkfifo(self.files / "pipe")
        outside = f"{self.files}{'/..' * len(self.files.parts)}/etc/passwd"
        for path in (other / "archive", self.files / "link", self.files / "directory", outside, self.files / "layout"):
            self.assert_refused(BadInput, "SAFE_DIRS", path)
        self.assert_refused(BadInput, "not a regular file", self.files / "pipe")
        for path in ("relative", "ftp://host/x", "", "docker:/x"):
            self.assertRaises(BadInput, self.act, "cp", {"PATH": path})

    def test_shell_metacharacters_stay_text(self) -> None:
        for text in METACHARACTERS:
            for path in (f"docker://{text}", f"{self.files}/{text}", text):
                self.assertRaises(BadInput, self.act, "cp", {"PATH": path})
            path = self.file(Image().saved(), text.replace("/", "_").replace("\n", "_"))
            self.act("rm", {"SOURCE": str(self.registered(path))})
            self.assertRaises(BadInput, self.act, "rm", {"SOURCE": f"{self.base}/{text}.image/../../x"})
        self.assertEqual([], self.left())

    def test_a_disk_that_is_full_leaves_nothing(self) -> None:
        path = self.file(Image().saved())
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            error = self.assertRaises(OSError, self.act, "cp", {"PATH": str(path)})
        self.assertEqual(errno.ENOSPC, error.errno)
        self.assertEqual([], self.left())

    def test_an_image_that_unpacks_to_more_than_the_limit_is_refused(self) -> None:
        """In every form, also where each step alone would be within it: nothing is left."""
        image = Image("x" * (1 << 20))
        whole, limit = image.saved(), {"ONEDOCK_IMAGE_LIMIT": "1"}
        write(self.files / "layout", image.layout())
        for path in (self.file(whole, "plain"), self.file(gzip.compress(whole), "gz"),
                     self.file(lzma.compress(whole), "xz"), self.file(zstandard.compress(whole), "zst"),
                     self.file(tarball(image.layout()), "oci"), self.files / "layout"):
            self.assert_refused(TooLarge, "ONEDOCK_IMAGE_LIMIT is 1 MiB", path, **limit)
            self.assertEqual([], list((self.base / ".partial").iterdir()))
        self.registered(self.files / "plain", ONEDOCK_IMAGE_LIMIT="2")

    def test_an_image_that_would_fill_the_datastore_is_refused(self) -> None:
        path = self.file(gzip.compress(Image("x" * (1 << 20)).saved()))
        full = mock.Mock(f_frsize=4096, f_blocks=1 << 24, f_bavail=(RESERVE + (1 << 20)) // 4096)
        with mock.patch("os.statvfs", return_value=full):
            self.assert_refused(TooLarge, "1 MiB of it are free beside a reserve", path)

    def test_holes_of_sparse_files_in_a_layer_are_limited(self) -> None:
        """Docker writes them as zeros, beside every quota."""
        for form in (tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE):
            image = Image()
            image.layers[1] = sparse(1 << 40, form)
            self.assert_refused(TooLarge, "holes", self.file(image.saved()))
            image.layers[1] = sparse(1 << 20, form)
            self.act("rm", {"SOURCE": str(self.registered(self.file(image.saved())))})

    def test_a_layer_that_is_no_tarball_is_refused(self) -> None:
        image = Image()
        image.layers[0] = image.layers[0][:600]
        self.assert_refused(Corrupt, "a layer of", self.file(image.saved()))

    def test_only_images_of_the_datastore_are_removed(self) -> None:
        outside = self.file(b"x", "outside.image")
        for source in (outside, self.base / "../outside.image", self.base / ".layers", "/",
                       f"{self.base}/x.raw/../../y"):
            self.assertRaises(BadInput, self.act, "rm", {"SOURCE": str(source)})
        self.act("rm", {"SOURCE": f"{self.base}/{'0' * 32}.image"})
        self.act("rm")
        self.assertTrue(outside.exists())

    def test_exported_it_is_an_archive_of_the_same_image(self) -> None:
        image = Image("base", "more", "base")
        source = self.registered(self.file(image.saved()))
        found = self.act("export", {"SOURCE": str(source)})
        path = Path(found.partition("<IMPORT_SOURCE>")[2].partition("</")[0])
        self.assertIn(f"<DISPOSE_CMD>rm -f -- {path}</DISPOSE_CMD>", found)
        shutil.move(path, self.files / "exported.tar")
        again = self.registered(self.files / "exported.tar")
        self.assertEqual(image.id, Record.read(again).image)
        self.assertEqual([3, 3], list(self.layers().values()))

    def test_what_a_killed_process_left_is_swept_when_it_is_old(self) -> None:
        kept = self.registered(self.file(Image("kept").saved()))
        before = self.left()
        store = Store(self.base)
        for name in ("left", "young"):
            write(store.base / ".images" / name, {"config.json": b"{}"})
            write(store.base / ".partial" / name, {"image": b"x"})
        for path in (store.base / ".images/left", store.base / ".partial/left", store.base / ".layers",
                     *(store.base / ".layers").iterdir()):
            os.utime(path, (time.time() - 2 * OLD,) * 2)
        self.act("monitor")
        self.assertEqual([".images/young/config.json", ".partial/young/image"], sorted(set(self.left()) - set(before)))
        self.assertTrue(kept.exists())
        with store.scratch() as directory:
            os.utime(directory, (time.time() - 2 * OLD,) * 2)
            store.sweep()
            self.assertTrue(directory.exists())

    def test_clone_of_an_old_image_is_not_swept_before_its_record(self) -> None:
        first = self.registered(self.file(Image("kept").saved()))
        before = time.time() - 2 * OLD
        os.utime(self.base / ".images" / str(Record.read(first).directory), (before, before))
        write_record = Store.put_record

        def swept(store: Store, path: Path, record: Record) -> None:
            store.sweep()
            write_record(store, path, record)

        with mock.patch.object(Store, "put_record", swept):
            second, _ = self.act("clone", {"PATH": str(first)}).split()
        self.assertTrue((self.base / ".images" / str(Record.read(Path(second)).directory) / "config.json").exists())


def sparse(size: int, form: bytes) -> bytes:
    """Return a tarball with a file of one hole, as GNU tar writes it.

    :param form: type of its first header: in the old format its own, else of an extended one
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        member = tarfile.TarInfo("sparse")
        if form == tarfile.XHDTYPE:
            member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "sparse",
                                  "GNU.sparse.realsize": str(size)}
            entries = b"0\n".ljust(512, b"\0")
            member.size = len(entries)
            archive.addfile(member, io.BytesIO(entries))
        else:
            member.type = form
            block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
            block[483:495] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
            raw.write(bytes(block))
    return raw.getvalue()


class DataTest(DatastoreTestCase):
    def made(self, **image: str) -> Path:
        return Path(self.act("mkfs", {"TYPE": "2"} | image))

    def test_one_that_cannot_be_made_is_refused(self) -> None:
        for attributes in ({"FS": "swap"}, {"FS": "ext4; id"}, {"FORMAT": "qcow2"}, {"TYPE": "1"}, {"SIZE": "0"}):
            self.assertRaises((BadInput, NotSupported), self.made, **attributes)
        self.assertEqual([], self.left())

    def test_the_place_of_what_will_be_saved(self) -> None:
        self.assertEqual([".raw", ".image"], [self.made(FORMAT="save_as", TYPE=kind).suffix for kind in ("2", "0")])
        self.assertEqual([], self.left())

    def test_a_file_of_data_is_copied_and_its_zeros_are_not(self) -> None:
        content = b"begin" + bytes(8 << 20) + b"end" + bytes(1 << 20)
        source, _ = self.act("cp", {"PATH": str(self.file(content)), "TYPE": "2"}).split()
        for path in (source, self.act("clone", {"PATH": source}).split()[0]):
            self.assertEqual(content, Path(path).read_bytes())
            self.assertLess(Path(path).stat().st_blocks * 512, 4 << 20)

    def test_a_file_of_the_web_that_is_larger_than_the_limit_is_refused(self) -> None:
        answer = mock.MagicMock(status_code=200, is_redirect=False, raw=io.BytesIO(bytes(2 << 20)))
        answer.__enter__.return_value = answer
        with mock.patch("requests.Session.get", return_value=answer):
            error = self.assertRaises(TooLarge, self.act, "cp", {"TYPE": "2", "PATH": "http://example.org/data"},
                                      ONEDOCK_IMAGE_LIMIT="1")
        self.assertIn("ONEDOCK_IMAGE_LIMIT", str(error))
        self.assertEqual([], self.left())


class CallTest(DatastoreTestCase):
    def test_a_recorded_call(self) -> None:
        call = actions.call(sample("datastore_cp.xml"))
        self.assertEqual((Path("/var/lib/one/datastores/101"), ("/var/tmp/images",), "/var/tmp/images/disk.raw", 16),
                         (call.base, call.options.safe_directories, call.path, call.about.size))
        self.assertEqual((None, None), (call.about.source, call.about.format))

    def test_sizes(self) -> None:
        path = self.file(b"x" * ((2 << 20) + 1))
        self.assertEqual("3", self.act("stat", {"PATH": str(path)}))
        self.assertEqual("1", self.act("stat", {"PATH": str(write(self.files / "layout", Image().layout()))}))

    def test_free_space(self) -> None:
        lines = self.act("monitor").splitlines()
        self.assertEqual(["USED_MB", "FREE_MB", "TOTAL_MB"], [line.partition("=")[0] for line in lines])
        self.assertTrue(all(line.partition("=")[2].isdecimal() for line in lines))

    def test_what_cannot_be_a_call_is_refused(self) -> None:
        whole = message(self.base)
        for action, argv, stdin in (("other", ["7"], whole), ("cp", [], whole), ("cp", ["7", "8"], whole),
                                    ("cp", ["7"], b""), ("cp", ["7"], whole[:300]),
                                    ("cp", ["7"], b"<DS_DRIVER_ACTION_DATA/>")):
            self.assertRaises((BadInput, NotSupported), actions.act, action, argv, stdin)
        self.assertRaises(NotSupported, self.act, "cp", {"TYPE": "3", "PATH": str(self.file(b"x"))})

    def test_an_archive_of_too_many_files_is_refused(self) -> None:
        with mock.patch.object(archives, "MEMBERS_LIMIT", 3):
            self.assert_refused(BadInput, "more than 3 files", self.file(Image().saved()))
