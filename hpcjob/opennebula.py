# SPDX-License-Identifier: Apache-2.0
"""Start members as VMs of OpenNebula, by pyone.

VMs are created on hold, with addresses (leases) but not running. Their CONTEXT gets the files as a start script, and
all are released together. A VM group keeps the members of a group on one host and separates groups. Users cannot see
the hosts' capacity, so a job that does not fit fails by the time limit.
"""

import base64
import contextlib
import re
import xmlrpc.client
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyone
import requests

from hpcjob import files
from hpcjob.errors import BadJob, GangFailed
from hpcjob.gang import State
from hpcjob.job import Job, Member

MINE, SEEN = -3, -2  # filters of pools: VMs of this user, and all that this user may use
ALL, ANY_BUT_DONE = -1, -1  # range and state of pools
MERGE = 1
HPC_VALUE = re.compile(r"[A-Za-z0-9._-]{0,64}")
_STARTING = {"INIT", "PENDING", "HOLD", "ACTIVE", "CLONING"}


class OpenNebula:
    """Start and remove a user's VMs."""

    name = "opennebula"
    host_is_down = ("If its host does not answer, an operator switches the machine off and removes the VM: "
                    "onevm recover --delete VM")

    def __init__(self, server: Any) -> None:
        self._one = server
        self._vms: list[int] = []

    def validate(self, job: Job) -> None:
        """Find the template, and check that it has a core for each MPI process, if it sets cores."""
        self._template = self._found(job.cloud(self.name)["template"])
        self._content = template = self._one.template.info(self._template).TEMPLATE or {}
        vcpu = str(template.get("VCPU") or "")
        if vcpu.isdecimal():
            job.require_cores(int(vcpu))
        self._shared_memory = _shared_memory(template)

    def reserve(self, job: Job, ident: str) -> list[Member]:
        """Create the VM group, and a VM on hold for each member."""
        division = job.division()
        roles = {group: f"g{group}" for group in sorted(set(division))}
        text = f'NAME="{ident}"\n' + "".join(f'ROLE=[NAME="{role}",POLICY="AFFINED"]\n' for role in roles.values())
        if len(roles) > 1:
            text += f'ANTI_AFFINED="{",".join(roles.values())}"\n'
        vm_group = self._one.vmgroup.allocate(text)
        members = []
        for rank, group in enumerate(division):
            name = f"{ident}-{rank}"
            more = (f'HPCJOB="{ident}"\nHPCJOB_RANK="{rank}"\nVMGROUP=[VMGROUP_ID="{vm_group}",ROLE="{roles[group]}"]'
                    f'{_hpc(self._shared_memory, ident)}')
            vm = self._one.template.instantiate(self._template, name, True, more, False)
            self._vms.append(vm)
            members.append(Member(rank, group, name, _address(name, self._one.vm.info(vm).TEMPLATE)))
        return members

    def _found(self, wanted: str | int) -> int:
        if isinstance(wanted, int) or wanted.isdecimal():
            return int(wanted)
        found = [entry.ID for entry in self._one.templatepool.info(SEEN, ALL, ALL).VMTEMPLATE if wanted == entry.NAME]
        if len(found) != 1:
            ids = f" of {', '.join(map(str, found))}" if found else ""
            raise BadJob(f"{len(found)} templates are named {wanted!r}: give the id{ids}")
        return int(found[0])

    def launch(self, job: Job, ident: str, contents: Sequence[Sequence[files.File]], check: Callable[[], None]) -> None:
        """Set each VM's files, then release all."""
        for vm, of_rank in zip(self._vms, contents, strict=True):
            self._give_files(vm, of_rank)
            check()
        for vm in self._vms:
            self._one.vm.action("release", vm)
            check()

    def _give_files(self, vm: int, of_rank: Sequence[files.File]) -> None:
        found = self._one.vm.info(vm)
        context = _context(found.NAME, found.TEMPLATE.get("CONTEXT") or {}, files.script(of_rank))
        self._one.vm.updateconf(vm, {"TEMPLATE": {"CONTEXT": context}}, MERGE)

    def states(self, ident: str) -> Mapping[int, State]:
        """Return the state of each member, in one request."""
        return {int(vm.USER_TEMPLATE["HPCJOB_RANK"]): _state(vm) for vm in self._of_job(ident)}

    def _of_job(self, ident: str, whose: int = MINE) -> list[Any]:
        pool = self._one.vmpool.infoextended(whose, ALL, ALL, ANY_BUT_DONE)
        return [vm for vm in pool.VM if (vm.USER_TEMPLATE or {}).get("HPCJOB") == ident
                and pyone.VM_STATE(vm.STATE).name != "DONE"]

    def remove(self, ident: str) -> list[str]:
        """Terminate the VMs, and delete the VM group when they are gone."""
        vms = self._of_job(ident)
        for vm in vms:
            # Refused during PROLOG and BOOT, and while the VM is being removed: retried until it is gone.
            with contextlib.suppress(pyone.OneActionException, pyone.OneNoExistsException):
                self._one.vm.action("terminate-hard", vm.ID)
        if vms:
            return [f"VM {vm.NAME}" for vm in vms]
        groups = self._groups(ident)
        for group in groups:
            self._one.vmgroup.delete(group.ID)
        return [f"VM group {group.NAME}" for group in groups]

    def _groups(self, ident: str) -> list[Any]:
        return [group for group in self._one.vmgrouppool.info(MINE, ALL, ALL).VM_GROUP if ident == group.NAME]

    def find_reserved(self, ident: str, member: Member) -> None:
        """Find the VM group, which identifies the job as this user's."""
        if not self._groups(ident):
            raise BadJob(f"this user has no VM group {ident}: the job was deleted, or it is another user's")

    def remove_member(self, ident: str, member: Member) -> list[str]:
        """Terminate the member's VM, which frees its lease."""
        vms = [vm for vm in self._of_job(ident) if vm.USER_TEMPLATE.get("HPCJOB_RANK") == str(member.rank)]
        for vm in vms:
            with contextlib.suppress(pyone.OneActionException, pyone.OneNoExistsException):
                self._one.vm.action("terminate-hard", vm.ID)
        return [f"VM {vm.ID} ({vm.NAME})" for vm in vms]

    def launch_member(self, job: Job, ident: str, member: Member, contents: Sequence[files.File],
                      check: Callable[[], None]) -> None:
        """Create a VM with the address of the old one, without a role, which would keep it on its group's host."""
        own = str(self._content.get("SCHED_REQUIREMENTS") or "")
        hosts = {rank: state.host for rank, state in self.states(ident).items()}
        extra: dict[str, Any] = {
            "HPCJOB": ident, "HPCJOB_RANK": str(member.rank), "NIC": _nics(self._content, member.address),
            "SCHED_REQUIREMENTS": requirements(own, job, member, hosts)}
        if self._shared_memory:
            extra["HPC"] = {**self._shared_memory, "JOB": ident}
        vm = self._one.template.instantiate(self._template, member.name, True, {"TEMPLATE": extra}, False)
        address = _address(member.name, self._one.vm.info(vm).TEMPLATE)
        if address != member.address:
            self.remove_member(ident, member)
            raise GangFailed(f"the network gave {member.name} the address {address} and not its own, {member.address}")
        self._give_files(vm, contents)
        self._one.vm.action("release", vm)

    def of_others(self, ident: str) -> list[str]:
        """Return the VMs with the job's id that other users own: any user can set the id on a VM."""
        return [f"VM {vm.NAME} of user {vm.UNAME}" for vm in self._of_job(ident, SEEN)]

    def reason(self, error: Exception) -> str | None:
        """Return the cloud's message, without the request's body, which has the session."""
        cloud = pyone.OneException | requests.RequestException | xmlrpc.client.Error
        return (str(error) or type(error).__name__) if isinstance(error, cloud) else None


