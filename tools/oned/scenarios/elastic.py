# SPDX-License-Identifier: Apache-2.0
"""A VM that gives a core to another one by ``onevm resize`` and takes it back, with programs that follow and others.

oned's own accounting decides: the other VM waits for its scheduler until the core is free. The elastic service gives
each VM the cores that it may have.
"""

import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import docker

from tools.elasticjobs import image, jobs
from tools.elasticjobs.jobs import AIM, OPENMP, TRADERS, Program
from tools.oned.debianimages import registered
from tools.oned.machine import Machine, MachineFailed
from tools.oned.node import socket
from tools.oned.scenarios import for_each_driver
from tools.oned.stage import LXDONE, Driver, Stage, require

CORES = 2  # of the node, when its VM is alone
TURN = 10.0  # s in which work is measured
FINISH = 90  # s of work on one core, of the program that follows
WAITS = 6.0  # s that another VM must not be scheduled in; oned's scheduler looks every two
START_TIMEOUT, END_TIMEOUT = 60.0, 300.0  # s
NANOSECONDS = 10**9
SIZE = 2048  # MiB of a root
TEMPLATE = """NAME="{name}"
CPU={cores}
VCPU={cores}
MEMORY={memory}
HPC=[ELASTIC="cores=1"]
SCHED_REQUIREMENTS="NAME=\\"{host}\\""
SCHED_DS_REQUIREMENTS="NAME=\\"{datastore}\\""
DISK=[{image}]
CONTEXT=[NETWORK="YES"]
"""
# $1 file with its pid, then the command.
SERVICE = 'echo $$ > "$1"; shift; exec "$@"'
BUSY = "(while :; do :; done) > /dev/null 2>&1 &"


class Measured(NamedTuple):
    """:ivar rate: steps a second
    :ivar per_cpu: steps for each second of CPU time
    """

    rate: float
    per_cpu: float


class Trade:
    """VMs of one driver on one node.

    :param picture: ID of the image with the programs
    """

    def __init__(self, stage: Stage, driver: Driver, picture: str) -> None:
        self.stage, self.driver = stage, driver
        self._node = stage.cloud.nodes[0]
        self._host = f"{self._node.name}{driver.suffix}"
        self._image = f'IMAGE_ID="{picture}"' + (f',SIZE={SIZE}' if driver is LXDONE else "")

    def job(self, cores: int) -> str:
        return self._running(self._create("job", cores, 768, self._image))

    def other(self) -> str:
        """Create a VM that needs a core, and return without waiting for it."""
        return self._create("other", 1, 64, f'IMAGE="{self.driver.image}"{self.driver.root}')

    def busy(self, vm: str) -> str:
        """Wait for the other VM, and let it have work."""
        self._running(vm)
        self.stage.inside(vm, BUSY)
        return vm

    def _create(self, name: str, cores: int, memory: int, root: str) -> str:
        return self.stage.one.create("vm", TEMPLATE.format(name=name, cores=cores, memory=memory, host=self._host,
                                                           datastore=self.driver.datastore, image=root))

    def _running(self, vm: str) -> str:
        self.stage.one.running(vm)
        return vm

    def resize(self, vm: str, cores: int) -> None:
        self.stage.do(vm, "resize", "--enforce", "--cpu", str(cores), "--vcpu", str(cores))

    def start(self, vm: str, command: str) -> None:
        self.stage.inside(vm, shlex.join(jobs.start(command)))

    def lines(self, vm: str) -> list[str]:
        return self.stage.inside(vm, f"cat {jobs.OUTPUT}").splitlines()

    def parts(self, vm: str, count: int) -> None:
        """Wait for two lines of progress by so many threads or ranks."""
        def reached() -> bool:
            lines = self.lines(vm)
            require(not jobs.ended(lines), f"the program ended: {lines[-5:]}")
            return [line.parts for line in jobs.progress(lines)[-2:]] == [count, count]

        self.stage.await_that(reached, f"it works in {count} parts", START_TIMEOUT)

    def cpu(self, vm: str) -> float:
        """Return the seconds of CPU time that it has had."""
        if self.driver is LXDONE:
            state = json.loads(self.stage.engine(self._node, self.driver, "query", f"/1.0/instances/one-{vm}/state"))
            return float(state["cpu"]["usage"]) / NANOSECONDS
        with closing(docker.DockerClient(base_url=socket(self._node))) as client:
            usage = client.api.stats(f"one-{vm}", stream=False, one_shot=True)["cpu_stats"]["cpu_usage"]
        return float(usage["total_usage"]) / NANOSECONDS

    def measure(self, vm: str) -> Measured:
        """Let it work for a while, and until it has printed something."""
        seen, used, began = len(jobs.progress(self.lines(vm))), self.cpu(vm), time.monotonic()
        time.sleep(TURN)
        done = self.stage.await_that(lambda: jobs.progress(self.lines(vm))[seen:], "progress", START_TIMEOUT)
        used, seconds = self.cpu(vm) - used, time.monotonic() - began
        rate = statistics.fmean(line.rate for line in done)
        return Measured(rate, rate * seconds / used)


