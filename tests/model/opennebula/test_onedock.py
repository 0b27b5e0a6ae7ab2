# SPDX-License-Identifier: Apache-2.0
"""Sequences of what oned does with VMs on a node of onedock's."""

from tests.model import frame
from tests.model.opennebula.docker import DockerNode
from tests.model.opennebula.machine import OpenNebula


class Onedock(OpenNebula):
    node_class = DockerNode


class OnedockTest(frame.ModelTest):
    machine = Onedock
    rounds = 6
    steps = 20
