# SPDX-License-Identifier: Apache-2.0
"""Create the files with a container's rank and peers, and the documents that bring them. Pure.

The hostfile has the format of Open MPI's and MPICH Hydra's ``--hostfile`` (``address slots=n``, one line for
each member, in the order of ranks).
"""

import base64
import dataclasses
import ipaddress
import json
from collections.abc import Sequence

from hpcjob.errors import GangFailed
from hpcjob.job import Job, Member
from hpcjob.keys import KeyPair

DIRECTORY = "/etc/hpcjob"
KEY = "/root/.ssh/hpcjob"
# A running member may not have booted far enough to accept ssh.
WAIT = f"""#!/bin/sh
# Wait until every member lets this one in by ssh; status 1 after as many seconds as the first argument says, or 300.
# A member that was replaced has another host key.
rm -f {DIRECTORY}/known_hosts
end=$(($(date +%s) + ${{1:-300}}))
while read -r address _; do
    until said=$(ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$address" true 2>&1); do
        if [ "$(date +%s)" -ge "$end" ]; then
            echo "hpcjob: $address does not let this member in: $said" >&2
            exit 1
        fi
        sleep 1
    done
done < {DIRECTORY}/hostfile
"""


@dataclasses.dataclass(frozen=True)
class File:
    """Describe a file in a container. ``append`` adds the lines that an existing file lacks."""

    path: str
    mode: int
    content: str = dataclasses.field(repr=False)
    append: bool = False


def hostfile(job: Job, members: Sequence[Member]) -> str:
    """Return the MPI hostfile."""
    return "".join(f"{member.address} slots={job.slots_of(member.rank)}\n" for member in members)


def rank_map(members: Sequence[Member]) -> str:
    """Return a line for each rank: rank, group, name, address."""
    return "".join(f"{member.rank} {member.group} {member.name} {member.address}\n" for member in members)


def files(job: Job, members: Sequence[Member], rank: int, key: KeyPair) -> list[File]:
    """Return the files of one member.

    The private key belongs to the job and is valid only from these addresses (``from=``): root of one member can log
    in as root on the others.

    :raises GangFailed: the cloud returned an invalid address, which would be written into files that root's programs
        read
    """
    for member in members:
        try:
            ipaddress.ip_address(member.address.replace("%", "/"))  # the part after % may be arbitrary
        except ValueError as error:
            raise GangFailed(f"{member.name}: the cloud returned the invalid address {member.address!r}") from error
    addresses = ",".join(member.address for member in members)
    names = " ".join(f"{member.address} {member.name}" for member in members)
    return [
        File(f"{DIRECTORY}/hostfile", 0o644, hostfile(job, members)),
        File(f"{DIRECTORY}/rankmap", 0o644, rank_map(members)),
        File(f"{DIRECTORY}/rank", 0o644, f"{rank}\n"),
        File(f"{DIRECTORY}/wait", 0o755, WAIT),
        File(KEY, 0o600, key.private),
        File("/root/.ssh/authorized_keys", 0o600, f'from="{addresses}" {key.public}\n', append=True),
        File("/etc/ssh/ssh_config.d/hpcjob.conf", 0o644, f"Host {names}\n    IdentityFile {KEY}\n"
             f"    UserKnownHostsFile {DIRECTORY}/known_hosts\n    StrictHostKeyChecking accept-new\n"),
        File("/etc/hosts", 0o644, "".join(f"{member.address} {member.name}\n" for member in members), append=True),
    ]


def cloud_config(contents: Sequence[File]) -> str:
    """Return cloud-init user data: JSON, which is YAML."""
    # The metadata service shows user data, with the private key, to every process of the guest: at each boot,
    # cloud-init blocks the route to it after reading it.
    return "#cloud-config\n" + json.dumps({"disable_ec2_metadata": True, "write_files": [
        {"path": file.path, "permissions": f"0{file.mode:o}", "encoding": "b64", "content": _base64(file.content)}
        | ({"append": True} if file.append else {}) for file in contents]}, indent=1) + "\n"


def script(contents: Sequence[File]) -> str:
    """Return a POSIX shell script that writes the files at each run (OpenNebula's START_SCRIPT, at each boot).

    It does not affect what runs after it."""
    lines = ["#!/bin/sh", "(", "set -eu", "umask 077"]
    for file in contents:
        # Paths are constants of this module, and base64 contains no special characters of a shell.
        lines.append(f"mkdir -p '{file.path.rpartition('/')[0]}'")
        if file.append:
            lines.append(f"echo '{_base64(file.content)}' | base64 -d | while read -r line; do")
            lines.append(f"    grep -qxF -e \"$line\" '{file.path}' 2>/dev/null || echo \"$line\" >> '{file.path}'")
            lines.append("done")
        else:
            lines.append(f"echo '{_base64(file.content)}' | base64 -d > '{file.path}'")
        if not file.append or file.path.startswith("/root/"):
            lines.append(f"chmod 0{file.mode:o} '{file.path}'")
    # Not ") || exit": then the shell would continue after an error within the parentheses.
    return "\n".join([*lines, ")", "[ $? = 0 ] || exit 1"]) + "\n"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
