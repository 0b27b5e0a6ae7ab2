# SPDX-License-Identifier: Apache-2.0
"""Hosts, datastores, images and networks of the cloud, made by OpenNebula's commands; templates of VMs."""

import subprocess
from pathlib import Path

from tests.functional import images
from tests.functional_docker.dockerd import IMAGES, root_file_system
from tools.oned.cloud import HOME, Cloud
from tools.oned.machine import CHECKOUT, Machine, await_that
from tools.oned.one import One

SAMPLES = CHECKOUT / "etc/opennebula/onedock/samples"
IMAGES_FROM = "/var/tmp"  # noqa: S108  (the datastores' SAFE_DIRS, on the front-end's own layer)
SMALL_SIZE = "600m"  # which a scenario makes as small as what is in it
NETWORK = 'NAME="net"\nVN_MAD="dummy"\nBRIDGE="onebr"\nAR=[TYPE="IP4",IP="10.1.0.10",SIZE="200"]\n'
# What a NIC of the network "guarded" lets in; of the others, all.
GUARD = """NAME="web"
RULE=[PROTOCOL="TCP",RANGE="80",RULE_TYPE="inbound"]
RULE=[PROTOCOL="ALL",RULE_TYPE="outbound"]
"""
NETWORKS = (
    'NAME="guarded"\nVN_MAD="fw"\nBRIDGE="onesg"\nFILTER_IP_SPOOFING="YES"\n'
    'FILTER_MAC_SPOOFING="YES"\nAR=[TYPE="IP4",IP="10.4.0.10",SIZE="50"]\nNETWORK_MASK="255.255.255.0"\n',
    'NAME="switched"\nVN_MAD="ovswitch"\nBRIDGE="oneovs"\nVLAN_ID="7"\nNETWORK_MASK="255.255.255.0"\n'
    'AR=[TYPE="IP4",IP="10.5.0.10",SIZE="50"]\n',
    'NAME="switched-apart"\nVN_MAD="ovswitch"\nBRIDGE="oneovs"\nVLAN_ID="8"\nNETWORK_MASK="255.255.255.0"\n'
    'AR=[TYPE="IP4",IP="10.5.0.100",SIZE="50"]\n',
    'NAME="tunnelled"\nVN_MAD="vxlan"\nPHYDEV="cloud"\nVLAN_ID="70"\nNETWORK_MASK="255.255.255.0"\n'
    'AR=[TYPE="IP4",IP="10.6.0.10",SIZE="50"]\n')
LABEL = 'NAME="accel"\nVN_MAD="dummy"\nBRIDGE="onebr"\nAR=[TYPE="ETHER",SIZE="50"]\n'
# Of each driver: the transfer driver of a directory that all nodes share, and of one that each node has for itself.
TRANSFERS = {"onedock": ("onedock", "onedock"), "lxdone": ("shared", "local")}
SHARED_IMAGES = "images-shared"


def make(cloud: Cloud, one: One) -> None:
    add_hosts(cloud, one, "onedock", "")
    # Later: oned copies its scripts to a directory that a node's two hosts share, and two copies at once fail.
    add_hosts(cloud, one, "lxdone", "-lxd")
    for name in ("image", "system"):
        one("onedatastore", "create", str(SAMPLES / f"{name}-datastore.tmpl"))
    for driver, (together, apart) in TRANSFERS.items():
        mount_shared(cloud, one.create("datastore", f'NAME="{driver}-shared"\nTYPE="SYSTEM_DS"\nTM_MAD="{together}"\n'))
        mount_small(cloud, one.create("datastore", f'NAME="{driver}-small"\nTYPE="SYSTEM_DS"\nTM_MAD="{apart}"\n'))
    # Images of a datastore with the driver local, as the default one, cannot be in a directory that nodes share.
    mount_shared(cloud, one.create("datastore", f'NAME="{SHARED_IMAGES}"\nTYPE="IMAGE_DS"\nDS_MAD="fs"\n'
                                                'TM_MAD="shared"\n'))
    one.create("vnet", NETWORK)
    one.create("vnet", LABEL)
    for network in NETWORKS:
        one.create("vnet", network)
    guard = one.create("secgroup", GUARD)
    # A new network also has the default group, which lets everything in.
    one("onevnet", "update", "guarded", one.file(f'SECURITY_GROUPS="{guard}"\n'), "--append")
    for datastore in ("default", "containers", SHARED_IMAGES):
        number = one("onedatastore", "list", "--csv", "--list", "ID", "--filter", f"NAME={datastore}").split()[-1]
        await_that(lambda number=number: int(one.show("datastore", number)["FREE_MB"]) > 0,
                   f"datastore {datastore} is monitored")
    put_images(cloud, one)


def add_hosts(cloud: Cloud, one: One, driver: str, suffix: str) -> None:
    for node in cloud.nodes:
        one("onehost", "create", f"{node.name}{suffix}", "--im", driver, "--vm", driver)
    await_that(lambda: all(line.endswith(",on") for line in one("onehost", "list", "--csv").split("\n")[1:] if line),
               f"the hosts of {driver} are monitored")


def mount_shared(cloud: Cloud, datastore: str) -> None:
    """Let all nodes have one directory for a datastore."""
    shared = HOME / f"shared-{datastore}"
    shared.mkdir()
    subprocess.run(["chown", "9869:9869", str(shared)], check=True)
    for machine in cloud.machines:
        machine.run("mount", "--bind", str(shared), directory(machine, datastore))


def mount_small(cloud: Cloud, datastore: str) -> None:
    """Let every node have a small file system for a datastore."""
    for node in cloud.nodes:
        node.run("mount", "-t", "tmpfs", "-o", f"size={SMALL_SIZE},uid=9869,gid=9869,mode=750", "tmpfs",
                 directory(node, datastore))


def directory(machine: Machine, datastore: str) -> str:
    path = f"/var/lib/one/datastores/{datastore}"
    machine.run("mkdir", "-p", path, user="oneadmin")
    return path


def put_images(cloud: Cloud, one: One) -> None:
    one.append("datastore", "default", 'NO_DECOMPRESS="yes"\n')
    formats = images.all_formats(HOME / "images")
    archive = docker_archive(cloud.nodes[0])
    for file in (archive, *formats.values()):
        cloud.front.run("install", "-m", "644", str(file), f"{IMAGES_FROM}/{file.name}")
    for name, datastore, file in (("polite", "containers", archive), ("machine", "default", formats["unified"])):
        one("oneimage", "create", "--datastore", datastore, "--name", name, "--type", "OS", "--path",
            f"{IMAGES_FROM}/{file.name}", "--size", "256")
    await_that(lambda: one("oneimage", "list", "--csv").count(",rdy") == 2, "the images are registered")


def docker_archive(node: Machine) -> Path:
    """Build what `docker save` makes of an image whose program ends when asked to, and leave nothing in Docker."""
    docker = ("docker", "--host", f"unix://{node.home}/docker/docker.sock")
    root, archive = HOME / "root.tar", HOME / "polite.tar"
    root.write_bytes(root_file_system())
    node.run(*docker, "import", "--change", f'CMD ["/bin/sh", "-c", "{IMAGES["polite"]}"]', str(root), "polite")
    node.run(*docker, "save", "--output", str(archive), "polite")
    node.run(*docker, "rmi", "polite")
    return archive
