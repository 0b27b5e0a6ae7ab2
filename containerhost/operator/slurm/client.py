# SPDX-License-Identifier: Apache-2.0
"""Read and change jobs and nodes of Slurm by its commands: scontrol(1), squeue(1), sinfo(1), slurmd(8).

Users choose job names and other text in the output, which can imitate its lines: ambiguous output is refused.
"""

import re
from collections.abc import Iterator, Mapping

from containerhost.errors import HostActionFailed, SpecError
from containerhost.linux.run import check, run
from containerhost.operator.slurm.config import NAMES

TIMEOUT = 60.0  # s; the controller may be busy
# squeue(1), "JOB STATE CODES": states in which a job has no node. Unknown states of later releases count as running.
OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING",
        "PREEMPTED", "REVOKED", "TIMEOUT"}
# Generic resources of shared GPUs: the records cannot express them.
SHARED = ("mps", "shard")
_GRES = re.compile(r"Gres Name=(\S+) Type=\S+ Count=(\d+) .*?File=(\S+)")
_NODE = re.compile(r"^ +Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)$", re.M)
_TAKEN = re.compile(r"([^:,()]+)(?::[^:,()]+)?:(\d+)\((?:IDX:)?([^()]*)\)")
_HOSTLIST = re.compile(r"([^\[\],]+)(?:\[([0-9,-]+)\])?")

Files = tuple[str, ...]  # the nodes of one device


class Slurm:
    """Run Slurm's commands for one node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def devices(self) -> Mapping[str, tuple[Files, ...]]:
        """Return the devices of this node by the name of their kind, in Slurm's order.

        :raises HostActionFailed: slurmd cannot read its configuration
        """
        done = run(["slurmd", "-G", "-N", self._node], TIMEOUT)
        if done.returncode != 0:
            raise HostActionFailed(f"gres.conf of node {self._node} cannot be read: {' '.join(done.stderr.split())}")
        found = dict[str, tuple[Files, ...]]()
        for name, count, text in _GRES.findall(done.stderr):
            if name in NAMES.values():
                files = tuple(_expanded(text))
                found[name] = found.get(name, ()) + ((files,) if count == "1" else tuple((file,) for file in files))
        return found

    def taken(self, job: str) -> tuple[Files, ...]:
        """Return the devices on this node that Slurm has allocated to a job.

        :raises SpecError: the answer is ambiguous, or the job shares a GPU with others
        :raises HostActionFailed: the controller does not answer
        """
        said = self._scontrol("show", "job", "--details", job)
        # For the first task of an array, Slurm shows all tasks.
        jobs = [text for text in re.split(r"^(?=JobId=)", said, flags=re.M) if text.startswith(f"JobId={job} ")]
        texts = [found for text in jobs for nodes, found in _NODE.findall(text) if self._node in self._hosts(nodes)]
        if len(jobs) != 1 or len(texts) != 1:
            raise SpecError(f"scontrol does not report the devices of job {job} on node {self._node} unambiguously")
        gres = [(name, numbers) for name, count, numbers in _TAKEN.findall(texts[0]) if count != "0"]
        if any(name in SHARED for name, _ in gres):
            raise SpecError(f"job {job} shares a GPU with other jobs, which the records do not support: leave "
                            f"{' and '.join(SHARED)} out of gres.conf")
        gres = [(name, numbers) for name, numbers in gres if name in NAMES.values()]
        devices = self.devices() if gres else {}
        try:
            return tuple(devices.get(name, ())[number] for name, numbers in gres for number in _numbers(numbers))
        except (IndexError, ValueError) as error:
            raise SpecError(f"gres.conf of node {self._node} has no device {texts[0]}, which job {job} has") from error

    def jobs(self) -> frozenset[str]:
        """Return the jobs on this node.

        :raises HostActionFailed: the controller does not answer
        """
        said = check(["squeue", "--noheader", "--states=all", f"--nodelist={self._node}", "--format=%A %T"], TIMEOUT,
                     f"the jobs of node {self._node} cannot be listed")
        return frozenset(words[0] for line in said.splitlines() if (words := line.split()) and words[-1] not in OVER)

    def reason(self) -> str:
        """Return why this node is drained; empty if it is not, or if there is no reason."""
        said = check(["sinfo", "--noheader", f"--nodes={self._node}", "--format=%E"], TIMEOUT,
                     f"the state of node {self._node} cannot be read").strip()
        return "" if said == "none" else said

    def drain(self, reason: str) -> None:
        self._scontrol("update", f"NodeName={self._node}", "State=DRAIN", f"Reason={reason}")

    def resume(self) -> None:
        self._scontrol("update", f"NodeName={self._node}", "State=RESUME")

    def requeue(self, job: str, reason: str, hold: bool) -> None:
        """Remove a job from its nodes before it starts: a batch job is requeued, any other cancelled.

        :param hold: hold the job until an operator releases it; otherwise Slurm retries it after two minutes
            (``cred_expire``)
        :raises HostActionFailed: it cannot be removed; it may start
        """
        again = run(["scontrol", "requeuehold" if hold else "requeue", job], TIMEOUT).returncode == 0
        run(["scontrol", "update", f"JobId={job}", f"AdminComment={reason}"], TIMEOUT)
        if not again:  # not a batch job, or not requeueable
            run(["scontrol", "notify", job, reason], TIMEOUT)
            check(["scancel", job], TIMEOUT, f"job {job} can neither be queued again nor cancelled")

    def _hosts(self, names: str) -> tuple[str, ...]:
        return tuple(self._scontrol("show", "hostnames", names).split()) if "[" in names else tuple(names.split(","))

    @staticmethod
    def _scontrol(*words: str) -> str:
        return check(["scontrol", *words], TIMEOUT, f"`scontrol {' '.join(words[:2])}` failed")


def _expanded(hostlist: str) -> Iterator[str]:
    """Yield the names of a Slurm list: ``/dev/dri/card[0-1],/dev/kfd``."""
    for name, numbers in _HOSTLIST.findall(hostlist):
        yield from (f"{name}{number}" for number in _numbers(numbers)) if numbers else (name,)


def _numbers(text: str) -> Iterator[int]:
    for first, _, last in (part.partition("-") for part in text.split(",")):
        yield from range(int(first), int(last or first) + 1)
