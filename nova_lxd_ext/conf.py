# SPDX-License-Identifier: Apache-2.0
"""Define the operator's options, group ``[lxd]`` of nova.conf; nova's own options are used where they exist."""

from typing import Any

import nova.conf
from oslo_config import cfg

from containerhost.engines import spec

CONF = nova.conf.CONF

GROUP = cfg.OptGroup("lxd", title="LXD and Incus containers", help="Options of the driver ``lxd.LXDDriver``.")

ENGINE = [
    cfg.StrOpt("endpoint", help="""
The daemon of this host: the path of its Unix socket or an ``https://`` URL. Unset, the usual sockets of LXD (snap and
distribution package) and Incus are tried in that order. Devices are read from this machine's /sys, so an URL must lead
to this machine too.
"""),
    cfg.StrOpt("client_cert", help="Certificate file shown to an ``https://`` endpoint."),
    cfg.StrOpt("client_key", help="Key file of ``client_cert``."),
    cfg.StrOpt("ca_file", help="""
Certificate file that an ``https://`` endpoint's certificate is checked against; the system's authorities when unset.
The check cannot be turned off.
"""),
    cfg.StrOpt("project", default="default", help="Project in which the containers and images are kept."),
    cfg.StrOpt("storage_pool", default="default", help="Storage pool of the containers' root disks."),
]

LIMITS = [
    cfg.IntOpt("request_timeout", default=30, min=1, help="Seconds the daemon has to answer a request."),
    cfg.IntOpt("operation_timeout", default=300, min=1, help="""
Seconds an operation of the daemon may take: making a container from an image, starting or deleting one, importing an
image.
"""),
    cfg.IntOpt("stop_timeout", default=30, min=1, help="""
Seconds the daemon has to end a container by force. How long a guest may take to shut down by itself is nova's
``[DEFAULT] shutdown_timeout``.
"""),
    cfg.IntOpt("ready_timeout", default=60, min=0, help="""
Seconds nova-compute waits for a daemon that is starting: at its own start, and when the daemon restarts in the middle
of what it does to a server.
"""),
]

SNAPSHOTS = [
    cfg.StrOpt("snapshot_compression", default="gzip", choices=["gzip", "zstd", "xz", "none"], help="""
Program that packs a server's disk for an image of it (snapshot, backup, shelve); it must be installed where the daemon
runs. ``zstd`` is several times faster than ``gzip``.
"""),
    cfg.IntOpt("snapshot_timeout", default=7200, min=1, help="""
Seconds the daemon may take to pack a server's disk for an image of it.
"""),
]

MIGRATION = [
    cfg.StrOpt("migration_address", regex=r"^https://\S+:[1-9][0-9]*$", help="""
``https://host:port`` at which the daemons of other hosts reach this host's own (its ``core.https_address``), to fetch
servers that leave by cold migration or resize. The daemons need not trust each other: every transfer has secrets of its
own, and who fetches is told the certificate. Unset, no server leaves this host.
"""),
    cfg.StrOpt("live_migration", default="refused", choices=[
        ("refused", "A request for a live migration is refused."),
        ("restart", "The server is copied while it runs, stopped for seconds, and started on its new host."),
    ], help="""
What a request for a live migration to this host does with a server whose flavor has no ``lxd:live_migration``. No
container keeps its processes: choose ``restart`` if your tenants know that.
"""),
    cfg.IntOpt("migration_timeout", default=21600, min=1, help="""
Seconds a server's files may take to get from one host to another. When they are over, the server starts again where it
was.
"""),
    cfg.IntOpt("migration_rounds", default=5, min=0, help="""
How often a server that runs is copied to its new host before it is stopped, each time what has changed since. Fewer
where a round takes less than two seconds, or hardly less than the one before. Only where both hosts have a storage pool
of btrfs or of zfs, and Incus or LXD since 5.0.3. 0 stops servers first.
"""),
]

RESIZE = [
    cfg.IntOpt("shrink_notice", default=30, min=0, help="""
Seconds a guest that runs ``containerhost-guest`` has to release cores, memory and devices before a live resize takes
them, and to prepare for the stop of a resize or migration. Others are not waited for.
"""),
]

VOLUMES = [
    cfg.IntOpt("volume_timeout", default=300, min=1, help="""
Seconds a volume's backend has for each step: to connect, disconnect or extend a volume, or to copy 64 MiB of one.
How a host connects volumes (multipath, tries, iSCSI interface) is set by the options of group ``[libvirt]`` that nova
has for it: ``volume_use_multipath``, ``volume_enforce_multipath``, ``num_volume_scan_tries``, ``iscsi_iface``.
"""),
]