def _shared_memory(template: Mapping[str, Any]) -> dict[str, str]:
    """Return HPC of a template that requests shared memory; empty otherwise.

    :raises BadJob: its text cannot be rewritten
    """
    found = template.get("HPC")
    if not isinstance(found, Mapping) or "SHARED_MEMORY" not in found:
        return {}
    values = {str(key): str(value or "") for key, value in found.items()}
    for key, value in values.items():
        if not HPC_VALUE.fullmatch(value):
            raise BadJob(f"HPC of the template has {key}={value[:60]!r}: only letters, digits and . _ - are permitted")
    return values


def _hpc(values: Mapping[str, str], ident: str) -> str:
    """Return HPC with the job's id, so that its members share memory only with each other."""
    texts = [f'{key}="{value}"' for key, value in {**values, "JOB": ident}.items()]
    return f"\nHPC=[{','.join(texts)}]" if values else ""


def _nics(template: Mapping[str, Any], address: str) -> list[dict[str, str]]:
    """Return the NICs of a template, with an address for the first."""
    nics = template.get("NIC") or []
    first, *others = nics if isinstance(nics, list) else [nics]
    return [{**first, "IP6" if ":" in address else "IP": address}, *map(dict, others)]


def requirements(own: str, job: Job, member: Member, hosts: Mapping[int, str]) -> str:
    """Return SCHED_REQUIREMENTS of a replaced member: not its old host; for a strict job, its group's host."""
    division = job.division()
    mates = {host for rank, host in hosts.items() if division[rank] == member.group} - {member.host, ""}
    others = {host for rank, host in hosts.items() if division[rank] != member.group} - {""}
    avoided = {member.host, *(others - mates if job.strict else ())} - {""}
    terms = [f"({own})"] if own else []
    terms += [f'NAME != "{host}"' for host in sorted(avoided)]
    if mates and job.strict:
        terms.append(f"({' | '.join(f'NAME = {chr(34)}{host}{chr(34)}' for host in sorted(mates))})")
    return " & ".join(terms)


