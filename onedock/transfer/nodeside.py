"""What the transfer driver does on a node, as the user oneadmin: the front-end runs ``onedock node`` there over ssh.

Its command line says nothing; all is in a line of JSON on standard input, which content may follow: so nothing that
anybody named passes through a shell. The answer is a line of JSON, or content, on standard output.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from onedock import conf, datafiles, imageref
from onedock.imageref import ImageRef
from onedock.transfer import places, streams
from onedriver.errors import BadInput, DriverError

REQUEST_LIMIT = 64 << 10  # bytes
MARK = ".monitor"  # tells OpenNebula's probe of datastores whose driver to ask
DRIVER = "onedock"
NOT_THERE = 4  # exit status of `onedock image` when there is no such image or container

Request = Mapping[str, Any]


def serve(source: BinaryIO, out: BinaryIO) -> None:
    """:raises DriverError: it could not be done"""
    line = source.readline(REQUEST_LIMIT)
    try:
        request = json.loads(line)
        act, path = ACTIONS[request["do"]], request["path"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("standard input does not begin with a request of the front-end's; do both have the same version "
                       "of this driver?") from error
    folder, disk, _ = places.inside(str(path))
    answer = act(folder / disk if disk else folder, request, source, out)
    if answer is not None:
        out.write(json.dumps(answer).encode() + b"\n")
    out.flush()


def prepared(path: Path) -> Path:
    """The VM's folder is made by its first disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = places.inside(str(path))[0].parent / MARK
    if not mark.exists():
        mark.write_text(f"{DRIVER}\n", encoding="ascii")
    return path


def make(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    datafiles.make(prepared(path), int(request["size"]), None)
    return {}


def write(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    imageref.write(prepared(path), ImageRef(**request["ref"]))
    return {}


def read(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    found = imageref.read(path)
    return {"image": found.image, "reference": found.reference, "archive": found.archive, "vm": found.vm}


def receive(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    name = str(request["name"])
    if Path(name).name != name:
        raise BadInput(f"{name[:80]!r} is no name of a file")
    streams.receive(source, name, prepared(path))
    return {}


def send(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    streams.send(path, out)


def send_archive(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """What is beside a root disk: the archive of the image that it names."""
    found = imageref.read(path)
    if found.archive is None:
        raise BadInput(f"{path} names an image without an archive")
    with path.with_name(found.archive).open("rb") as file:
        shutil.copyfileobj(file, out)


def send_root(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """The content of a VM's container now, as an archive; of a VM that has none here, as it was when it left a host."""
    if not engine_is_there() or as_root(["save", str(request["vm"])], out=out) == NOT_THERE:
        send_archive(path, request, source, out)


def identity(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """Equal on two hosts means that both see the same file: their datastore is shared."""
    if not path.exists():
        return {"there": False}
    status = path.stat()
    return {"there": True, "inode": status.st_ino, "modified": status.st_mtime_ns, "changed": status.st_ctime_ns}


def leave(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """What a VM that is off wrote is in its folder afterwards, and nothing of it is in the engine.

    :returns: the folder's identity then
    """
    folder, _, vm = places.inside(str(path))
    if not folder.exists():
        raise BadInput(f"{folder} is not there")
    if engine_is_there():
        as_root(["leave", str(vm), folder.parent.name])
    return identity(path, request, source, out)


def move(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """To another datastore of the same host."""
    folder, _, _ = places.inside(str(request["to"]))
    if folder.exists():
        raise BadInput(f"{path} cannot be moved: there is {folder} already")
    shutil.move(path, prepared(folder))
    return {}


def delete(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    _, disk, vm = places.inside(str(path))
    if disk is None:
        if engine_is_there():
            as_root(["drop", str(vm)])
            for left in sorted(found for found in path.glob("disk.*") if found.suffix[1:].isdecimal()):
                as_root(["release", str(vm), left.name])
        datafiles.remove(path)
        return {}
    archive = archive_of(path)
    if engine_is_there():
        as_root(["release", str(vm), disk])
    for one in (path, datafiles.snapshots(path), *([archive] if archive else [])):
        datafiles.remove(one)
    return {}


def archive_of(path: Path) -> Path | None:
    if not path.is_file():
        return None
    try:
        found = imageref.read(path).archive
    except BadInput:
        return None  # a disk of data
    return path.with_name(found) if found else None


def grow(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    datafiles.grow(path, int(request["size"]))
    return {}


def snapshot(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    {"create": datafiles.create_snapshot, "revert": datafiles.revert_to,
     "delete": datafiles.delete_snapshot}[request["act"]](path, int(request["number"]))
    return {}


# Images of the engine, for which one must be root.


def hold(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """:returns: whether the engine has the image, which then stays as long as the VM has the disk"""
    return {"held": as_root(["hold", str(request["vm"]), path.name, str(request["image"])]) != NOT_THERE}


def load(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    as_root(["load", str(request["vm"]), path.name, str(request["image"])], source)
    return {}


def pull(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """Reference and credentials follow on standard input."""
    as_root(["pull", str(request["vm"]), path.name, str(request["image"])], source)
    return {}


def as_root(words: list[str], source: BinaryIO | int = subprocess.DEVNULL,
            out: BinaryIO | int = subprocess.DEVNULL) -> int:
    command = ["onedock", *([] if words[0] in ("drop", "leave") else ["image"]), *words]
    done = subprocess.run([*([] if os.geteuid() == 0 else ["sudo", "-n"]), *command], stdin=source, stdout=out,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode not in (0, NOT_THERE):
        raise DriverError(reason(done.stderr) or f"`{' '.join(command)}` failed with status {done.returncode}")
    return done.returncode


def engine_is_there() -> bool:
    """Not on a front-end, which has nothing of a VM but files."""
    return Path(conf.load().endpoint.removeprefix("unix://")).exists()


def reason(complaints: bytes) -> str:
    """The last line of a command of this driver, without those for the log."""
    lines = complaints.decode(errors="replace").splitlines()
    return " ".join(line for line in lines if not line.startswith(("ERROR: ", "INFO: ", "WARN: ", "DEBUG: ")))[:1500]


ACTIONS: Mapping[str, Callable[[Path, Request, BinaryIO, BinaryIO], Request | None]] = {
    "make": make, "write": write, "read": read, "receive": receive, "send": send, "send_root": send_root,
    "send_archive": send_archive, "identity": identity, "leave": leave, "move": move, "delete": delete, "grow": grow,
    "snapshot": snapshot, "hold": hold, "load": load, "pull": pull}
