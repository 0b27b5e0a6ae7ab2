# SPDX-License-Identifier: Apache-2.0
"""The short form for people: what the drivers are for, each fact looked up when it is told."""

import time
from collections.abc import Callable

from tools.oned.scenarios.devices import HOT_GPU, gpus, newest
from tools.oned.scenarios.life import memory, other
from tools.oned.stage import GPU, LXDONE, NETWORK, ONEDOCK, Stage

MIB = 1 << 20


class Story:
    """:param tell: prints a line
    :ivar facts: what was looked up, whether it holds, and seconds since the story began
    """

    def __init__(self, stage: Stage, tell: Callable[[str], None]) -> None:
        self._stage = stage
        self._tell = tell
        self._began = time.monotonic()
        self.facts: list[tuple[str, bool, float]] = []

    def fact(self, words: str, holds: bool) -> None:
        self.facts.append((words, holds, time.monotonic() - self._began))
        self._tell(f"{'ok ' if holds else 'NOT'} {words}")

    def tell(self) -> bool:
        """Tell the story.

        :returns: whether every fact holds
        :raises AssertionError, MachineFailed: it cannot go on
        """
        stage = self._stage
        before = stage.things()
        self._tell("A container of Docker and a container of LXD, both VMs of OpenNebula, each with a GPU:")
        vms = {}
        for driver, node in zip((ONEDOCK, LXDONE), stage.cloud.nodes, strict=True):  # a node has two GPUs
            (vms[driver],) = stage.vms_on(driver, node, NETWORK + GPU)
            stage.fill(vms[driver])
        for driver, vm in vms.items():
            self.fact(f"VM {vm} runs by {driver.name} on {stage.one.host(vm)} and sees one GPU", gpus(stage, vm) == 1)
        self._tell("The one on Docker gets a second GPU while it runs, and more memory:")
        vm = vms[ONEDOCK]
        stage.inside(vm, "(while :; do echo >> /count; sleep 0.2; done) > /dev/null 2>&1 &")
        stage.hot(vm, HOT_GPU)
        self.fact("it sees two GPUs", gpus(stage, vm) == 2)
        stage.do(vm, "nic-detach", newest(stage, vm))
        self.fact("and one again", gpus(stage, vm) == 1)
        stage.do(vm, "resize", "--memory", "192")
        self.fact("it may use 192 MiB", memory(stage, vm) == 192 * MIB)
        counted = [stage.inside(vm, "wc -l < /count"), time.sleep(1), stage.inside(vm, "wc -l < /count")]
        self.fact("a process in it went on meanwhile", int(str(counted[2])) > int(str(counted[0])))
        self._tell("The one on LXD moves to the other node with all it wrote:")
        vm = vms[LXDONE]
        sums, there = stage.sums(vm), other(stage, vm)
        stage.migrate(vm, there, "--poff")
        self.fact(f"it runs on {stage.one.host(vm)} and has its files and a GPU",
                  stage.one.host(vm) == there and stage.sums(vm) == sums and gpus(stage, vm) == 1)
        stage.end(*vms.values())
        self.fact("nothing of either is left on a node", not stage.left(before))
        return all(holds for _, holds, _ in self.facts)
