# SPDX-License-Identifier: Apache-2.0
"""Open the source of an image: the tenant's PATH."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import SplitResult, urlsplit

import requests

from onedock.datastore import archives, content, decompress, reference
from onedock.datastore.content import Content
from onedock.datastore.options import Options
from onedock.datastore.registry import Registry, failures
from onedock.datastore.room import Room
from onedock.datastore.safefiles import SafeFiles
from onedock.datastore.web import Web
from onedriver.errors import BadInput

WEB = ("http://", "https://")


@contextlib.contextmanager
def image(path: str, options: Options, scratch: Path, room: Room) -> Iterator[Content]:
    """Open a container image, whose layers can be read within the block.

    :param scratch: a directory for temporary files
    :param room: for that
    :raises BadInput: there is no such image, or not for this datastore
    """
    if path.startswith(reference.SCHEME):
        yield of_registry(path, options)
    elif not path.startswith(WEB) and SafeFiles(options.safe_directories).is_directory(full(path)):
        directory = archives.Directory(Path(path), SafeFiles(options.safe_directories))
        yield checked(archives.read(directory, options.architecture, path), options)
    else:
        with file(path, options, scratch, room) as packed, unpacked(packed, scratch, path, room) as tarball:
            yield checked(archives.read(archives.Tarball(tarball, path), options.architecture, path), options)


def of_registry(path: str, options: Options) -> Content:
    wanted = reference.parse(path)
    options.require_host(wanted.host, path)
    registry = Registry(wanted.host, options.credentials_for(wanted.host), wanted.host in options.plain_hosts,
                        options.hosts | options.plain_hosts)
    found = checked(registry.content(wanted, options.architecture), options)
    # Such a registry takes no manifest from anybody who does not have its layers there; a tenant's own would.
    return found.proven() if wanted.host in options.hosts | options.plain_hosts | {reference.HUB} else found


def checked(found: Content, options: Options) -> Content:
    found.require(options.architecture)
    return found


@contextlib.contextmanager
def file(path: str, options: Options, scratch: Path, room: Room) -> Iterator[BinaryIO]:
    """Open any file of the front-end or of the web."""
    if not path.startswith(WEB):
        with SafeFiles(options.safe_directories).open(full(path)) as found:
            yield found
        return
    fetched = scratch / "fetched"
    fetch(path, options, fetched, room)
    with fetched.open("rb") as found:
        yield found


def fetch(url: str, options: Options, target: Path, room: Room) -> None:
    with asked(url, options) as response, target.open("xb") as file:
        room.copy(cast(BinaryIO, response.raw), file)


@contextlib.contextmanager
def asked(url: str, options: Options) -> Iterator[requests.Response]:
    def require(at: SplitResult) -> None:
        if "@" in at.netloc:
            raise BadInput("the address of an image must not have a user and a password in it: all users who may "
                           "see the image could read them")
        options.require_host(at.netloc, url)

    require(urlsplit(url))
    host = urlsplit(url).netloc
    with failures(host), Web(options.hosts | options.plain_hosts).get(url, require) as response:
        if response.status_code != 200:
            raise BadInput(f"{url} cannot be fetched: {host} answers with HTTP status {response.status_code}")
        yield response


def size(path: str, options: Options) -> int:
    """Return the bytes of the source, or of the layers of a registry's image, for which only manifests are fetched."""
    if path.startswith(reference.SCHEME):
        return of_registry(path, options).size
    if path.startswith(WEB):
        with asked(path, options) as response:
            length = response.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise BadInput(f"{path} cannot be used: its server does not report its size")
        return int(length)
    files = SafeFiles(options.safe_directories)
    if files.is_directory(full(path)):
        return checked(archives.read(archives.Directory(Path(path), files), options.architecture, path), options).size
    with files.open(Path(path)) as found:
        return os.fstat(found.fileno()).st_size


def full(path: str) -> Path:
    if not path.startswith("/"):
        raise BadInput(f"{path[:120]!r} is neither docker://…, http://…, https://… nor the full path of a file")
    return Path(path)


@contextlib.contextmanager
def unpacked(packed: BinaryIO, scratch: Path, name: str, room: Room) -> Iterator[BinaryIO]:
    """Yield the unpacked tarball of a compressed one, for random access."""
    head = packed.read(64)
    packed.seek(0)
    if content.SIF_MAGIC in head:
        raise BadInput(content.sif(name))
    if decompress.of(head) is None:
        yield packed
        return
    with (scratch / "unpacked").open("xb+") as tarball:
        with archives.damage(name):
            room.copy(decompress.reader(cast(io.RawIOBase, packed)), tarball)
        tarball.seek(0)
        yield tarball
