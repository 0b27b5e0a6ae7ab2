# SPDX-License-Identifier: Apache-2.0
"""Test the life cycle of a VM, on both nodes."""

from tools.oned.machine import Machine, MachineFailed
from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.scenarios.disks import image_id, temporary
from tools.oned.setup import SHARED_IMAGES
from tools.oned.stage import DRIVERS, GPU, LXDONE, NETWORK, ONEDOCK, Driver, Stage, require

MANY = 20
ROOTS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MIB = 1 << 20
RESTARTS = {"lxdone": 'LXD_LIVE_MIGRATION="restart"\n', "onedock": 'DOCKER_LIVE_MIGRATION="restart"\n'}
TICKS = 100  # a second, in /proc/PID/stat


@scenario
def nodes_are_in_order(stage: Stage) -> str:
    """Run the check that the manual asks of an operator on each node."""
    for node in stage.cloud.nodes:
        for driver in DRIVERS:
            told = check_of(node, driver)
            require(all(line.endswith(": in order") for line in told.splitlines()), told)
    return "lxdone-install node and onedock-install node: in order"


@scenario
def node_without_a_datastores_directory_is_told(stage: Stage) -> str:
    node = stage.cloud.nodes[1]
    node.run("mv", "/var/lib/one/datastores", "/var/lib/one/datastores-away")
    try:
        for driver in DRIVERS:
            told = check_of(node, driver)
            require("there is no directory /var/lib/one/datastores" in told, told)
    finally:
        node.run("mv", "/var/lib/one/datastores-away", "/var/lib/one/datastores")
    return "install -d -o oneadmin …"


def check_of(node: Machine, driver: Driver) -> str:
    """Return the output of the driver's check of a node, run as root with the PATH of a login."""
    return node.run("env", f"PATH={ROOTS_PATH}", "sh", "-c", f"{driver.name}-install node || true")


@for_each_driver
def life_cycle(stage: Stage, driver: Driver) -> str:
    return cycle(stage, driver, NETWORK)


@for_each_driver
def life_cycle_with_a_gpu(stage: Stage, driver: Driver) -> str:
    return cycle(stage, driver, NETWORK + GPU)


def cycle(stage: Stage, driver: Driver, more: str) -> str:
    vm = stage.vm(driver, "cycle", more)
    before = stage.sums(vm)

    def check(done: str) -> None:
        require(stage.sums(vm) == before, f"the content changed: {done}")
        if GPU in more:
            require("nvidia" in stage.inside(vm, "ls /dev"), f"the GPU is gone: {done}")

    for words, state in ((("poweroff",), "POWEROFF LCM_INIT"), (("poweroff", "--hard"), "POWEROFF LCM_INIT"),
                         (("suspend",), "SUSPENDED LCM_INIT"), (("undeploy",), "UNDEPLOYED LCM_INIT")):
        stage.do(vm, *words, then=state)
        stage.on(vm)
        check(" ".join(words))
    for words in (("reboot",), ("reboot", "--hard")):
        first = first_process(stage, vm)
        stage.one("onevm", words[0], vm, *words[1:])
        stage.await_that(lambda first=first: begun_anew(stage, vm, first), f"{' '.join(words)}")
        stage.one.running(vm)
        check(" ".join(words))
    if driver is LXDONE:
        stage.do(vm, "stop", then="STOPPED LCM_INIT")
        stage.on(vm)
        check("stop")
    else:
        stage.refused(vm, "memory", "stop")
        check("stop, refused")
    stage.end(vm)
    return "poweroff, suspend, undeploy, reboot, stop: the content stays"


def first_process(stage: Stage, vm: str) -> str:
    """When its first process began, in ticks since the host's start."""
    return stage.inside(vm, "cat /proc/1/stat | cut -d' ' -f22")


def begun_anew(stage: Stage, vm: str, first: str) -> bool:
    """Return whether its first process is another one than before."""
    try:
        return first_process(stage, vm) != first
    except MachineFailed:  # it is away for a moment
        return False


@for_each_driver
def terminated_from_every_state(stage: Stage, driver: Driver) -> str:
    states = {"poweroff": "POWEROFF LCM_INIT", "suspend": "SUSPENDED LCM_INIT", "undeploy": "UNDEPLOYED LCM_INIT"}
    vms = {action: stage.vm(driver, action, NETWORK + GPU) for action in ("poweroff", "suspend")}
    vms["undeploy"] = stage.vm(driver, "undeploy")
    for action, vm in vms.items():
        stage.do(vm, action, then=states[action])
    held = stage.one.create("vm", stage.template(driver, "held"), "--hold")
    for vm in (*vms.values(), held):
        stage.one("onevm", "terminate", vm)
    for vm in (*vms.values(), held):
        stage.one.over(vm)
    again = stage.vm(driver, "again", GPU * 2)  # what the others had is free
    stage.end(again)
    return "off, suspended, undeployed, held"


