# SPDX-License-Identifier: Apache-2.0
"""Require that any archive is rebuilt below one directory, without relying on checks of other programs."""

import io
import stat
import struct
import tarfile

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.images import metadata
from containerhost.images.errors import BadImage
from containerhost.images.members import PATH_LIMIT, Stream
from containerhost.images.rootfs import Rebuild
from containerhost.images.writer import Writer
from tests import levels
from tests.unit.containerhost.images import imagekit

LIMIT = 1 << 30
PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "rootfs", "bin", "\x01", "ü", "\udcff", "-C",
                         "a" * 120])
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
TARGETS = st.one_of(NAMES, st.sampled_from(["/etc", "../../..", "/", "rootfs/a", "a"]))
TYPES = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
                         tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE])
MEMBERS = st.lists(st.tuples(NAMES, TYPES, TARGETS, st.integers(0, 0o7777), st.integers(0, 2 ** 32 - 2)), max_size=12)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0, **values: object) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    for key, value in values.items():
        setattr(found, key, value)
    return found


def archive(*entries: tarfile.TarInfo) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as target:
        for one in entries:
            content = imagekit.METADATA if one.name == "metadata.yaml" and one.size else b"x" * one.size
            target.addfile(one, io.BytesIO(content))
    return raw.getvalue()


def rebuilt(content: bytes) -> bytes:
    target = io.BytesIO()
    Rebuild(Stream(io.BytesIO(content), LIMIT), Writer(target), squashed=False).run()
    return target.getvalue()


