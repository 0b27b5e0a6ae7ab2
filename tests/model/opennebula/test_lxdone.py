# SPDX-License-Identifier: Apache-2.0
"""Sequences of what oned does with VMs on a node of lxdone's."""

from tests.model import frame
from tests.model.opennebula.lxd import LxdNode
from tests.model.opennebula.machine import OpenNebula


class Lxdone(OpenNebula):
    node_class = LxdNode


class LxdoneTest(frame.ModelTest):
    machine = Lxdone
    rounds = 3
    steps = 20
