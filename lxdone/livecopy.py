# SPDX-License-Identifier: Apache-2.0
"""Copy disks of running VMs on the front-end, as oneadmin, for OpenNebula's own transfer drivers.

Their scripts call this first (:mod:`onedriver.setup.transferdrivers`) and continue for other VMs. The node creates a
copy beside the disk, which becomes a snapshot there, or an image of a datastore here.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from containerhost.errors import HostActionFailed
from containerhost.linux import files
from containerhost.linux.run import end, run, start
from lxdone import translate
from onedriver import disk_paths, document, program, vm
from onedriver.disk_paths import DiskPath
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import pipes, tarstream
from onedriver.setup.transferdrivers import DONE, FAILED
from onedriver.ssh import SSH, problem
from onedriver.vm import Disk, Vm

DRIVER = "lxdone"
NOT_OURS = 3  # exit status: the script goes on
HOTPLUG_SAVEAS = "26"  # LCM state (OpenNebula's VirtualMachine.h): disk-saveas of a VM that runs
NO_SNAPSHOT = "-1"
SHOW_TIMEOUT = 60  # s
LAST_WORDS_TIMEOUT = 30  # s; the node has sent everything, or says why not
ON_NODES = ".ssh"  # ends a script's name
LINKING = ("shared", "qcow2")  # transfer drivers that keep the snapshots of a persistent image beside the image
# $1 VM, $2 disk, on the node; the VM's description is on standard input.
COPY = """
set -e
root=; [ "$(id -u)" = 0 ] || root="sudo -n"
copy=$($root "$(command -v lxdone || echo lxdone)" vmm copy_disk "$1" "$2")
trap "exit 1" HUP INT TERM
"""
# $3 directory, $4 the snapshot's number. The directory may be on another file system than the copy.
SNAPSHOT = COPY + """
trap 'rm -f -- "$copy" "$3/.$4"' EXIT
mkdir -p -- "$3"
mv -f -- "$copy" "$3/.$4"
sync -- "$3/.$4"
mv -f -- "$3/.$4" "$3/$4"
"""
SEND = COPY + """
trap 'rm -f -- "$copy"' EXIT
tar --create --sparse --file - --directory "${copy%/*}" --transform 's/.*/copy/' -- "${copy##*/}"
"""
SENT = "copy"


class Request(NamedTuple):
    """Hold one call of a transfer driver's script for a disk of a running VM.

    :ivar script: the name of OpenNebula's
    :ivar arguments: of the script
    :ivar xml: the VM's description
    """

    script: str
    arguments: Sequence[str]
    xml: bytes
    vm: Vm

    @property
    def disk_path(self) -> DiskPath:
        found = disk_paths.parse(self.arguments[0])
        if found.vm != self.vm.id:
            raise BadInput(f"{self.arguments[0][:120]} is of VM {found.vm}, not of VM {self.vm.id}")
        return found

    @property
    def disk(self) -> Disk:
        return translate.disk(self.vm, str(self.disk_path.number))


def act(script: str, argv: Sequence[str]) -> int:
    """Run one action of OpenNebula's transfer drivers.

    :param script: the name of OpenNebula's, perhaps with that of the system datastore's driver: ``cpds.ssh``
    :returns: the exit status
    """
    action = script.partition(".")[0]
    xml = described(argv[-2]) if action in ACTIONS and len(argv) == ACTIONS[action][1] else None
    if xml is None or not is_ours(action, argv, xml):
        return NOT_OURS

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # what is unfinished goes

    def done() -> None:
        ACTIONS[action][0](Request(script, argv, xml, vm.vm(document.parse(xml, "VM"))))

    return FAILED if program.run(script, done) else DONE


def described(vm_id: str) -> bytes | None:
    """Return a VM's XML; None if OpenNebula does not return it."""
    if not disk_paths.NUMBER.fullmatch(vm_id):
        return None
    try:
        done = run(["onevm", "show", "--xml", vm_id], SHOW_TIMEOUT)
    except HostActionFailed:
        return None
    return None if done.returncode else done.stdout.encode()


