# SPDX-License-Identifier: Apache-2.0
"""The story of an MPI job: four containers on two hosts by one command, and what is left of jobs that cannot be."""

import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tools.cloud import identity
from tools.cloud.configs import HOST
from tools.cloud.engine import Engine, Output
from tools.cloud.identity import TENANT
from tools.cloud.layout import SUFFIXES
from tools.mpi import image, job
from tools.showcase import placement
from tools.showcase.gang import START_TIMEOUT, GangStory

IMAGE = FLAVOR = "mpi"
LARGE = "mpi.large"  # of which each host has room for one
MEMORY = 512  # MiB
RUN_TIMEOUT = 300  # s


class MpiStory(GangStory):
    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        self._jobs.mkdir()
        self.offer()
        self.run_a_job()
        self.delete_a_member_during_the_start()
        self.ask_for_more_than_the_cloud_has()
        self.ask_for_more_than_the_quota()

    def offer(self) -> None:
        self._report.chapter("An image with Open MPI, and a flavor")
        with self._report.timed("image"):
            path = image.recipe().unified(self._report.say)
            self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                     visibility="public", wait=True, timeout=300)
        self._report.command(f"openstack flavor create {FLAVOR} --vcpus 1 --ram {MEMORY} --disk 2")
        self._admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=MEMORY, disk=2)
        smallest = min(host.inventory["MEMORY_MB"] for host in placement.providers(self._admin))
        self._admin.compute.create_flavor(name=LARGE, vcpus=1, ram=smallest * 6 // 10, disk=2)
        identity.limit_project(self._admin, self._tenant.current_project_id, "class:MEMORY_MB", -1)

    def run_a_job(self) -> None:
        self._report.chapter("Four containers on two hosts, by one command")
        ident, members = self._start(job.EXAMPLE)
        hosts = self._hosts(ident)
        members = [member._replace(host=hosts[member.name]) for member in members]
        for member in members:
            self._report.say(f"rank {member.rank}, group {member.group}: {member.name} at {member.address}")
        self._report.check(ident, "each of the two groups has a host of its own",
                           ", ".join(f"{member.rank} on {member.host}" for member in members), job.spread(members))
        self._run_program(ident, members)
        self._run_program(ident, self._replaced(ident, members))
        self._delete(ident)

    def _replaced(self, ident: str, members: Sequence[job.Member]) -> list[job.Member]:
        """Replace the last member, as where its host fails, and return the members with their hosts."""
        old = members[-1]
        self._report.chapter("A member is replaced on the other host, and the program runs again")
        self._report.command(f"hpcjob replace openstack {ident} {old.rank} --force")
        with self._report.timed("replace, from the command to the new member running"):
            done = self._hpcjob("replace", "openstack", ident, str(old.rank), "--force", "--json")
        if done.returncode:
            raise RuntimeError(f"The member was not replaced: {done.stderr.strip()}")
        new = job.Member(**json.loads(done.stdout)["member"])._replace(host=self._hosts(ident)[old.name])
        self._report.check(ident, "the new member has the rank, name and address of the old one, and another host",
                           f"{new.address} on {new.host}, before on {old.host}",
                           new.host != old.host and new._replace(host=old.host) == old)
        return [*members[:-1], new]

    def _run_program(self, ident: str, members: Sequence[job.Member]) -> None:
        self._report.command(job.RUN)
        first = members[0]
        with self._report.timed("until all members let the first one in"):
            waited = self._inside(first, "/etc/hpcjob/wait")
        self._report.check(first.name, "reaches root of every member by the job's key", waited.err or "yes",
                           waited.status == 0)
        with self._report.timed("mpirun"):
            done = self._inside(first, *job.RUN.split())
        found = job.ranks(done.out)
        for line in job.lines(members, found):
            self._report.say(line)
        (self._jobs / "mpirun").write_text(f"{done.out}\n{done.err}\n")
        self._report.check(ident, "every rank runs where the rank map says, and has heard from the one before it",
                           (done.out.splitlines() or [done.err])[-1],
                           done.status == 0 and job.by_rank_map(members, found, done.out))
        own = self._inside(members[-1], "cat", "/etc/hpcjob/rank")
        self._report.check(members[-1].name, "knows its own rank", own.out, own.out == str(members[-1].rank))

    def delete_a_member_during_the_start(self) -> None:
        self._report.chapter("A member is deleted while the job starts")
        file = self._job_file("gone.yaml", name="gone")
        with subprocess.Popen(self._command("start", "openstack", str(file)), text=True, env=self._environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self._delete_first("gone")
            output, errors = process.communicate(timeout=START_TIMEOUT)
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        self._refused(done, "was deleted while the job started")

    def _delete_first(self, name: str) -> None:
        """Delete the member of rank 0 as soon as there is one."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            for server in self._tenant.compute.servers(name=f"^{name}-"):
                if server.name.endswith("-0"):
                    self._report.command(f"openstack server delete {server.name}")
                    self._tenant.compute.delete_server(server)
                    return
            time.sleep(0.5)
        raise RuntimeError(f"No server of the job {name} came to be.")

    def ask_for_more_than_the_cloud_has(self) -> None:
        self._report.chapter("A job for which the cloud has no room")
        self._report.say(f"Each of the two hosts has room for one {LARGE}; the job has four")
        section = {"image": IMAGE, "flavor": LARGE, "network": "private"}
        file = self._job_file("large.yaml", name="large", openstack=section)
        self._refused(self._hpcjob("start", "openstack", str(file)), "No valid host")

    def ask_for_more_than_the_quota(self) -> None:
        self._report.chapter("A job that is more than the project's quota")
        self._report.command(identity.limit_command(TENANT, "servers", 3))
        project = self._tenant.current_project_id
        identity.limit_project(self._admin, project, "servers", 3)
        file = self._job_file("quota.yaml", name="quota")
        self._refused(self._hpcjob("start", "openstack", str(file)), "is over a limit")
        for limit in self._admin.identity.limits(project_id=project):  # a cloud that is kept shall have the usual ones
            self._admin.identity.delete_limit(limit)

    # -- helpers

    def _refused(self, done: "subprocess.CompletedProcess[str]", reason: str) -> None:
        ident = job.identified(done.stderr)
        self._report.check(ident, "does not start, and the reason is said", job.last_line(done),
                           done.returncode == 1 and reason in done.stderr and "all members are removed" in done.stderr)
        self._nothing_left(ident)

    def _job_file(self, file: str, **changes: object) -> Path:
        path = self._jobs / file
        path.write_text(job.job_file(**changes))
        return path

    def _hosts(self, ident: str) -> dict[str, str]:
        """Return the host of each member as the administrator sees it: tenants see a digest of its name."""
        servers = self._admin.compute.servers(all_projects=True, name=f"^{ident}-")
        return {server.name: server.compute_host for server in servers}

    def _inside(self, member: job.Member, *command: str) -> Output:
        """Run a command as root of a member's container, on its host."""
        (server,) = self._admin.compute.servers(all_projects=True, name=f"^{re.escape(member.name)}$")
        server = self._admin.compute.get_server(server.id)
        return self._engine_of(server.compute_host).inside(server.instance_name, *command, limit=RUN_TIMEOUT)

    def _engine_of(self, host: str) -> Engine:
        return dict(zip((HOST + suffix for suffix in SUFFIXES), self._cloud.engines, strict=True))[host]
