# SPDX-License-Identifier: Apache-2.0
"""Write a plan for its executors: a cloud, ``hpcjob`` or ``mpirun``. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from hpcplan.plan import Plan

Format = Callable[[Plan, str], str]
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster with libyaml


def text(plan: Plan, name: str) -> str:
    """Return the plan as text for users."""
    sizes = sorted(set(plan.containers), reverse=True)
    rows = [f"job: {name}", f"profile: {plan.profile}", f"nodes: {plan.nodes}", f"containers: {len(plan.containers)}",
            f"tasks in a container: {' or '.join(map(str, sizes))}", f"cores of a container: {plan.cores}",
            f"affinity: {plan.affinity}"]
    return "\n".join([*rows, *(f"- {advice.text} [{advice.source}]" for advice in plan.advice)])


def as_json(plan: Plan, name: str) -> str:
    return json.dumps({"name": name, "profile": plan.profile, "tasks": plan.tasks, "nodes": plan.nodes,
                       "containers": plan.containers, "cores": plan.cores, "affinity": plan.affinity,
                       "advice": [{"text": advice.text, "source": advice.source} for advice in plan.advice]}, indent=1)


def job(plan: Plan, name: str) -> str:
    """Return a job file for ``hpcjob start``; a comment names the required details of the clouds."""
    content = {"name": name, "members": len(plan.containers), "groups": plan.nodes, **(
        {"slots": plan.containers[0]} if len(set(plan.containers)) == 1 else {"tasks": plan.tasks})}
    content |= {"oversubscribe": True} if plan.containers[0] > plan.cores else {}
    return (_yaml(content) + f"# In a member: mpirun -np {plan.tasks} --hostfile /etc/hpcjob/hostfile\n"
            f"# The flavor has {plan.cores} vcpus and hpc:affinity={plan.affinity}; the template "
            f"VCPU={plan.cores} and HPC=[AFFINITY={plan.affinity}].\n"
            "# openstack: {image: IMAGE, flavor: FLAVOR, network: NETWORK}\n# opennebula: {template: TEMPLATE}\n")


def heat(plan: Plan, name: str) -> str:
    """Return a Heat template with servers in the order of ranks, as the scheduler's hints require."""
    resources: dict[str, Any] = {"group": {"type": "OS::Nova::ServerGroup", "properties": {
        "name": name, "policies": ["soft-anti-affinity"]}}}
    for rank in range(len(plan.containers)):
        resources[f"member{rank}"] = {"type": "OS::Nova::Server", "properties": {
            "name": f"{name}-{rank}", "image": {"get_param": "image"}, "flavor": {"get_param": "flavor"},
            "networks": [{"network": {"get_param": "network"}}],
            "scheduler_hints": {"group": {"get_resource": "group"}, "task_groups": plan.nodes,
                                "task_members": len(plan.containers), "task_rank": rank}}}
        if rank:
            resources[f"member{rank}"]["depends_on"] = f"member{rank - 1}"
    flavor = f"{plan.cores} vcpus, hpc:affinity={plan.affinity}"
    return _yaml({"heat_template_version": "2018-08-31", "parameters": {
        "image": {"type": "string"}, "network": {"type": "string"},
        "flavor": {"type": "string", "description": flavor}}, "resources": resources})


def openstack(plan: Plan, name: str) -> str:
    """Return commands for a shell. The first one is the operator's."""
    count = len(plan.containers)
    return "\n".join((
        f"openstack flavor create {name} --vcpus {plan.cores} --ram MIB --disk GIB --property "
        f"hpc:affinity={plan.affinity}",
        f"openstack server group create --policy soft-anti-affinity {name}",
        f"openstack server create --flavor {name} --image IMAGE --network NETWORK --min {count} --max {count} "
        f"--hint group=$(openstack server group show -f value -c id {name}) --hint task_groups={plan.nodes} "
        f"{name}"))


def oneflow(plan: Plan, name: str) -> str:
    """Return a OneFlow service template of OpenNebula 7 with a role for each group and an empty ``template_id``."""
    contents = {"VCPU": str(plan.cores), "CPU": str(plan.cores), "HPC": {"AFFINITY": str(plan.affinity)}}
    roles = [{"name": f"g{group}", "type": "vm", "cardinality": count, "template_id": 0, "template_contents": contents}
             for group, count in _group_sizes(plan).items()]
    return json.dumps({"name": name, "deployment": "none", "roles": roles}, indent=1)


def vmgroup(plan: Plan, name: str) -> str:
    """Return a VM group of OpenNebula: the members of a role share a host, and no two roles do."""
    roles = [f"g{group}" for group in _group_sizes(plan)]
    rows = [f'NAME="{name}"', *(f'ROLE=[NAME="{role}",POLICY="AFFINED"]' for role in roles)]
    return "\n".join(rows + ([f'ANTI_AFFINED="{",".join(roles)}"'] if len(roles) > 1 else []))


def hostfile(plan: Plan, name: str) -> str:
    """Return a host file for ``mpirun``, as in the thesis (section 6.3.2, algorithm 3)."""
    return "\n".join(f"{name}-{rank} slots={tasks}" for rank, tasks in enumerate(plan.containers))


def rankfile(plan: Plan, name: str) -> str:
    """Return a rank file for ``mpirun``: ranks of a container on its cores, one after the other.

    A slot is the index of a core among those that the container has."""
    rows: list[str] = []
    for member, tasks in enumerate(plan.containers):
        first = len(rows)
        rows += [f"rank {first + at}={name}-{member} slot={at * plan.cores // tasks}" for at in range(tasks)]
    return "\n".join(rows)


FORMATS: Mapping[str, Format] = {"text": text, "json": as_json, "job": job, "heat": heat, "openstack": openstack,
                                 "oneflow": oneflow, "vmgroup": vmgroup, "hostfile": hostfile, "rankfile": rankfile}


def _group_sizes(plan: Plan) -> dict[int, int]:
    """Return the number of containers of each group, as the scheduler and ``hpcjob`` divide equal members."""
    size, larger = divmod(len(plan.containers), plan.nodes)
    return {group: size + (group < larger) for group in range(plan.nodes)}


def _yaml(content: Mapping[str, Any]) -> str:
    return str(yaml.dump(content, Dumper=DUMPER, sort_keys=False, width=120))