def listed(content: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as found:
        return list(found)


ROOT = (entry("bin", tarfile.DIRTYPE), entry("bin/sh", size=3))
UNIFIED = (entry("metadata.yaml", size=len(imagekit.METADATA)), entry("rootfs/bin/sh", size=3))


def accepted(entries: list[tarfile.TarInfo], unified: bool) -> bytes:
    """Return the image rebuilt from those members that are not refused beside the ones before them."""
    kept: list[tarfile.TarInfo] = list(UNIFIED if unified else ROOT)
    result = rebuilt(archive(*kept))
    for one in entries:
        if unified:
            one.name = f"rootfs/{one.name}"
        try:
            result = rebuilt(archive(*kept, one))
        except (BadImage, ValueError):
            continue
        kept.append(one)
    return result


class TestProperties(testtools.TestCase):
    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    @given(MEMBERS, st.booleans())
    def test_every_member_list_becomes_one_tree(self, members, unified):
        with_data = (tarfile.REGTYPE, tarfile.CONTTYPE)
        entries = [entry(name, kind, link, mode=mode, uid=uid, size=5 if kind in with_data else 0)
                   for name, kind, link, mode, uid in members]
        self.assert_one_tree(accepted(entries, unified))

    def assert_one_tree(self, content: bytes) -> None:
        known: dict[str, bytes] = {}
        for member in listed(content):
            parts = member.name.split("/") if member.name != "." else []
            self.assertEqual([], [part for part in parts if part in ("", ".", "..")], member.name)
            self.assertIn(member.type, (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE,
                                        tarfile.FIFOTYPE))
            for end in range(1, len(parts)):
                self.assertIn(known.get("/".join(parts[:end]), tarfile.DIRTYPE), (tarfile.DIRTYPE,))
            if member.islnk():
                self.assertIn(known[member.linkname], (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE))
            if parts:
                self.assertIn(known.setdefault(member.name, member.type), (member.type,))
            self.assertEqual(member.isdir() or known.get(member.name), member.isdir() or member.type)

    @settings(max_examples=levels.budget(gate=120, exhaustive=300), deadline=None)
    @given(st.data())
    def test_damage_anywhere_is_refused_or_harmless(self, data):
        headers = {"SCHILY.xattr.user.a": "b"}
        content = bytearray(archive(*ROOT, entry("usr/" + "x" * 150, size=700, pax_headers=headers),
                                    entry("usr/link", tarfile.SYMTYPE, "x" * 150)))
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        try:
            result = rebuilt(bytes(content))
        except BadImage:
            return
        self.assert_one_tree(result)

    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    @given(st.binary(max_size=3000))
    def test_headers_with_valid_checksums_and_any_content(self, noise):
        header = bytearray(noise[:512].ljust(512, b"\0"))
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        try:
            result = rebuilt(bytes(header) + noise[512:] + archive(*ROOT))
        except BadImage:
            return
        self.assert_one_tree(result)


class TestKept(testtools.TestCase):
    def test_modes_owners_and_links(self):
        content = rebuilt(archive(
            entry(".", tarfile.DIRTYPE, mode=0o755, uid=7), *ROOT,
            entry("usr/x", size=4, mode=0o4711, uid=70000, gid=5),
            entry("./usr/hard", tarfile.LNKTYPE, "/usr/x"), entry("usr/soft", tarfile.SYMTYPE, "../../etc"),
            entry("usr/again", tarfile.LNKTYPE, "usr/soft"), entry("usr/pipe", tarfile.FIFOTYPE),
            entry("dev/sda", tarfile.BLKTYPE), entry("dev/also", tarfile.LNKTYPE, "dev/sda")))
        found = {one.name: one for one in listed(content)}
        self.assertEqual({".", "bin", "bin/sh", "usr/x", "usr/hard", "usr/soft", "usr/again", "usr/pipe"}, set(found))
        self.assertEqual((0o4711, 70000, 5), (found["usr/x"].mode, found["usr/x"].uid, found["usr/x"].gid))
        self.assertEqual(("usr/x", "../../etc"), (found["usr/hard"].linkname, found["usr/soft"].linkname))
        # A hard link to a symbolic link: unpacking one must not follow the other.
        self.assertEqual((tarfile.SYMTYPE, "../../etc"), (found["usr/again"].type, found["usr/again"].linkname))
        self.assertEqual(7, found["."].uid)

    def test_long_and_odd_names(self):
        names = ["usr/" + "d" * 200 + "/" + "f" * 200, "usr/ü", "usr/new\nline", "usr/\udcff\udcfe", "usr/" + "y" * 96]
        found = [one.name for one in listed(rebuilt(archive(*ROOT, *(entry(name) for name in names))))]
        self.assertEqual(["bin", "bin/sh", *names], found)

    def test_attributes_by_an_allow_list(self):
        capability = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0).decode("latin-1")
        headers = {"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.mark": "kept",
                   "SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.security.selinux": "root",
                   "SCHILY.xattr.security.ima": "x", "SCHILY.acl.access": "user::rw-\nuser:5:r--:5\ngroup::r--",
                   "SCHILY.acl.default": "nonsense", "uname": "x", "atime": "5", "comment": "y"}
        (found,) = [one for one in listed(rebuilt(archive(*ROOT, entry("usr/x", pax_headers=headers))))
                    if one.name == "usr/x"]
        self.assertEqual({"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.mark": "kept",
                          "SCHILY.acl.access": headers["SCHILY.acl.access"]}, found.pax_headers)

    def test_capabilities_lose_the_namespace_they_were_for(self):
        version3 = struct.pack("<6I", 0x03000001, 1 << 13, 0, 0, 0, 70000).decode("latin-1")
        for value, kept in ((version3, struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0).decode("latin-1")),
                            ("short", None)):
            headers = {"SCHILY.xattr.security.capability": value}
            found = listed(rebuilt(archive(*ROOT, entry("usr/x", pax_headers=headers))))[-1]
            self.assertEqual(kept, found.pax_headers.get("SCHILY.xattr.security.capability"))

    def test_the_same_image_gives_the_same_bytes(self):
        self.assertEqual(rebuilt(archive(*ROOT)), rebuilt(archive(entry("./bin", tarfile.DIRTYPE), *ROOT[1:])))

    def test_files_of_many_gigabytes(self):
        """The size does not fit into a plain header."""
        stream = io.BytesIO(entry("bin/big", size=9 << 30).tobuf(tarfile.PAX_FORMAT))
        error = self.assertRaises(BadImage, rebuilt, stream.getvalue())
        self.assertIn("ends in a member's data", str(error))


