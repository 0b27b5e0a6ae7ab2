# SPDX-License-Identifier: Apache-2.0
"""Run the transfer driver's requests on a node, as oneadmin: the front-end runs ``onedock node`` there over ssh.

Its command line is constant; the request is a line of JSON on standard input, which content may follow: so no
external name passes through a shell. The answer is a line of JSON, or content, on standard output.
"""

import contextlib
import errno
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from containerhost.linux import run
from containerhost.linux.files import replacing
from onedock import conf, datafiles, imageref, rootowner
from onedock.imageref import ImageRef
from onedock.transfer import streams
from onedriver import disk_paths
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import pipes, room
from onedriver.node.context import remove
from onedriver.program import reason

REQUEST_LIMIT = 64 << 10  # bytes
MARK = ".monitor"  # tells OpenNebula's probe of datastores whose driver to ask
DRIVER = "onedock"
TOKEN = re.compile(r"[0-9a-f]{32}")
COMMAND_TIMEOUT = 12 * 3600.0  # s; an image that comes slowly takes as long as it takes
RELEASE_TIMEOUT = 60.0  # s; the front-end waits for what follows
NOT_THERE = 4  # exit status of `onedock image` when there is no such image or container

Request = Mapping[str, Any]

SENDING = frozenset({"send", "send_root", "send_archive"})  # requests whose answer is content
SNAPSHOT_ACTIONS: Mapping[str, Callable[[Path, int], None]] = {
    "create": datafiles.create_snapshot, "revert": datafiles.revert_to, "delete": datafiles.delete_snapshot}


