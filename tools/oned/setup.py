"""Hosts, datastores, images and networks of the cloud, made by OpenNebula's commands; templates of VMs."""

import subprocess
from pathlib import Path

from tests.functional import images
from tests.functional_docker.dockerd import IMAGES, root_file_system
from tools.oned.cloud import HOME, Cloud
from tools.oned.machine import CHECKOUT, Machine, await_that
from tools.oned.one import One

SAMPLES = CHECKOUT / "etc/opennebula/onedock/samples"
SHARED = "containers-shared"
IMAGES_FROM = "/var/tmp"  # noqa: S108  (the datastores' SAFE_DIRS, on the front-end's own layer)
NETWORK = 'NAME="net"\nVN_MAD="dummy"\nBRIDGE="onebr"\nAR=[TYPE="IP4",IP="10.1.0.10",SIZE="200"]\n'
GPU = 'PCI=[VENDOR="10de",CLASS="0302"]\n'
CONTAINER = """NAME="{name}"
CPU=0.2
MEMORY=128
SCHED_REQUIREMENTS="HYPERVISOR=\\"onedock\\""
SCHED_DS_REQUIREMENTS="NAME=\\"{datastore}\\""
DISK=[IMAGE="polite"]
DISK=[TYPE="fs",FORMAT="raw",SIZE=32]
NIC=[NETWORK="net"]
CONTEXT=[NETWORK="YES"]
{more}"""
MACHINE = """NAME="{name}"
CPU=0.2
MEMORY=128
SCHED_REQUIREMENTS="HYPERVISOR=\\"lxdone\\""
SCHED_DS_REQUIREMENTS="NAME=\\"system\\""
DISK=[IMAGE="machine",SIZE=256]
NIC=[NETWORK="net"]
CONTEXT=[NETWORK="YES"]
"""


def make(cloud: Cloud, one: One) -> None:
    add_hosts(cloud, one, "onedock", "")
    # Later: oned copies its scripts to a folder that a node's two hosts share, and two copies at once fail.
    add_hosts(cloud, one, "lxdone", "-lxd")
    for name in ("image", "system"):
        one("onedatastore", "create", str(SAMPLES / f"{name}-datastore.tmpl"))
    share(cloud, one.create("datastore", f'NAME="{SHARED}"\nTYPE="SYSTEM_DS"\nTM_MAD="onedock"\n'))
    one.create("vnet", NETWORK)
    await_that(lambda: int(one.show("datastore", "100")["FREE_MB"]) > 0, "the datastore is monitored")
    put_images(cloud, one)


def add_hosts(cloud: Cloud, one: One, driver: str, suffix: str) -> None:
    for node in cloud.nodes:
        one("onehost", "create", f"{node.name}{suffix}", "--im", driver, "--vm", driver)
    await_that(lambda: all(line.endswith(",on") for line in one("onehost", "list", "--csv").split("\n")[1:] if line),
               f"the hosts of {driver} are monitored")


def share(cloud: Cloud, datastore: str) -> None:
    """Let all nodes have one folder for a datastore."""
    shared = HOME / "shared"
    shared.mkdir()
    subprocess.run(["chown", "9869:9869", str(shared)], check=True)
    for node in cloud.nodes:
        path = f"/var/lib/one/datastores/{datastore}"
        node.run("mkdir", "-p", path, user="oneadmin")
        node.run("mount", "--bind", str(shared), path)


def put_images(cloud: Cloud, one: One) -> None:
    one.append("datastore", "default", 'NO_DECOMPRESS="yes"\n')
    files = {"polite": docker_archive(cloud.nodes[0]), "machine": images.all_formats(HOME / "images")["unified"]}
    for name, file in files.items():
        cloud.front.run("install", "-m", "644", str(file), f"{IMAGES_FROM}/{file.name}")
        one("oneimage", "create", "--datastore", "containers" if name == "polite" else "default", "--name", name,
            "--type", "OS", "--path", f"{IMAGES_FROM}/{file.name}", "--size", "256")
    await_that(lambda: one("oneimage", "list", "--csv").count(",rdy") == len(files), "the images are registered")


def docker_archive(node: Machine) -> Path:
    """What `docker save` makes of an image whose program ends when it is asked to, and of which Docker has nothing
    afterwards."""
    docker = ("docker", "--host", f"unix://{node.home}/docker/docker.sock")
    root, archive = HOME / "root.tar", HOME / "polite.tar"
    root.write_bytes(root_file_system())
    node.run(*docker, "import", "--change", f'CMD ["/bin/sh", "-c", "{IMAGES["polite"]}"]', str(root), "polite")
    node.run(*docker, "save", "--output", str(archive), "polite")
    node.run(*docker, "rmi", "polite")
    return archive