@for_each_driver
def moved_there_and_back_between_own_directories(stage: Stage, driver: Driver) -> str:
    return moved(stage, driver, driver.datastore)


@for_each_driver
def moved_there_and_back_in_a_shared_directory(stage: Stage, driver: Driver) -> str:
    if driver is ONEDOCK:
        return moved(stage, driver, "onedock-shared")
    stage.one("oneimage", "clone", driver.image, "shared", "--datastore", SHARED_IMAGES)
    image = image_id(stage, "shared")
    with temporary(stage, image):
        return moved(stage, driver, "lxdone-shared", "shared")


def moved(stage: Stage, driver: Driver, datastore: str, image: str = "") -> str:
    plain = stage.vm(driver, "stays", datastore=datastore, image=image)
    stage.refused(plain, "", "migrate", "--live", other(stage, plain))
    if driver is LXDONE:  # which oned refuses for a VM with PCI devices
        require_moved(stage, plain)
    stage.end(plain)
    vm = stage.vm(driver, "moves", NETWORK + GPU, datastore=datastore, image=image)
    for _ in range(4):
        require_moved(stage, vm, "--poff")
        require("nvidia" in stage.inside(vm, "ls /dev"), "the GPU is gone")
    before = stage.sums(vm)
    stage.off(vm)
    there = other(stage, vm)
    stage.migrate(vm, there, then="POWEROFF LCM_INIT")
    stage.on(vm)
    require(stage.one.host(vm) == there and stage.sums(vm) == before, "moved while it was off")
    stage.end(vm)
    return "four times by --poff, once while it was off; --live refused"


@for_each_driver
def migrated_while_it_runs(stage: Stage, driver: Driver) -> str:
    """Move a VM by a live migration, there and back, while it writes."""
    if driver is ONEDOCK:
        return migrated_live(stage, driver, "onedock-shared")
    stage.one("oneimage", "clone", driver.image, "live", "--datastore", SHARED_IMAGES)
    with temporary(stage, image_id(stage, "live")):
        return migrated_live(stage, driver, "lxdone-shared", "live")


