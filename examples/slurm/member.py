#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a member of a job of hpcjob a node of a Slurm cluster, at each boot: /etc/rc.local of its image.

The first member is the controller, and all are nodes. What the cluster shares is made of what every member has: the
rank map, the job's secret, size and devices of the job's one flavor. Nothing has to be sent.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RANK_MAP, RANK, SECRET = Path("/etc/hpcjob/rankmap"), Path("/etc/hpcjob/rank"), Path("/root/.ssh/hpcjob")
MUNGE_KEY, SLURM = Path("/etc/munge/munge.key"), Path("/etc/slurm")
DEVICES = Path("/run/slurm/devices")
NAMES = {"gpu": "gpu", "gpu-slice": "gpu", "gpu-share": "gpu", "net": "nic"}  # kind of a device -> Slurm's plug-in
# slurmd loads a plug-in though nothing here uses it: the one that is content where no control group is mounted.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
# A node is powered down when it had no job for SuspendTime seconds, up when a job needs it. The tenant's scale.py does
# what Slurm then waits for: no program and no credential of the cloud is in here. A container has no control groups for
# its jobs, and -b because the kernel's uptime is that of the host.
CONF = """\
ClusterName={cluster}
SlurmctldHost={controller}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu,nic
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=60
SuspendTimeout=60
ResumeTimeout=900
SuspendExcNodes={controller}
{nodes}
PartitionName=main Nodes=ALL Default=YES
"""


def slurm_conf(rank_map: str, cpus: int, devices: Sequence[Mapping[str, Any]]) -> str:
    """Return slurm.conf, which is the same in every member."""
    members = [line.split() for line in rank_map.splitlines()]  # rank, group, name, address
    counts = ",".join(f"{name}:{len(found)}" for name, found in by_name(devices).items())
    first = members[0][2]
    return CONF.format(cluster=first.rpartition("-")[0], controller=first, nodes="\n".join(
        f"NodeName={name} NodeAddr={address} CPUs={cpus}{f' Gres={counts}' if counts else ''}"
        for _, _, name, address in members))


def by_name(devices: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the first node of each device, by what Slurm calls its kind. It gives no device without nodes to jobs."""
    found: dict[str, list[str]] = {}
    for device in devices:
        if device["kind"] in NAMES and device["nodes"]:
            found.setdefault(NAMES[device["kind"]], []).append(device["nodes"][0])
    return found


def gres_conf(devices: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return gres.conf, and the links that it names -> nodes.

    Slurm takes the numbers in CUDA_VISIBLE_DEVICES from the files' names. CUDA counts what the container has, from 0.
    """
    links = {str(DEVICES / f"{name}{number}"): node for name, nodes in by_name(devices).items()
             for number, node in enumerate(nodes)}
    return "".join(f"Name={Path(link).name.rstrip('0123456789')} File={link}\n" for link in links), links


def munge_key(secret: bytes) -> str:
    """Return a key that all members have and nobody else: a digest of the job's own ssh key."""
    return hashlib.sha512(b"munge\n" + secret).hexdigest()


def write() -> None:
    """Write the configuration; the devices may be others than before."""
    told = subprocess.run(["containerhost-guest", "show"], check=True, text=True, capture_output=True).stdout
    devices = json.loads(told)["devices"]
    MUNGE_KEY.touch(mode=0o600)
    MUNGE_KEY.write_text(munge_key(SECRET.read_bytes()))
    shutil.chown(MUNGE_KEY, "munge", "munge")
    DEVICES.mkdir(parents=True, exist_ok=True)
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown(DEVICES.parent, "slurm")
    shutil.chown("/run/munge", "munge")
    (SLURM / "slurm.conf").write_text(slurm_conf(RANK_MAP.read_text(), len(os.sched_getaffinity(0)), devices))
    (SLURM / "cgroup.conf").write_text(CGROUP_CONF)
    text, links = gres_conf(devices)
    (SLURM / "gres.conf").write_text(text)
    for link, node in links.items():
        Path(link).unlink(missing_ok=True)
        Path(link).symlink_to(node)


def main() -> None:
    """Start munge, in the first member the controller, and the node."""
    write()
    subprocess.run(["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"], check=True)
    if int(RANK.read_text()) == 0:
        subprocess.run(["slurmctld"], check=True)
    names = [line.split()[2] for line in RANK_MAP.read_text().splitlines()]
    subprocess.run(["slurmd", "-b", "-N", names[int(RANK.read_text())]], check=True)


if __name__ == "__main__" and RANK.exists():  # else it is no member of a job
    main()
