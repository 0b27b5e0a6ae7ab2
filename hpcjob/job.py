# SPDX-License-Identifier: Apache-2.0
"""Read a job file: YAML, one job, with a section for each cloud that it may run in. Pure."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import yaml

from hpcjob.errors import BadJob
from hpcplan import taskgroups

NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
MOST_MEMBERS = 10_000
MOST_SLOTS = 4096
_NUMBERS = {"members": (1, MOST_MEMBERS), "groups": (1, MOST_MEMBERS), "slots": (1, MOST_SLOTS),
            "tasks": (1, MOST_MEMBERS * MOST_SLOTS), "timeout": (1, 86_400)}
_FLAGS = ("strict", "oversubscribe")
_DEFAULTS = {"slots": 1, "timeout": 600}
_SECTIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "openstack": (("image", "flavor", "network"), ("vnic_type", "key_name", "security_groups", "availability_zone")),
    "opennebula": (("template",), ()),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """Describe a job to start.

    :ivar members: number of containers, one for each rank of the map
    :ivar groups: number of hosts that they are spread over evenly
    :ivar strict: whether groups may neither share a host nor be split
    :ivar tasks: MPI processes of the job, for the hostfile; the first members have one more where they do not divide
    :ivar oversubscribe: whether a member may have more of them than cores
    :ivar timeout: seconds until all members must run
    """

    name: str
    members: int
    groups: int
    strict: bool
    tasks: int
    oversubscribe: bool
    timeout: int
    clouds: Mapping[str, Mapping[str, Any]]

    @property
    def slots(self) -> int:
        """Return the MPI processes of the largest member."""
        return self.slots_of(0)

    def slots_of(self, rank: int) -> int:
        """Return the MPI processes of a member."""
        return self.tasks // self.members + (rank < self.tasks % self.members)

    def cloud(self, name: str) -> Mapping[str, Any]:
        """Return the section of a cloud.

        :raises BadJob: the file has none
        """
        if name not in self.clouds:
            raise BadJob(f"the job file has no section {name!r}: add one with {', '.join(_SECTIONS[name][0])}")
        return self.clouds[name]

    def require_cores(self, cores: int) -> None:
        """Refuse members that have fewer cores than MPI processes.

        :raises BadJob: they have fewer, and the file does not permit it
        """
        if self.slots > cores and not self.oversubscribe:
            raise BadJob(f"slots={self.slots} is more than the {cores} cores of a member: request fewer slots or a "
                         "larger flavor or template, or set oversubscribe: true")

    def division(self) -> list[int]:
        """Return the group of each rank."""
        return taskgroups.divide([{"members": 1}] * self.members, self.groups)


@dataclasses.dataclass(frozen=True)
class Member:
    """Describe a container of a started job. ``host`` identifies its host, by name if the user may see names."""

    rank: int
    group: int
    name: str
    address: str
    host: str = ""


def parse(text: str) -> Job:
    """Return the job.

    :raises BadJob: the text is not a valid job file; unknown keys are refused
    """
    try:
        content = yaml.safe_load(text)
    # PyYAML's constructors (2020-99-99, !!bool x) do not translate the exceptions of their lookups.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise BadJob(f"the job file is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise BadJob("the job file is not a mapping of keys: see etc/job.yaml.sample")
    known = {"name", *_FLAGS, *_NUMBERS, *_SECTIONS}
    _refuse_unknown("the job file", content, known)
    name = content.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadJob(f"name={name!r} must be 1 to 40 lower-case letters, digits and hyphens, and begin with a letter")
    flags = {key: content.get(key, False) for key in _FLAGS}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise BadJob(f"{key}={value!r} must be true or false")
    if "slots" in content and "tasks" in content:
        raise BadJob("slots and tasks conflict: give the MPI processes of each member, or those of the job")
    numbers = {key: _number(content, key) for key in _NUMBERS if key != "tasks" or key in content}
    members, slots = numbers["members"], numbers.pop("slots")
    if numbers["groups"] > members:
        raise BadJob(f"groups={numbers['groups']} is more than members={members}: a group has at least one member")
    if not members <= numbers.setdefault("tasks", slots * members) <= MOST_SLOTS * members:
        raise BadJob(f"tasks={numbers['tasks']} must be from 1 to {MOST_SLOTS} for each of members={members}")
    clouds = {cloud: _section(cloud, content[cloud]) for cloud in _SECTIONS if cloud in content}
    values: dict[str, Any] = {**flags, **numbers}
    return Job(name=name, clouds=clouds, **values)


def _number(content: Mapping[str, Any], key: str) -> int:
    least, most = _NUMBERS[key]
    value = content.get(key, _DEFAULTS.get(key))
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadJob(f"{key}={value!r} must be a whole number from {least} to {most}")
    return value


def _section(cloud: str, content: Any) -> Mapping[str, Any]:
    required, optional = _SECTIONS[cloud]
    if not isinstance(content, dict):
        raise BadJob(f"section {cloud} is not a mapping of keys")
    _refuse_unknown(f"section {cloud}", content, {*required, *optional})
    for key in required:
        if key not in content:
            raise BadJob(f"section {cloud} lacks {key}")
    for key, value in content.items():
        if key == "security_groups":
            if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
                raise BadJob(f"{cloud}: security_groups={value!r} must be a list of names")
        elif not (isinstance(value, str) and value) and not (key == "template" and isinstance(value, int)):
            raise BadJob(f"{cloud}: {key}={value!r} must be a name or an id")
    return content


def _refuse_unknown(where: str, content: Mapping[Any, Any], known: set[str]) -> None:
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        raise BadJob(f"{where} has unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