def _address(name: str, template: Mapping[str, Any]) -> str:
    nics = template.get("NIC") or []
    first = nics[0] if isinstance(nics, list) and nics else nics
    address = (first.get("IP") or first.get("IP6_GLOBAL") or first.get("IP6")) if first else None
    if not address:
        raise GangFailed(f"{name} has no NIC with an address: the template needs a NIC of a network with free leases")
    return str(address)


def _context(name: str, present: Mapping[str, Any], script: str) -> dict[str, str]:
    """Return the changed variables of a CONTEXT: start script and, unless the template sets it, the guest's name.

    The script writes the files and then runs the template's own one."""
    own = str(present.get("START_SCRIPT") or "")
    if not own and present.get("START_SCRIPT_BASE64"):
        try:
            own = base64.b64decode(str(present["START_SCRIPT_BASE64"])).decode()
        except ValueError as error:
            raise BadJob(f"the template's START_SCRIPT_BASE64 is not text in base64: {error}") from error
    if own.startswith("#!") and not own.startswith(("#!/bin/sh", "#!/bin/bash")):
        raise BadJob("the template's START_SCRIPT is not a shell script, unlike the script that writes the members' "
                     "files: call it from a shell script")
    if own.startswith("#!"):  # the interpreter of the template's script runs both
        script = own.partition("\n")[0] + script.removeprefix("#!/bin/sh")
    context = {"START_SCRIPT_BASE64": base64.b64encode((script + own).encode()).decode(),
               "SET_HOSTNAME": str(present.get("SET_HOSTNAME") or name)}
    # Some guests prefer START_SCRIPT, in which oned replaces words that begin with $.
    return context | ({"START_SCRIPT": ""} if present.get("START_SCRIPT") else {})


def _state(vm: Any) -> State:
    state, lcm = pyone.VM_STATE(vm.STATE).name, pyone.LCM_STATE(vm.LCM_STATE).name
    told = vm.USER_TEMPLATE
    failure = ""
    if state not in _STARTING or (state == "ACTIVE" and lcm.endswith("FAILURE")):
        failure = str(told.get("ERROR") or f"its state is {lcm if state == 'ACTIVE' else state}")
    records = vm.HISTORY_RECORDS.HISTORY if vm.HISTORY_RECORDS else []
    return State(running=state == "ACTIVE" and lcm == "RUNNING", failure=failure,
                 detail=str(told.get("SCHED_MESSAGE") or ""), host=str(records[-1].HOSTNAME) if records else "",
                 broken=state in {"HOLD", "FAILED", "CLONING_FAILURE"} or lcm == "UNKNOWN" or lcm.endswith("FAILURE"))