def serve(source: BinaryIO, out: BinaryIO) -> None:
    """Serve one request, or raise DriverError."""
    line = source.readline(REQUEST_LIMIT)
    try:
        request = json.loads(line)
        act, path = ACTIONS[request["do"]], request["path"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("standard input does not begin with a request of the front-end; do both have the same version "
                       "of this driver?") from error
    directory, disk, _ = disk_paths.inside(str(path))
    answer = act(directory / disk if disk else directory, request, source, out)
    if request["do"] not in SENDING:
        out.write(json.dumps(answer or {}).encode() + b"\n")
    out.flush()


def prepared(path: Path) -> Path:
    """Create the VM's directory with its first disk, and mark the datastore as this driver's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = disk_paths.inside(str(path))[0].parent / MARK
    if not mark.exists():
        mark.write_text(f"{DRIVER}\n", encoding="ascii")
    return path


def make(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    datafiles.make(prepared(path), int(request["size"]), None)


def write(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    imageref.write(prepared(path), ImageRef(**request["ref"]))


def read(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    found = imageref.read(path)
    return {"image": found.image, "reference": found.reference, "archive": found.archive, "vm": found.vm}


def receive(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    name = str(request["name"])
    if Path(name).name != name:
        raise BadInput(f"{name[:80]!r} is not a file name")
    streams.receive(source, name, prepared(path))


def send(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Send a disk with its snapshots, or a directory; of a mounted disk that must be frozen, only a copy."""
    if not request.get("frozen") or not path.is_file():
        if path.is_dir():
            require_here(path)
        with locked(path) as lock:
            streams.send(path, out, lock.fds)
        return
    with streams.incoming(path.parent) as directory:
        with locked(path, frozen=True) as lock:
            if not lock.used:
                streams.send(path, out, lock.fds)
                return
            room.duplicate(path, directory / path.name, datafiles.TOOL_TIMEOUT, str(path), lock.fds)
        streams.send(directory / path.name, out)  # which may take longer than writers can wait


def send_archive(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Send the archive of the image that a root disk names."""
    found = reference(path)
    if found.archive is None:
        raise BadInput(f"{path} names an image without an archive")
    with path.with_name(found.archive).open("rb") as file:
        shutil.copyfileobj(file, out)


def send_root(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Send the current content of a VM's container as an archive; without one here, as it left a host."""
    image = reference(path).image
    if not engine_is_there() or as_root(["save", str(request["vm"]), image], out=out) == NOT_THERE:
        send_archive(path, request, source, out)


def marks(path: Path, request: Request) -> tuple[Path, ...]:
    """Return the paths of a move's mark: in the datastore's directory, and in the VM's if there is one."""
    token = str(request["token"])
    if not TOKEN.fullmatch(token):
        raise BadInput(f"{token[:80]!r} is not a token of a move")
    return path.parent / f".move-{token}", path / f".move-{token}"


def mark(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Create a file that another host checks for."""
    prepared(path)
    for file in marks(path, request):
        if file.parent.is_dir():
            with file.open("xb") as made:
                os.fsync(made.fileno())


def look(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """Return whether this host sees the file that another one created as its mark."""
    seen = False
    for file in marks(path, request):
        with contextlib.suppress(FileNotFoundError):  # opened, because a file system may cache what stat tells
            os.close(os.open(file, os.O_RDONLY | os.O_NOFOLLOW))
            seen = True
    return {"seen": seen}


def unmark(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    for file in marks(path, request):
        file.unlink(missing_ok=True)


def leave(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Save a stopped VM's data into its directory, and remove it from the engine."""
    directory, _, vm = disk_paths.inside(str(path))
    if not directory.exists():
        raise BadInput(f"{directory} is not there")
    if engine_is_there():
        as_root(["leave", str(vm), directory.parent.name])


def move(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Move a VM's directory to another datastore of the same host, atomically."""
    require_here(path)
    directory, _, _ = disk_paths.inside(str(request["to"]))
    if directory.exists():
        raise BadInput(f"{path} cannot be moved: {directory} already exists")
    try:
        os.rename(path, prepared(directory))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        streams.copy(path, directory)
        remove(path)


def delete(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    _, disk, vm = disk_paths.inside(str(path))
    if disk is None:
        if engine_is_there():
            as_root(["drop", str(vm)])
        release(path, request, source, out)
        remove(path)
        return
    archive = archive_of(path)
    if engine_is_there():
        release_disk(path, vm)
    for one in (path, datafiles.snapshots(path), *([archive] if archive else [])):
        remove(one)


def release(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Release this host's tags of the images of a VM's disks; the directory stays, perhaps for another host."""
    _, _, vm = disk_paths.inside(str(path))
    if engine_is_there():
        for disk in sorted(found for found in path.glob("disk.*") if found.suffix[1:].isdecimal()):
            release_disk(disk, vm)


def release_disk(disk: Path, vm: int) -> None:
    """Release the engine's tag of a disk's image; a file larger than a reference is data without one."""
    if not disk.exists() or disk.stat().st_size <= imageref.LIMIT:
        as_root(["release", str(vm), disk.name])


def archive_of(path: Path) -> Path | None:
    if not path.is_file():
        return None
    try:
        found = imageref.read(path).archive
    except BadInput:
        return None  # a disk of data
    return path.with_name(found) if found else None


def grow(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Grow a disk, or only check the size of a mounted one, before oned calls the driver's resize_disk."""
    size = int(request["size"])
    if is_root(path):
        raise NotSupported(f"{path.name} is the root of a container, whose size Docker fixes at the container's "
                           "creation; keep data on a volatile disk, which can grow")
    with locked(path) as lock:
        if lock.used:
            datafiles.require_growth(path, size)
        else:
            datafiles.grow(path, size, lock.fds)


def snapshot(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    do, number = request["act"], int(request["number"])
    if do != "delete" and is_root(path):
        raise NotSupported("the root of a container has no disk snapshots, but those of its VM (onevm snapshot-create)")
    if request.get("live"):
        create_live_snapshot(path, number)
        return
    with locked(path) as lock:
        if lock.used and do != "delete":
            raise NotSupported(f"{path.name} is mounted for a container that is suspended or runs: power the VM off "
                               "first (onevm poweroff)")
        SNAPSHOT_ACTIONS[do](path, number)


def create_live_snapshot(disk: Path, number: int) -> None:
    """Copy a disk that the VM's container may have mounted."""
    if not disk.is_file():
        raise BadInput(f"{disk} is not there")
    datafiles.snapshots(disk).mkdir(exist_ok=True)
    with replacing(datafiles.snapshots(disk) / str(number)) as unfinished, locked(disk, frozen=True) as lock:
        room.duplicate(disk, unfinished, datafiles.TOOL_TIMEOUT, str(disk), lock.fds)


class Lock(NamedTuple):
    """Describe a locked disk: whether it is mounted, and the descriptors that hold the lock.

    :ivar used: whether the VM's container has the disk mounted
    :ivar fds: a program that inherits them keeps the lock until it ends, even if this process is killed
    """

    used: bool
    fds: tuple[int, ...] = ()


@contextlib.contextmanager
def locked(path: Path, *, frozen: bool = False) -> Iterator[Lock]:
    """Block the actions of a disk's VM on this node; the disks of a stopped VM are unmounted first.

    :param frozen: also block writes to the file system, if the VM's container has it mounted
    :raises DriverError: another process uses it
    """
    directory, disk, vm = disk_paths.inside(str(path))
    if disk is None or not engine_is_there():
        yield Lock(used=False)
        return
    command = root_command(["lock", str(vm), directory.parent.name, disk.partition(".")[2],
                            *(["frozen"] if frozen else [])])
    asked = f"`{' '.join(command)}`"
    with tempfile.TemporaryFile() as complaints:
        # No `with`: one that waits in the kernel is not waited for. It is in the session of the action: a cancelled
        # action thaws at once what it froze, although a copy that it began goes on.
        holder = run.start(command, asked, DriverError, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=complaints)
        try:
            stdout = cast("BinaryIO", holder.stdout)
            if not select.select([stdout], [], [], pipes.STALL_TIMEOUT)[0]:
                raise DriverError(f"{asked} does not answer within {pipes.STALL_TIMEOUT / 60:g} min")
            answer = stdout.readline(REQUEST_LIMIT)
            if not answer:
                status = run.release(holder, RELEASE_TIMEOUT)
                complaints.seek(0)
                raise DriverError(reason(complaints.read()) or f"{asked} failed with status {status}")
            yield Lock(bool(json.loads(answer)["used"]), (cast("BinaryIO", holder.stdin).fileno(),))
            if run.release(holder, RELEASE_TIMEOUT):
                raise DriverError(f"{path} may have been used meanwhile, so that the result is unreliable: {asked} "
                                  f"ended too early, or did not end")
        finally:
            run.release(holder, RELEASE_TIMEOUT)
            run.end(holder)


def reference(path: Path) -> ImageRef:
    """Read a root disk; raise DriverError if another node has the VM, with its newest data."""
    found = imageref.read(path)
    rootowner.require_here(path, found)
    return found


def require_here(directory: Path) -> None:
    """Raise DriverError if another node has the VM, which uses the disks in its directory."""
    if is_root(root := directory / "disk.0"):
        reference(root)


def is_root(path: Path) -> bool:
    """Return whether a disk is the root of a container: a reference to an image of the engine."""
    try:
        imageref.read(path)
    except BadInput:
        return False
    return True


# Images of the engine, for which one must be root.


def hold(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> Request:
    """Tag an image for a disk, as long as the VM has that, and return whether the engine has the image."""
    return {"held": as_root(["hold", str(request["vm"]), path.name, str(request["image"])]) != NOT_THERE}


def bring(path: Path, request: Request, source: BinaryIO, out: BinaryIO) -> None:
    """Load an image from an archive, or pull it by a reference and credentials, from standard input."""
    as_root([str(request["do"]), str(request["vm"]), path.name, str(request["image"])], source)


def as_root(words: list[str], source: BinaryIO | int = subprocess.DEVNULL, out: BinaryIO | None = None) -> int:
    """Run a command of the driver as root.

    :param out: receives its output
    :returns: its exit status, 0 or NOT_THERE
    :raises DriverError: it failed, with its reason, or does not end
    """
    command = root_command(words if words[0] in ("drop", "leave") else ["image", *words])
    asked = f"`{' '.join(command)}`"
    with tempfile.TemporaryFile() as complaints:
        # No `with`: one that waits in the kernel is not waited for.
        process = run.start(command, asked, DriverError, stdin=source, stderr=complaints, start_new_session=True,
                            stdout=subprocess.DEVNULL if out is None else subprocess.PIPE, bufsize=0)
        try:
            if out is not None:
                with pipes.reader(cast("BinaryIO", process.stdout), asked) as content:
                    shutil.copyfileobj(content, out)
            status = process.wait(COMMAND_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise DriverError(f"{asked} has not ended within {COMMAND_TIMEOUT / 3600:g} h; does Docker hang?"
                              ) from error
        finally:
            run.end(process)
        complaints.seek(0)
        if status not in (0, NOT_THERE):
            raise DriverError(reason(complaints.read()) or f"{asked} failed with status {status}")
    return status


def root_command(words: list[str]) -> list[str]:
    """Return the command with its path, because sudo with OpenNebula's packages does not search /usr/local."""
    return [*([] if os.geteuid() == 0 else ["sudo", "-n"]), shutil.which("onedock") or "onedock", *words]


def engine_is_there() -> bool:
    """Return whether this host is a node, not a front-end, which has only files of a VM.

    A node has the driver's directory even while Docker is down: operations that need Docker fail then, because its
    containers may still run and have the VMs' data."""
    options = conf.load()
    return any(Path(path).exists() for path in (options.endpoint.removeprefix("unix://"), options.state))


ACTIONS: Mapping[str, Callable[[Path, Request, BinaryIO, BinaryIO], Request | None]] = {
    "make": make, "write": write, "read": read, "receive": receive, "send": send, "send_root": send_root,
    "send_archive": send_archive, "mark": mark, "look": look, "unmark": unmark, "leave": leave, "move": move,
    "release": release, "delete": delete, "grow": grow, "snapshot": snapshot, "hold": hold, "load": bring,
    "pull": bring}