@contextmanager
def service(node: Machine, driver: Driver) -> Iterator[None]:
    """Let the elastic service run on a node within the block."""
    pid, name = f"{node.home}/elastic.pid", f"elastic-{driver.name}"
    endpoint = f"lxd={node.home}/lxd/unix.socket" if driver is LXDONE else f"docker={socket(node)}"
    process = node.begin(name, "sh", "-c", SERVICE, "sh", pid, str(Path(sys.executable).with_name("containerhost")),
                         "elastic", "run", "--engine", endpoint, "--interval", "1", "--notice", "10", "--state",
                         f"{node.home}/elastic")
    try:
        yield
        require(process.poll() is None, f"the elastic service ended; its log is {node.home}/{name}.log")
    finally:
        node.run("sh", "-c", f"kill $(cat {pid}) || true")
        process.wait(60)


@for_each_driver
def elastic(stage: Stage, driver: Driver) -> str:
    with registered(stage, driver, "elastic-jobs", image.recipe(), image.INIT, SIZE) as picture, \
            service(stage.cloud.nodes[0], driver):
        trade = Trade(stage, driver, picture)
        return "; ".join(told(trade, program) for program in TRADERS)


def told(trade: Trade, program: Program) -> str:
    """Compare a program that follows with one that does not, and with a VM of fixed size."""
    base = fixed(trade, program)
    kept = rigid(trade, program).per_cpu / base.per_cpu
    followed, seconds = following(trade, program, base.rate)
    share = followed.per_cpu / base.per_cpu
    if program is OPENMP:
        require(share >= AIM, f"{program.name} follows with {share:.2f} of the fixed one's work")
        require(kept < share, f"{program.name} does {kept:.2f} if it does not follow, {share:.2f} if it does")
    return f"{program.name}: follows {share:.2f}, keeps its parts {kept:.3f}, ends after {seconds:.0f} s of {FINISH} s"


def fixed(trade: Trade, program: Program) -> Measured:
    """Measure a VM that has one core beside another one."""
    vm, other = trade.job(1), trade.busy(trade.other())
    trade.start(vm, program.rigid(jobs.FOREVER, 1))
    trade.parts(vm, 1)
    found = trade.measure(vm)
    trade.stage.end(vm, other)
    return found


def rigid(trade: Trade, program: Program) -> Measured:
    """Measure a program that keeps its threads or ranks, after a shrink."""
    vm = trade.job(CORES)
    trade.start(vm, program.rigid(jobs.FOREVER, CORES))
    trade.parts(vm, CORES)
    trade.resize(vm, 1)
    other = trade.busy(trade.other())
    found = trade.measure(vm)
    trade.stage.end(vm, other)
    return found


def following(trade: Trade, program: Program, rate: float) -> tuple[Measured, float]:
    """Have a job give a core away, take it back and end.

    :param rate: steps a second on one core
    :returns: its work after the shrink, and the seconds that it took
    """
    steps = max(1, round(rate * FINISH))
    vm = trade.job(CORES)
    began = time.monotonic()
    trade.start(vm, program.following(steps))
    trade.parts(vm, CORES)
    other = trade.other()
    require_waiting(trade.stage, other)
    trade.resize(vm, 1)
    trade.busy(other)
    trade.parts(vm, 1)
    found = trade.measure(vm)
    require_refused(lambda: trade.resize(vm, CORES), "the other VM has the core")
    trade.stage.end(other)
    trade.resize(vm, CORES)
    trade.parts(vm, CORES)
    lines = trade.stage.await_that(lambda: ended(trade.lines(vm)), "the job ends", END_TIMEOUT)
    seconds = time.monotonic() - began
    wrong = jobs.complaint(program, lines, steps)
    require(not wrong, f"{program.name}: {wrong}")
    trade.stage.end(vm)
    return found, seconds


def ended(lines: Sequence[str]) -> Sequence[str]:
    return lines if jobs.ended(lines) else ()


def require_waiting(stage: Stage, vm: str) -> None:
    """Require that oned's scheduler finds no room for a VM."""
    time.sleep(WAITS)
    state = stage.one.state(vm)
    require(state == "PENDING LCM_INIT", f"a VM for which there is no core is {state}")


def require_refused(action: Callable[[], object], reason: str) -> None:
    with suppress(MachineFailed):
        action()
        raise AssertionError(f"a VM grows although {reason}")
