# SPDX-License-Identifier: Apache-2.0
"""Write gres.conf(5) and topology.conf(5) of Slurm from the host's devices and from a network tree. Pure."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from containerhost.devices.grants import Grant
from containerhost.devices.model import Kind
from containerhost.errors import SpecError
from containerhost.inventory.topology import Topology
from containerhost.linux.idlist import id_text
from hpcplan.networktree import Leaf, natural, order

# Slurm's plug-ins for these devices, which set SLURM_JOB_GPUS and SLURM_JOB_NICS for jobs.
NAMES = {Kind.GPU: "gpu", Kind.NET: "nic"}
_ODD = re.compile(r"[^a-z0-9._-]+")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOP = "network"


@dataclasses.dataclass(frozen=True)
class Gres:
    """Describe a generic resource of a node: one line of gres.conf.

    :ivar type: as named by Slurm's own detection (vendor_model); for network functions, the link layer
    :ivar files: the nodes of this device alone, which can be denied to jobs without it
    :ivar cores: logical numbers of the cores near it, as Slurm counts them
    :ivar links: number of direct links to each GPU of the node, in order; -1 for itself
    """

    device: str
    name: str
    type: str
    files: tuple[str, ...]
    cores: tuple[int, ...] = ()
    links: tuple[int, ...] = ()


def gres(grants: Iterable[Grant], topology: Topology, links: Mapping[frozenset[str], int]) -> tuple[Gres, ...]:
    """Return the generic resources for jobs: whole GPUs, and network functions with nodes."""
    # Slurm groups devices by type, regardless of the order of lines, and links use that order.
    having = sorted((grant for grant in grants if grant.device.kind in NAMES and grant.own_nodes),
                    key=lambda grant: (NAMES[grant.device.kind], _type(grant), grant.device.id))
    gpus = [grant.device.id for grant in having if grant.device.kind is Kind.GPU]
    cores = _cores(topology)
    return tuple(Gres(
        grant.device.id, NAMES[grant.device.kind], _type(grant), tuple(node.path for node in grant.own_nodes),
        cores.get(grant.device.numa_node, ()),
        tuple(-1 if other == grant.device.id else links.get(frozenset((grant.device.id, other)), 0) for other in gpus)
        if links and grant.device.kind is Kind.GPU else ()) for grant in having)


def _type(grant: Grant) -> str:
    device = grant.device
    text = device.link_layer or device.model or f"{device.vendor_id}-{device.product_id}"
    return _ODD.sub("_", text.lower()).strip("_")


def _cores(topology: Topology) -> dict[int | None, tuple[int, ...]]:
    """Return the logical core numbers of each NUMA node; none if the host has one node.

    They are counted across sockets, each core once with all its threads."""
    found, first = dict[int | None, tuple[int, ...]](), 0
    nodes = sorted(topology.nodes, key=lambda node: (node.socket or 0, node.id))
    for node in nodes if len(nodes) > 1 else ():
        found[node.id] = tuple(range(first, first + len(node.siblings)))
        first += len(node.siblings)
    return found


def counted(found: Iterable[Gres]) -> str:
    """Return the value of ``Gres=`` of the node in slurm.conf."""
    return ",".join(f"{name}:{kind}:{count}" for (name, kind), count in collections.Counter(
        (each.name, each.type) for each in found).items())


def gres_conf(found: Sequence[Gres], node: str) -> str:
    """Return the lines of gres.conf for a node, with the required lines of slurm.conf as comments."""
    if not found:
        return "# no device of this host has nodes"
    lines = [f"# slurm.conf: GresTypes={','.join(dict.fromkeys(each.name for each in found))}",
             f"# slurm.conf: NodeName={node} Gres={counted(found)}"]
    for each in found:
        words = [f"NodeName={node}", f"Name={each.name}", f"Type={each.type}",
                 f"{'MultipleFiles' if len(each.files) > 1 else 'File'}={','.join(each.files)}"]
        words += [f"Cores={id_text(each.cores)}"] if each.cores else []
        words += [f"Links={','.join(map(str, each.links))}"] if each.links else []
        lines.append(f"{' '.join(words)}  # {each.device}")
    return "\n".join(lines)


def leaves(lines: Iterable[str]) -> tuple[Leaf, ...]:
    """Parse a network tree: a line for each host, with its name and the parts of the network above it from the root.

    :raises SpecError: a line is malformed
    """
    found = dict[str, Leaf]()
    for line in lines:
        host, *path = line.partition("#")[0].split() or [""]
        if not host:
            continue
        if not all(map(_WORD.fullmatch, (host, *path))):
            raise SpecError(f"{line.strip()!r} is not a host followed by parts of the network: names have letters, "
                            "digits, dots, dashes and underscores")
        if found.setdefault(host, leaf := Leaf(host, tuple(path))) != leaf:
            raise SpecError(f"host {host} is in two places of the network: {'/'.join(found[host].path)} and "
                            f"{'/'.join(path)}")
    return tuple(found.values())


def topology_conf(tree: Iterable[Leaf]) -> str:
    """Return topology.conf: a switch for each part of the network.

    A switch in Slurm has either nodes or switches, so a part with both gets an additional one for its nodes.

    :raises SpecError: two parts would have the same name
    """
    hosts, parts = dict[tuple[str, ...], list[str]](), dict[tuple[str, ...], set[tuple[str, ...]]]()
    for leaf in sorted(tree, key=order):
        hosts.setdefault(leaf.path, []).append(leaf.name)
        for depth in range(len(leaf.path)):
            parts.setdefault(leaf.path[:depth], set()).add(leaf.path[:depth + 1])
    for path in [path for path in hosts if path in parts]:
        own = (*path, f"{path[-1] if path else _TOP}-nodes")
        hosts[own] = hosts.pop(path) + hosts.get(own, [])
        parts[path].add(own)
    if len(parts.get((), ())) == 1:
        del parts[()]
    last = collections.Counter(path[-1] for path in {*hosts, *parts} if path)
    names = {path: path[-1] if path and last[path[-1]] == 1 else "-".join(path) or _TOP for path in {*hosts, *parts}}
    if len(set(names.values())) < len(names):
        raise SpecError("two parts of the network have the same name: give each switch a unique name")
    return "\n".join(
        f"SwitchName={names[path]} " + (f"Nodes={','.join(hosts[path])}" if path in hosts else "Switches=" + ",".join(
            sorted((names[part] for part in parts[path]), key=natural)))
        for path in sorted(names, key=lambda path: (-len(path), tuple(map(natural, path)))))
