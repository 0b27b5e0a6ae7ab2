# SPDX-License-Identifier: Apache-2.0
"""Run oned's actions of a datastore driver on the front-end, as the user oneadmin.

Called as ``ACTION ID`` with a ``<DS_DRIVER_ACTION_DATA>`` document on standard input; what an action returns is its
standard output (OpenNebula's storage driver interface).
"""

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from containerhost.linux.files import replacing
from onedock import datafiles
from onedock.datastore import export, image_sources, limits, options, reference
from onedock.datastore.image import Image, described
from onedock.datastore.options import Options
from onedock.datastore.record import Record
from onedock.datastore.store import DATA, IMAGE, Store
from onedriver import document
from onedriver.errors import BadInput, NotSupported
from onedriver.section import Section

MESSAGE = "DS_DRIVER_ACTION_DATA"
MIB = 1 << 20
FILES = ("CDROM", "DATABLOCK")  # images that are files of data to this driver
# oneimage takes a PATH of a scheme that it does not know for a relative one, and puts the caller's directory before it.
MADE_ABSOLUTE = re.compile(rf"\A/(?:.*?/)?(?={reference.SCHEME})", re.DOTALL)
SAVE_AS = "save_as"  # the format of an image that will be written later, by the transfer driver's cpds


class Call(NamedTuple):
    """Hold one call of the datastore driver: the datastore, its options and the image.

    :ivar base: the datastore's directory
    :ivar image: None for ``monitor``
    """

    base: Path
    options: Options
    image: Image | None

    @property
    def store(self) -> Store:
        return Store(self.base).prepared()

    @property
    def about(self) -> Image:
        if self.image is None:
            raise BadInput("standard input has no IMAGE")
        return self.image

    @property
    def path(self) -> str:
        if self.about.path is None:
            raise BadInput("the image has no PATH: use docker://NAME:TAG, or the address or path of an archive")
        return MADE_ABSOLUTE.sub("", self.about.path)

    @property
    def source(self) -> Path:
        if self.about.source is None:
            raise BadInput("the image has no SOURCE")
        return self.store.known(self.about.source)


def act(action: str, argv: Sequence[str], stdin: bytes) -> str | None:
    """Run one of oned's actions on an image or datastore, and return the output for oned."""
    done = ACTIONS.get(action)
    if done is None:
        raise NotSupported(f"the datastore driver onedock has no action {action!r}")
    if len(argv) != 1:
        raise BadInput(f"{action}: called with {len(argv)} arguments, but oned gives one: an id")
    os.umask(0o027)
    return done(call(stdin))


def call(stdin: bytes) -> Call:
    message = document.parse_either(stdin, MESSAGE)
    found, image = message.find("DATASTORE"), message.find("IMAGE")
    if found is None:
        raise BadInput("standard input has no DATASTORE")
    datastore = Section(found, "DATASTORE")
    template = datastore.section("TEMPLATE")
    if template is None:
        raise BadInput("the datastore has no TEMPLATE")
    return Call(Path(os.path.normpath(datastore.required("BASE_PATH"))), options.read(template),
                None if image is None else described(image))


def cp(call: Call) -> str:
    image, room = call.about, call.store.room(call.options.image_limit)
    if image.type in FILES:
        path = call.store.new(DATA)
        with (call.store.scratch() as scratch, limits.within(limits.TRANSFER, call.path),
              image_sources.file(call.path, call.options, scratch, room) as file):
            datafiles.copy(file, path)
        return f"{path} raw"
    if image.type not in ("OS", None):
        raise NotSupported(f"a datastore of containers does not take images of the type {image.type}")
    path = call.store.new(IMAGE)
    with (call.store.scratch() as scratch, limits.within(limits.TRANSFER, call.path),
          image_sources.image(call.path, call.options, scratch, room) as found):
        if call.options.keep_layers or not call.path.startswith(reference.SCHEME):
            call.store.put(path, found, room)
        else:
            call.store.put_record(path, Record(found.image, found.reference,
                                               credentials=call.options.credentials_file))
    return f"{path} raw"


def stat(call: Call) -> str:
    """Return the size in MiB, rounded up; of a packed image the packed size, because its unpacked one is unknown."""
    with limits.within(limits.DESCRIPTIONS, call.path):
        size = image_sources.size(call.path, call.options)
    return str(-(-max(1, size) // MIB))


def rm(call: Call) -> None:
    # An image whose registration failed has no source, and nothing here.
    if call.about.source:
        call.store.remove(call.source)


def mkfs(call: Call) -> str:
    image = call.about
    if image.format == SAVE_AS:
        return str(call.store.new(DATA if image.type in FILES else IMAGE))
    if image.type not in (None, "DATABLOCK"):
        raise NotSupported(f"only data blocks can be created empty, not an image of the type {image.type}: give it a "
                           "PATH")
    datafiles.require_format("a data block", image.format)
    path = call.store.new(DATA)
    datafiles.make(path, image.size or 0, image.file_system)
    return str(path)


def clone(call: Call) -> str:
    source = call.store.known(call.path)  # of a clone PATH is the other image's SOURCE
    path = call.store.new(source.suffix)
    call.store.clone(path, source)
    return f"{path} raw"


def monitor(call: Call) -> str:
    store = call.store
    store.sweep()
    found = os.statvfs(store.base)
    values = {"USED_MB": found.f_blocks - found.f_bfree, "FREE_MB": found.f_bavail, "TOTAL_MB": found.f_blocks}
    return "\n".join(f"{name}={blocks * found.f_frsize // MIB}" for name, blocks in values.items())


def export_image(call: Call) -> str:
    """Return, for a marketplace, the file to use and its further processing."""
    source, store = call.source, call.store
    file, dispose = source, ""
    if source.suffix == IMAGE:
        record = Record.read(source)
        if record.directory is None:
            raise NotSupported(f"{record.reference} is in its registry only, and can be pulled from there")
        file = store.exports / f"{source.stem}.tar"
        with replacing(file) as unfinished, unfinished.open("xb") as out:
            export.write(store.directory(record), out)
        dispose = f"rm -f -- {shlex.quote(str(file))}"
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False))
    values = {"IMPORT_SOURCE": str(file), "MD5": digest.hexdigest(), "SIZE": -(-file.stat().st_size // MIB),
              "FORMAT": "raw", "DISPOSE": "YES" if dispose else "NO", "DISPOSE_CMD": dispose}
    return f"<IMPORT_INFO>{''.join(f'<{key}>{escape(str(value))}</{key}>' for key, value in values.items())}" \
           "</IMPORT_INFO>"


def on_snapshot(act: Callable[[Path, int], None]) -> Callable[[Call], None]:
    def done(call: Call) -> None:
        if call.source.suffix == IMAGE:
            raise NotSupported("images of containers have no snapshots, only data has")
        if call.about.snapshot is None:
            raise BadInput("the image has no TARGET_SNAPSHOT")
        act(call.source, call.about.snapshot)
    return done


ACTIONS: Mapping[str, Callable[[Call], str | None]] = {
    "cp": cp, "stat": stat, "rm": rm, "mkfs": mkfs, "clone": clone, "monitor": monitor, "export": export_image,
    "snap_delete": on_snapshot(datafiles.delete_snapshot), "snap_revert": on_snapshot(datafiles.revert_to),
    "snap_flatten": on_snapshot(datafiles.flatten)}
