# SPDX-License-Identifier: Apache-2.0
"""List the parsers of what others write, each with its refusals, and with inputs that it takes."""

import dataclasses
import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.allocation import record
from containerhost.engines.docker.record import Records
from containerhost.guest import resources
from containerhost.images import members, metadata
from containerhost.images.errors import BadImage
from containerhost.inventory import devicefile
from containerhost.linux import controlgroups
from containerhost.vendors.drmlog import AmdgpuLog
from containerhost.vendors.nvidia.xidlog import XidLog
from hpcjob import job
from hpcjob.errors import BadJob
from lxdone.root import root_state
from onedock import imageref
from onedock.datastore import challenges, content, reference
from onedriver import document, pciaddress, vm
from onedriver.errors import BadInput, DriverError

SAMPLES = Path(__file__).parents[2] / "unit/onedriver/samples"


@dataclasses.dataclass(frozen=True)
class Parser:
    """A parser, what it refuses with, and inputs that it takes.

    :ivar refusals: the parser's own errors; none for one that takes everything
    """

    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def in_file(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    """:param name: of the file that has the input"""
    file = Path(tempfile.gettempdir()) / name

    def parsed(data: bytes) -> object:
        file.write_bytes(data)
        return parse(file)
    return parsed


def lines(log: type[Any]) -> Callable[[bytes], object]:
    def take(data: bytes) -> object:
        read = log()
        for line in data.decode("utf-8", "surrogateescape").splitlines():
            read.take(line)
        return read.health()
    return take


def archive(data: bytes) -> None:
    for member in members.read(members.Stream(io.BytesIO(data), 1 << 20)):
        assert ".." not in member.path, member.path


def archives() -> tuple[bytes, ...]:
    """Return an archive of each format, with a member of each kind."""
    found = []
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as written:
            for kind, name in ((tarfile.DIRTYPE, "a"), (tarfile.REGTYPE, "a/" + "b" * 120), (tarfile.SYMTYPE, "c"),
                               (tarfile.LNKTYPE, "d"), (tarfile.CHRTYPE, "e"), (tarfile.FIFOTYPE, "f")):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, "a/" + "b" * 120 if kind == tarfile.LNKTYPE else "x"
                member.size = 5 if kind == tarfile.REGTYPE else 0
                member.pax_headers = {"SCHILY.xattr.user.a": "ü", "mtime": "1.5"}
                written.addfile(member, io.BytesIO(b"hello"))
        found.append(file.getvalue())
    return tuple(found)


def vms() -> tuple[bytes, ...]:
    """Return documents of VMs, as oned writes them."""
    found = [file.read_bytes() for file in sorted(SAMPLES.glob("*.xml"))]
    return tuple(b"<VM>" + data.partition(b"<VM>")[2].partition(b"</VM>")[0] + b"</VM>" for data in found
                 if b"<VM>" in data)[:8]


CONTAINER = "c" * 64  # Docker's id of one
RECORD = json.dumps({
    "version": 1, "device_id": "0000:3b:00.0",
    "owner": {"driver": "nova", "engine": "lxd", "container": "c1", "uuid": "u"},
    "restore": {"a": "b"}, "blocked": None, "state": "attached", "holders": [[1, 2]], "container": [1, 2],
    "before": {}})
PARSERS = {
    "allocation record": Parser(in_file("0000:3b:00.0.json", record.parse), (errors.AllocationsUnreadable,),
                                (RECORD.encode(),)),
    "AMD's kernel messages": Parser(lines(AmdgpuLog), (), (
        b"amdgpu 0000:3b:00.0: amdgpu: GPU reset(1) failed\n",)),
    "archive": Parser(archive, (BadImage,), archives()),
    "authentication challenges": Parser(text(challenges.parse), (), (
        b'Bearer realm="https://a", service="b\\"", Basic x=y, Negotiate ab==',)),
    "control groups": Parser(controlgroups.parse, (), (b"6:freezer,devices:/lxc.payload.c1\n0::/x\n",)),
    "Docker's record": Parser(in_file(f"{CONTAINER}.json", lambda file: Records(file.parent).read(CONTAINER)), (
        errors.EngineError,), (
        b'{"version": 1, "devices": ["a"], "nodes": [{"path": "/dev/a", "major": 1, "minor": 2}], "netdevs": []}',)),
    "file about devices": Parser(lambda data: devicefile.parse(data, "devices"), (errors.SpecError,), (
        b"0000:3b:00.0: {a: b, c: [d]}\n",)),
    "image configuration": Parser(lambda data: content.parsed(data, "an image"), (content.Corrupt,), (
        b'{"rootfs": {"diff_ids": ["sha256:a"]}}',)),
    "image reference": Parser(text(reference.parse), (BadInput,), (
        b"docker://registry.example:5000/team/tool:2@sha256:" + b"a" * 64,)),
    "job file": Parser(text(job.parse), (BadJob,), (
        b"name: wave\nmembers: 4\ngroups: 2\nopenstack: {image: a, flavor: b, network: c}\n",)),
    "LXD's metadata.yaml": Parser(metadata.architecture, (BadImage,), (
        b"architecture: x86_64\ncreation_date: 1700000000\nproperties: {os: debian}\n",)),
    "PCI address": Parser(text(pciaddress.from_opennebula), (BadInput,), (b"0000:17:00:0", b"0000:17:00:0:mig3")),
    "resources acknowledged": Parser(lambda data: resources.generation(resources.parse(data)), (), (
        b'{"generation": 1}',)),
    "root disk": Parser(in_file("disk.0", imageref.read), (BadInput,), (
        b'{"image": "sha256:' + b"a" * 64 + b'", "reference": "docker://a", "vm": 1}',)),
    "state of a root": Parser(in_file(root_state.FILE, lambda file: root_state.read(file.parent)), (DriverError,), (
        b'{"version": 1, "file": "/a/disk.0", "size": 1, "persistent": true, "image": null, "user": null, '
        b'"stamp": "a"}',)),
    "VM of oned": Parser(lambda data: vm.vm(document.parse(data, "VM")), (BadInput,), vms()),
    "Xids": Parser(lines(XidLog), (), (
        b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
        b"nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link\n",)),
}