DEVICES = [
    cfg.StrOpt("owners_dir", default="/var/lib/containerhost/owners", help="""
Directory of the records that say which container holds which device. Every driver of this host that hands out devices
must use the same one.
"""),
    cfg.ListOpt("gpu_capabilities", default=[], help="""
NVIDIA driver capabilities whose libraries a container with a GPU gets when its flavor has no ``lxd:gpu_capabilities``,
for instance ``compute,utility``. Empty leaves the libraries to the image.
"""),
    cfg.StrOpt("rdma_memlock", default="unlimited", regex=r"^(unlimited|[1-9][0-9]*)$", help="""
Memory that the processes of a container with an RDMA device may lock: ``unlimited`` or bytes. RDMA registers (locks)
the memory it transfers. The daemon must itself be allowed to lock as much, else such a container does not start.
"""),
    cfg.BoolOpt("rdma_management_nodes", default=False, help="""
Also give umad and issm nodes with an RDMA device. They let a tenant send management packets to the fabric and run a
subnet manager: only for tenants trusted with the whole fabric.
"""),
    cfg.StrOpt("rdma_guid_policy", default="instance", choices=[
        ("instance", "every InfiniBand VF gets GUIDs made from the server's uuid: the same server always has the same"),
        ("keep", "a VF keeps the GUIDs that the host gave it"),
    ], help="Where the node and port GUIDs of a container's InfiniBand VFs come from."),
]

SECURITY = [
    cfg.BoolOpt("allow_privileged", default=False, help="""
Obey a flavor's ``lxd:privileged_allowed=true``. Root in such a container can become root of this host, so a flavor
alone does not suffice. When false such a flavor is refused.
"""),
    cfg.BoolOpt("isolated", default=True, help="""
Give each container user and group ids of the host that no other container has, unless its flavor says
``lxd:isolated=false``.
"""),
]

PROCESSES = [
    cfg.IntOpt("process_limit", default=spec.PROCESSES, min=1, help="""
Most processes and threads that a container has at once when its flavor has no ``lxd:process_limit``. Keep it well below
the host's ``kernel.pid_max``: a container that reaches it cannot start another process, and all others still can.
"""),
]

SCHEDULER = [
    cfg.FloatOpt("own_host_weight_multiplier", default=100.0, help="""
For nova-scheduler with ``nova_lxd_ext.scheduler.OwnHostWeigher`` among its ``[filter_scheduler] weight_classes``: how
much more a server's own host weighs than others when it is resized. A negative number prefers the others.
"""),
    cfg.FloatOpt("pair_weight_multiplier", default=1.0, help="""
For nova-scheduler with ``nova_lxd_ext.scheduler.PairWeigher`` among its ``[filter_scheduler] weight_classes``: how much
more a host weighs that has free pairs of a GPU and a virtual function below one PCIe switch, for a server that asks for
both. A server that asks for one of them prefers hosts without.
"""),
    cfg.FloatOpt("task_group_weight_multiplier", default=10000000.0, min=0, help="""
For nova-scheduler with ``nova_lxd_ext.scheduler.TaskGroupWeigher`` among its ``[filter_scheduler] weight_classes``: how
much more the host weighs that a job's server is placed on. Keep it above the sum of all others, of which
``build_failure_weight_multiplier`` has 1000000 by default: a server on another host breaks the placement of its job.
"""),
    cfg.ListOpt("network_tree_keys", default=["rack", "switch"], help="""
For nova-scheduler with ``nova_lxd_ext.scheduler.TaskGroupFilter`` among its ``[filter_scheduler] available_filters``:
metadata keys of host aggregates that say where in the network a host is, from the root of the tree. Servers of a job
are placed below the lowest common part, and their ranks follow the tree.
"""),
]

ALL = ENGINE + LIMITS + SNAPSHOTS + MIGRATION + RESIZE + VOLUMES + DEVICES + SECURITY + PROCESSES + SCHEDULER


def register(conf: cfg.ConfigOpts = CONF) -> None:
    conf.register_group(GROUP)
    conf.register_opts(ALL, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, list[Any]]]:
    """Return the options for oslo-config-generator (``oslo.config.opts``)."""
    return [(GROUP, ALL)]


register()
