#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Give the cloud back what a Slurm cluster does not use, and fetch it again when jobs wait.

    scale.py slurm-3f2a9c01 ssh debian@192.0.2.10

Runs where the tenant's credentials are: OS_CLOUD names a cloud of clouds.yaml, as for hpcjob. Slurm decides (its power
saving): the server of a node that it powers down is shelved, that of a node that it powers up is unshelved. Nothing is
remembered between two rounds, so this may end at any time and be started again.
"""

import argparse
import subprocess
import time
from collections.abc import Mapping, Sequence

import openstack

INTERVAL = 5.0  # s
TIMEOUT = 60  # s
# Of a line: NODE STATE+FLAG+FLAG
SINFO = ("sinfo", "--noheader", "--Node", "--Format=NodeHost:128,StateComplete:128")
# Slurm's target, and the present state of a server -> the action.
ACTIONS = {("powering_down", "ACTIVE"): "shelve", ("powered_down", "ACTIVE"): "shelve",
           ("powering_up", "SHELVED_OFFLOADED"): "unshelve"}


def decide(nodes: str, servers: Mapping[str, str]) -> dict[str, str]:
    """Return what to do with which server.

    :param nodes: what ``SINFO`` prints
    :param servers: name -> status, of those with which nothing is being done
    """
    return {node: action for node, flags in parse(nodes).items() for (flag, status), action in ACTIONS.items()
            if flag in flags and servers.get(node) == status}


def parse(nodes: str) -> dict[str, list[str]]:
    """Return each node's state and its flags."""
    return {words[0]: words[1].split("+") for line in nodes.splitlines() if len(words := line.split()) > 1}


def look(cloud: openstack.connection.Connection, ident: str, shell: Sequence[str]) -> None:
    """Do what is to be done now.

    :param shell: command line that runs what is appended to it in a member
    """
    told = subprocess.run([*shell, *SINFO], check=True, text=True, capture_output=True, timeout=TIMEOUT).stdout
    servers = {server.name: server for server in cloud.compute.servers(name=f"^{ident}-")
               if server.metadata.get("hpcjob") == ident and not server.task_state}
    for name, action in decide(told, {name: server.status for name, server in servers.items()}).items():
        print(f"{action} {name}", flush=True)
        getattr(cloud.compute, f"{action}_server")(servers[name].id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ident", help="id of the job, as hpcjob printed it")
    parser.add_argument("shell", nargs=argparse.REMAINDER, help="command that reaches the first member")
    chosen = parser.parse_args()
    cloud = openstack.connect(api_timeout=TIMEOUT)
    while True:
        try:
            look(cloud, chosen.ident, chosen.shell)
        except subprocess.CalledProcessError as error:
            print(f"{chosen.shell[-1]}: {error.stderr.strip()}", flush=True)
        except (subprocess.TimeoutExpired, openstack.exceptions.SDKException) as error:
            print(error, flush=True)
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main()