class TestRefused(testtools.TestCase):
    def test_each_with_its_reason(self):
        unified = entry("metadata.yaml", size=0)
        for words, entries in (
                ("is outside of the image", [entry("../x")]),
                ("is outside of the image", [entry("usr/../../x")]),
                ("twice", [entry("usr/x"), entry("usr/x")]),
                ("twice", [entry("usr/x/y"), entry("usr/x", tarfile.SYMTYPE, "/etc")]),
                ("not a directory", [entry("usr/x", tarfile.SYMTYPE, "/etc"), entry("usr/x/passwd")]),
                ("not a directory", [entry("usr/x", tarfile.LNKTYPE, "bin/sh"), entry("usr/x/passwd")]),
                ("not a directory", [entry("usr/x", tarfile.CHRTYPE), entry("usr/x/y")]),
                ("not an earlier file", [entry("usr/x", tarfile.LNKTYPE, "/etc/passwd")]),
                ("not an earlier file", [entry("usr/x", tarfile.LNKTYPE, "bin")]),
                ("unknown type", [entry("usr/x", b"V")]),
                ("no system has", [entry("usr/x", uid=2 ** 32 - 1)]),
                ("no file system could hold", [entry("usr/" + "x" * 256)]),
                ("no file system could hold", [entry("x/" * (PATH_LIMIT // 2) + "x")]),
                ("that a file system could hold", [entry("usr/x", tarfile.SYMTYPE, "x" * (PATH_LIMIT + 1))]),
                ("metadata.yaml twice", [unified, unified]),
                ("not a regular file", [entry("metadata.yaml", tarfile.FIFOTYPE)]),
                ("not a regular file", [entry("metadata.yaml", tarfile.SYMTYPE, "/etc/passwd")]),
                ("root is not a directory", [unified, entry("rootfs", tarfile.SYMTYPE, "/etc")]),
                ("is outside of rootfs/", [unified, entry("rootfs/x", tarfile.LNKTYPE, "metadata.yaml")])):
            error = self.assertRaises(BadImage, rebuilt, archive(*(entries if entries[0].name == "metadata.yaml"
                                                                   else (*ROOT, *entries))))
            self.assertIn(words, str(error))

    def test_headers_about_all_members(self):
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "bin/x"}) as target:
            target.addfile(ROOT[0])
        self.assertIn("type g", str(self.assertRaises(BadImage, rebuilt, raw.getvalue())))

    def test_sparse_maps_that_two_programs_read_differently(self):
        for text in (b"2\n0\n10\n1024\n10\n", b"2\n1024\n512\n0\n512\n", b"1\n0\n999999\n", b"1\n-5\n512\n", b"x\n"):
            headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "4096",
                       "GNU.sparse.name": "usr/x"}
            raw = io.BytesIO()
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as target:
                one = entry("usr/x", size=2048, pax_headers=headers)
                target.addfile(one, io.BytesIO(text.ljust(2048, b"\0")))
            self.assertIn("damaged", str(self.assertRaises(BadImage, rebuilt, raw.getvalue())), text)

    def test_logins_by_user_number_are_left_out_of_a_new_server(self):
        """A host with large user ids has a lastlog of half a TiB, nearly all of it a hole."""
        for above, root in (("", ROOT), ("rootfs/", UNIFIED)):
            raw = io.BytesIO()
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as target:
                for one in root:
                    content = imagekit.METADATA if one.name == "metadata.yaml" else b"x" * one.size
                    target.addfile(one, io.BytesIO(content))
                for name, refused in (("var/log/lastlog", False), ("var/log/x", True)):
                    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": f"{1 << 39}",
                               "GNU.sparse.name": f"{above}{name}"}
                    target.addfile(entry(f"{above}{name}", size=1024, pax_headers=headers, uid=7),
                                   io.BytesIO(b"1\n1048576\n512\n".ljust(512, b"\0") + b"x" * 512))
                    if refused:
                        self.assertIn("holes", str(self.assertRaises(BadImage, rebuilt, raw.getvalue() + bytes(10240))))
                        continue
                    found = {one.name: one for one in listed(rebuilt(raw.getvalue() + bytes(10240)))}[name]
                    self.assertEqual((0, 7, False), (found.size, found.uid, found.issparse()))

    def test_metadata_of_ours_is_what_lxd_reads(self):
        (found,) = listed(metadata.tarball("x86_64"))
        self.assertEqual(("metadata.yaml", 0o644), (found.name, stat.S_IMODE(found.mode)))

    def test_good_images_pass(self):
        for content in (imagekit.unified(), imagekit.rootfs()):
            self.assertIn("bin/sh", [one.name for one in listed(rebuilt(content))])
