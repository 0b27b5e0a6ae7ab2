# SPDX-License-Identifier: Apache-2.0
"""List oned's transitions by the user's request and by the result of the driver's action.

LCM states are of OpenNebula's VirtualMachine.h; what follows is of its LifeCycleStates.cc.
"""

from typing import NamedTuple

CLEANUP_RECREATE, CLEANUP_DELETE, TERMINATE = 15, 23, 12


class Transition(NamedTuple):
    """:ivar before, done, failed: states of the VM
    :ivar lcm: what the VM is in meanwhile
    """

    before: str
    lcm: int
    action: str
    done: str
    failed: str


# By what the user asks.
ACTIONS = {
    "retry": Transition("boot failure", 2, "deploy", "running", "boot failure"),
    "resume": Transition("poweroff", 20, "deploy", "running", "poweroff"),
    "resume suspended": Transition("suspended", 21, "restore", "running", "suspended"),
    "resume stopped": Transition("stopped", 22, "restore", "running", "stopped"),
    "resume undeployed": Transition("undeployed", 32, "deploy", "running", "undeployed"),
    "resume unknown": Transition("unknown", 19, "deploy", "running", "unknown"),
    "poweroff": Transition("running", 18, "shutdown", "poweroff", "running"),
    "poweroff hard": Transition("running", 18, "cancel", "poweroff", "running"),
    "suspend": Transition("running", 6, "save", "suspended", "running"),
    "stop": Transition("running", 5, "save", "stopped", "running"),
    "undeploy": Transition("running", 29, "shutdown", "undeployed", "running"),
    "undeploy hard": Transition("running", 29, "cancel", "undeployed", "running"),
    "terminate": Transition("running", TERMINATE, "shutdown", "done", "running"),
    "terminate hard": Transition("running", TERMINATE, "cancel", "done", "running"),
    "reboot": Transition("running", 3, "reboot", "running", "running"),
    "reset": Transition("running", 3, "reset", "running", "running"),
    "updateconf": Transition("running", 17, "reconfigure", "running", "running"),
}


def hotplug(action: str) -> Transition:
    return Transition("running", 25, action, "running", "running")