def is_ours(action: str, argv: Sequence[str], xml: bytes) -> bool:
    """Return whether the disk belongs to a running VM of this driver."""
    try:
        element = document.parse(xml, "VM")
    except BadInput:
        return False
    drivers = [found.text for found in element.iterfind("HISTORY_RECORDS/HISTORY/VM_MAD")]
    if drivers[-1:] != [DRIVER]:
        return False
    return action != "cpds" or (element.findtext("LCM_STATE"), argv[2]) == (HOTPLUG_SAVEAS, NO_SNAPSHOT)


def prebackup_live(request: Request) -> None:
    raise NotSupported("power the VM off for its backup (onevm poweroff, then onevm backup): OpenNebula backs up "
                       "running VMs by libvirt, which does not support these containers")


def snap_create_live(request: Request) -> None:
    disk, disk_path = request.disk, request.disk_path
    number = disk_paths.number(request.arguments[1], "the snapshot")
    if (disk.format or "").lower() == "qcow2":
        raise NotSupported(f"disk {disk.id} is a qcow2 disk, whose snapshots are stacked files, to which a running "
                           "container cannot switch: power the VM off for a snapshot of a qcow2 "
                           "disk (onevm poweroff)")
    # Those of system datastores that are on the nodes themselves keep all of them beside the disk.
    beside_image = (not request.script.endswith(ON_NODES) and disk.tm_mad in LINKING and not disk.clone and disk.source)
    directory = f"{disk_paths.source(disk.source) if beside_image and disk.source else disk_path.path}.snap"
    try:
        done = run(on_node(request, SNAPSHOT, directory, str(number)), pipes.STALL_TIMEOUT,
                   input=request.xml.decode())
    except HostActionFailed as error:
        raise DriverError(f"{disk_path.host} has not created the snapshot: {error}. Does its storage or LXD hang?"
                          ) from error
    if done.returncode:
        raise DriverError(problem(disk_path.host, "the snapshot", done.returncode, done.stderr.encode()))


def cpds(request: Request) -> None:
    """Copy a disk into an image atomically."""
    target = disk_paths.source(request.arguments[1])
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=target.parent) as directory:
        receive(request, Path(directory))
        files.sync(Path(directory) / SENT)
        os.replace(Path(directory) / SENT, target)
    files.sync(target.parent)


def receive(request: Request, directory: Path) -> None:
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as complaints:
        stdin.write(request.xml)
        stdin.seek(0)
        failure, host = None, request.disk_path.host
        # No `with`: it may not end.
        ssh = start(on_node(request, SEND), f"{host} cannot be reached over ssh", DriverError, stdin=stdin,
                    stdout=subprocess.PIPE, stderr=complaints, bufsize=0, start_new_session=True)
        try:
            with pipes.reader(cast("BinaryIO", ssh.stdout), f"{host}: the copy") as sent_by_node:
                tarstream.tar(["--extract", "--sparse", "--no-same-owner", "--directory", str(directory)],
                              "the image cannot be written", source=sent_by_node)
        except DriverError as error:
            failure = error
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                ssh.wait(LAST_WORDS_TIMEOUT)
            status = end(ssh)
        complaints.seek(0)
        said = complaints.read()
    if failure and not program.reason(said):
        raise DriverError(str(failure)) from failure
    sent = directory / SENT
    if status or failure or sent.is_symlink() or not sent.is_file():
        raise DriverError(problem(host, "the copy", status, said))


def on_node(request: Request, script: str, *words: str) -> Sequence[str]:
    """Return the command that runs a script on the VM's node, with VM, disk and ``words`` as arguments."""
    disk_path = request.disk_path
    return [*SSH, disk_path.host,
            shlex.join(["sh", "-c", script, "sh", str(disk_path.vm), str(disk_path.number), *words])]


#: With the number of arguments.
ACTIONS: Mapping[str, tuple[Callable[[Request], None], int]] = {
    "cpds": (cpds, 5), "prebackup_live": (prebackup_live, 6), "snap_create_live": (snap_create_live, 4)}
