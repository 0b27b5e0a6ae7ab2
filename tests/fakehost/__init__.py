# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts: GPUs and SR-IOV network cards that are not there, under the real daemons.

``tree`` writes a described host as plain directories for unit tests; ``tools/fakehost`` (``cli``) runs a command on it
in namespaces of its own; ``control`` is how tests cause faults there. The way down:

* ``description``: YAML -> what the host is made of; ``functions``: its PCI functions as they are at one moment
* ``entries``: files, links and nodes as values; ``pci``, ``gpus``, ``nets``, ``numa``: what is shown, as entries
* ``run``, ``registry``, ``namespace``, ``cgroups``: the namespaces, from first process to last
* ``machine``: the running host; ``writer``, ``attributes``: its tree, whose attributes act
* ``netdevs``, ``interfaces``: real network interfaces, the fabric between them, and where they show
* ``shim/``: commands that answer for hardware the kernel does not have
"""
