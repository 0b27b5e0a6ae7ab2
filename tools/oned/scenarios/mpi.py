# SPDX-License-Identifier: Apache-2.0
"""An MPI job of four containers on the two nodes, started by one command of a user of OpenNebula, a member of which is
replaced; and jobs that cannot be, of which nothing may be left."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tools.mpi import image, job
from tools.oned.debianimages import registered
from tools.oned.machine import CHECKOUT
from tools.oned.scenarios import for_each_driver
from tools.oned.stage import Driver, Stage, require

NETWORK = "tunnelled"  # over both nodes
TEMPLATE = """NAME="{name}"
CPU={cpu}
MEMORY=512
SCHED_REQUIREMENTS="HYPERVISOR=\\"{driver}\\""
SCHED_DS_REQUIREMENTS="NAME=\\"{datastore}\\""
DISK=[IMAGE_ID="{image}"{size}]
NIC=[NETWORK="{network}",NETWORK_UNAME="oneadmin"]
CONTEXT=[NETWORK="YES"]
"""
SIZE = {"onedock": "", "lxdone": ",SIZE=1024"}
SMALL, LARGE = 0.1, 1.5  # CPUs: both nodes have room for one large VM, or, on more than two processors, for few
START_TIMEOUT = 900  # s, more than the job file's own
USER = "mpi"


class User(NamedTuple):
    """Someone who uses the cloud.

    :ivar driver: that their VMs run on
    :ivar template: of their VMs
    :ivar auth: file with their name and token
    """

    stage: Stage
    driver: Driver
    template: str
    large: str
    auth: str

    def command(self, *words: str) -> list[str]:
        """Return a command line that runs hpcjob on the front-end."""
        return self.stage.cloud.front.there(
            "env", "HOME=/var/lib/one", f"ONE_AUTH={self.auth}", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m",
            "hpcjob", *words, user="oneadmin")

    def hpcjob(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=START_TIMEOUT, check=False)

    def job_file(self, name: str, template: str, **changes: object) -> str:
        return self.stage.one.file(job.job_file(name=name, opennebula={"template": int(template)}, **changes))

    def vms(self) -> dict[str, str]:
        """Return the ids of the cloud's VMs by name."""
        lines = self.stage.one("onevm", "list", "--csv", "--list", "ID,NAME").splitlines()[1:]
        return {name: number for number, name in (line.split(",") for line in lines)}


@for_each_driver
def mpi(stage: Stage, driver: Driver) -> str:
    with registered(stage, driver, "mpi", image.recipe(), image.INIT, 1024) as picture, \
            user(stage, driver, picture) as someone:
        seen = run_a_job(someone)
        delete_a_member_during_the_start(someone)
        ask_for_more_than_the_cloud_has(someone)
        ask_for_more_than_the_quota(someone)
    return seen


def run_a_job(someone: User) -> str:
    stage = someone.stage
    file = someone.job_file("ring", someone.template, timeout=600)
    done = someone.hpcjob("start", "opennebula", file, "--json")
    require(done.returncode == 0, f"the job does not start: {done.stderr}")
    ident, members = job.started(done.stdout)
    vms = someone.vms()
    require(job.spread(members), f"the hosts of the members are {members}")
    require(all(member.host == stage.one.host(vms[member.name]) for member in members), f"oned has others: {members}")
    run_program(someone, members)
    require(stage.inside(vms[members[3].name], "cat /etc/hpcjob/rank").strip() == "3", "a member has another rank")
    members = replace_a_member(someone, ident, members)
    found = run_program(someone, members)
    done = someone.hpcjob("delete", "opennebula", ident)
    require(done.returncode == 0, f"the job is not removed: {done.stderr}")
    nothing_left(someone, ident)
    return "; ".join(job.lines(members, found))


def run_program(someone: User, members: Sequence[job.Member]) -> list[job.Rank]:
    first = someone.vms()[members[0].name]
    someone.stage.inside(first, "/etc/hpcjob/wait")
    output = someone.stage.inside(first, job.RUN)
    found = job.ranks(output)
    require(job.by_rank_map(members, found, output), f"mpirun printed {output!r}, the job's members are {members}")
    return found