def migrated_live(stage: Stage, driver: Driver, datastore: str, image: str = "") -> str:
    restarts = RESTARTS[driver.name]
    vm = stage.vm(driver, "live", NETWORK + restarts, datastore=datastore, image=image)
    if driver is LXDONE and "migration_vm_live" not in stage.engine(stage.node(vm), LXDONE, "query", "/1.0"):
        stage.refused(vm, "use onevm migrate without --live", "migrate", "--live", other(stage, vm))
        stage.end(vm)
        return "refused: LXD cannot send differences"
    stops = []
    for _ in range(2):
        stage.inside(vm, "(while :; do date +%s >> /written; sleep 0.2; done) > /dev/null 2>&1 &")
        first = first_process(stage, vm)
        require_moved(stage, vm, "--live")
        require(first_process(stage, vm) != first, "it was not restarted")
        last = int(stage.inside(vm, "tail -n 1 /written"))
        now, up = stage.node(vm).run("sh", "-c", "date +%s; cat /proc/uptime").split()[:2]
        stops.append(int(now) - int(float(up)) + int(first_process(stage, vm)) // TICKS - last)
    stage.off(vm)
    stage.on(vm)
    apart = stage.vm(driver, "apart", restarts)
    stage.refused(apart, "use onevm migrate without --live", "migrate", "--live", other(stage, apart))
    stage.end(vm, apart)
    return f"twice by --live: off for {' and '.join(map(str, stops))} s; refused between own directories"


def require_moved(stage: Stage, vm: str, *words: str) -> None:
    """Move a running VM to the other node, and find there what it wrote."""
    before = stage.sums(vm)
    stage.migrate(vm, other(stage, vm), *words)
    require(stage.sums(vm) == before, "the content changed")


def other(stage: Stage, vm: str) -> str:
    """The host on the other node."""
    here = stage.node(vm)
    return next(node.name for node in stage.cloud.nodes if node is not here) + stage.driver(vm).suffix


@for_each_driver
def twenty_at_once(stage: Stage, driver: Driver) -> str:
    vms = stage.one.create_vms(stage.template(driver, "many-%i", NETWORK), MANY)
    require(len(vms) == MANY, f"{len(vms)} were created")
    for vm in vms:
        stage.one.running(vm)
    hosts = {stage.one.host(vm) for vm in vms}
    stage.end(*vms)
    return f"RUNNING on {', '.join(sorted(hosts))}"


@for_each_driver
def resized(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "resized")
    before = stage.sums(vm)
    stage.do(vm, "resize", "--memory", "192", "--cpu", "0.5")
    require(memory(stage, vm) == 192 * MIB, f"it has {memory(stage, vm)} bytes")
    stage.off(vm)
    stage.do(vm, "resize", "--memory", "96", then="POWEROFF LCM_INIT")
    stage.on(vm)
    require(memory(stage, vm) == 96 * MIB, f"it has {memory(stage, vm)} bytes")
    require(stage.sums(vm) == before, "the content changed")
    stage.end(vm)
    return "192 MiB while it runs, 96 MiB while it is off"


def memory(stage: Stage, vm: str) -> int:
    node, driver = stage.node(vm), stage.driver(vm)
    if driver is ONEDOCK:
        return int(stage.engine(node, driver, "inspect", "--format", "{{.HostConfig.Memory}}", f"one-{vm}"))
    return int(stage.engine(node, driver, "config", "get", f"one-{vm}", "limits.memory").strip().removesuffix("B"))


@for_each_driver
def snapshots(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "snapshot", NETWORK + GPU)
    before = stage.sums(vm)
    stage.do(vm, "snapshot-create", "first")
    stage.inside(vm, "echo other > /content; sync")
    stage.do(vm, "snapshot-create", "second")
    stage.do(vm, "snapshot-revert", "0")
    require(stage.sums(vm) == before, "the content is not that of the snapshot")
    require("nvidia" in stage.inside(vm, "ls /dev"), "the GPU is gone")
    stage.do(vm, "snapshot-revert", "1")
    require(stage.inside(vm, "cat /content") == "other\n", "the content is not that of the second snapshot")
    stage.do(vm, "snapshot-delete", "0")
    if driver is ONEDOCK:
        names = stage.engine(stage.node(vm), driver, "ps", "--all", "--format", "{{.Names}}").split()
        require([name for name in names if name.startswith(f"one-{vm}")] == [f"one-{vm}"], f"containers: {names}")
    stage.end(vm)
    return "of the root, with a GPU"


@for_each_driver
def command(stage: Stage, driver: Driver) -> str:
    """``onevm exec`` as the manual writes it."""
    vm = stage.vm(driver, "exec")
    stage.one("onevm", "exec", vm, 'sh -c "df -h; echo done; echo wrong >&2; exit 3"')
    found = stage.await_that(lambda: finished(stage, vm), "the command's outcome is told")
    require(found.get("RETURN_CODE") == "3", f"its outcome is {found}")
    stage.one("onevm", "exec", vm, "sleep 1000")
    stage.one.await_state(vm, "ACTIVE RUNNING")
    stage.one("onevm", "exec-cancel", vm)
    stage.one.running(vm)
    stage.end(vm)
    return f"RETURN_CODE 3, {found.get('STATUS')}"


def finished(stage: Stage, vm: str) -> dict[str, str]:
    found = stage.one.show("vm", vm)["TEMPLATE"].get("QEMU_GA_EXEC") or {}
    return dict(found) if found.get("STATUS") in ("DONE", "ERROR") else {}


@for_each_driver
def pinned(stage: Stage, driver: Driver) -> str:
    hosts = [f"{node.name}{driver.suffix}" for node in stage.cloud.nodes]
    for host in hosts:
        # The kernel below the emulated hosts has one memory node.
        stage.one.append("host", host, f'PIN_POLICY="PINNED"\nISOLCPUS="{cpus(stage, host, "1")}"\n')
    try:
        vm = stage.vm(driver, "pinned", 'VCPU=1\nTOPOLOGY=[PIN_POLICY="THREAD",SOCKETS=1,CORES=1,THREADS=1]\n')
        allowed = stage.inside(vm, "grep Cpus_allowed_list /proc/self/status").split()[-1]
        node = stage.one.show("vm", vm)["TEMPLATE"]["NUMA_NODE"]
        require(allowed == node["CPUS"], f"it may use {allowed}, but was given {node['CPUS']}")
        stage.end(vm)
    finally:
        for host in hosts:
            stage.one.append("host", host, 'PIN_POLICY="NONE"\nISOLCPUS=""\n')
    return f"CPU {allowed}"


def cpus(stage: Stage, host: str, node: str) -> str:
    """The CPUs of a NUMA node, with commas."""
    nodes = stage.host_share(host)["NUMA_NODES"]["NODE"]
    cores = next(each["CORE"] for each in nodes if each["NODE_ID"] == node)
    return ",".join(cpu.partition(":")[0] for core in (cores if isinstance(cores, list) else [cores])
                    for cpu in core["CPUS"].split(","))