def replace_a_member(someone: User, ident: str, members: Sequence[job.Member]) -> list[job.Member]:
    """Replace the last member, as where its host fails, and return the members with their hosts."""
    old = members[-1]
    replace = ("replace", "opennebula", ident, str(old.rank), "--json")
    done = someone.hpcjob(*replace)
    require(done.returncode == 3, f"a member that runs is replaced: {done.returncode}, {done.stderr}")
    before = someone.vms()
    done = someone.hpcjob(*replace, "--force")
    require(done.returncode == 0, f"the member is not replaced: {done.stderr}")
    new = job.Member(**json.loads(done.stdout)["member"])
    vms = someone.vms()
    require(new.host not in ("", old.host) and new._replace(host=old.host) == old, f"of {old} became {new}")
    require(before.keys() == vms.keys() and before[old.name] != vms[old.name], f"the VMs are {vms}, were {before}")
    require(new.host == someone.stage.one.host(vms[new.name]), f"oned has {new.name} on another host than {new.host}")
    return [*members[:-1], new]


def delete_a_member_during_the_start(someone: User) -> None:
    file = someone.job_file("gone", someone.template)
    with subprocess.Popen(someone.command("start", "opennebula", file), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        vm = someone.stage.await_that(lambda: released(someone, "gone"), "the VMs are released")
        someone.stage.one("onevm", "recover", "--delete", vm)
        output, errors = process.communicate(timeout=START_TIMEOUT)
    refused(someone, subprocess.CompletedProcess(process.args, process.returncode, output, errors),
            "was deleted while the job started")


def released(someone: User, name: str) -> str:
    """Return the VM of rank 0 when no VM of a job is on hold any more."""
    vms = {vm: number for vm, number in someone.vms().items() if vm.startswith(f"{name}-")}
    states = someone.stage.one.vms()
    if len(vms) < 4 or any(states.get(number, "HOLD").startswith("HOLD") for number in vms.values()):
        return ""
    return next(number for vm, number in vms.items() if vm.endswith("-0"))


def ask_for_more_than_the_cloud_has(someone: User) -> None:
    file = someone.job_file("large", someone.large, timeout=45)
    refused(someone, someone.hpcjob("start", "opennebula", file), "time limit: not all 4 members run after 45 s")


def ask_for_more_than_the_quota(someone: User) -> None:
    one = someone.stage.one
    one("oneuser", "quota", USER, one.file('VM=[VMS="3",CPU="-2",MEMORY="-2",SYSTEM_DISK_SIZE="-2"]\n'))
    file = someone.job_file("quota", someone.template)
    refused(someone, someone.hpcjob("start", "opennebula", file), "quota")


def refused(someone: User, done: "subprocess.CompletedProcess[str]", reason: str) -> None:
    require(done.returncode == 1 and reason in done.stderr and "all members are removed" in done.stderr,
            f"hpcjob ends with status {done.returncode}: {done.stderr}")
    nothing_left(someone, job.identified(done.stderr))


def nothing_left(someone: User, ident: str) -> None:
    left = [name for name in someone.vms() if name.startswith(ident)]
    groups = someone.stage.one("onevmgroup", "list", "--csv", "--list", "NAME").splitlines()[1:]
    require(not left and ident not in groups, f"of {ident} there are VMs {left} and VM groups {groups}")


@contextmanager
def user(stage: Stage, driver: Driver, picture: str) -> Iterator[User]:
    """Let there be a user who may use an image, templates and a network within the block."""
    one = stage.one
    made: list[tuple[str, str]] = []
    try:
        words = {"driver": driver.name, "datastore": driver.datastore, "image": picture, "size": SIZE[driver.name],
                 "network": NETWORK}
        templates = [one.create("template", TEMPLATE.format(name=f"mpi-{cpu}", cpu=cpu, **words))
                     for cpu in (SMALL, LARGE)]
        made += [("onetemplate", template) for template in templates]
        for kind, thing in (*made, ("oneimage", picture), ("onevnet", NETWORK)):
            one(kind, "chmod", thing, "604")
        password = secrets.token_hex(8)
        one("oneuser", "create", USER, one.file(password), "--read-file")
        made.append(("oneuser", USER))
        auth = one.file(f"{USER}:{password}")
        yield User(stage, driver, *templates, auth)
    finally:
        for kind, thing in reversed(made):
            one(kind, "delete", thing)
