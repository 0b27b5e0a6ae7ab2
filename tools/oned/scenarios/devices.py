# SPDX-License-Identifier: Apache-2.0
"""PCI devices, and network interfaces, of VMs that run."""

from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.stage import FUNCTION, GPU, LXDONE, NETWORK, ONEDOCK, Driver, Stage, addresses, require

LABEL = "accel"  # a network that stands for PCI devices that are no NICs
HOT_GPU = f'PCI=[TYPE="NIC",NETWORK="{LABEL}",VENDOR="10de",DEVICE="20b0",CLASS="0302"]\n'
TOLD_TIMEOUT = 150  # s, of which SYSTEM_HOST is 60
HOT_FUNCTION = f'PCI=[TYPE="NIC",NETWORK="{LABEL}",VENDOR="15b3",CLASS="0207"]\n'


@for_each_driver
def gpu_comes_and_goes(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "hot", NETWORK + ('LXD_GPU_CAPABILITIES="none"\n' if driver is LXDONE else ""))
    require(gpus(stage, vm) == 0, "it has a GPU")
    stage.hot(vm, HOT_GPU)
    nic = newest(stage, vm)
    require(gpus(stage, vm) == 1, "it has no GPU")
    stage.do(vm, "nic-detach", nic)
    require(gpus(stage, vm) == 0, "it is there")
    stage.off(vm)
    stage.do(vm, "nic-attach", "--file", stage.one.file(HOT_GPU), then="POWEROFF LCM_INIT")
    nic = newest(stage, vm)
    stage.on(vm)
    require(gpus(stage, vm) == 1, "it has no GPU")
    stage.off(vm)
    stage.do(vm, "nic-detach", nic, then="POWEROFF LCM_INIT")
    stage.on(vm)
    require(gpus(stage, vm) == 0, "it is there")
    stage.end(vm)
    return "while it runs and while it is off"


@for_each_driver
def function_comes_and_goes(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "function", NETWORK + FUNCTION)
    require("ibp" in stage.inside(vm, "ls /sys/class/net"), "it has no function")
    stage.hot(vm, HOT_FUNCTION)
    nic = newest(stage, vm)
    require(f"ib{nic}" in stage.inside(vm, "ls /sys/class/net"), "it has no second function")
    require(stage.inside(vm, "ls /dev/infiniband | grep -c uverbs").strip() == "2", "it has no second uverbs node")
    stage.do(vm, "nic-detach", nic)
    require(f"ib{nic}" not in stage.inside(vm, "ls /sys/class/net"), "it is there")
    stage.end(vm)
    return "the second while the VM runs"


@scenario
def first_function_of_a_running_vm_names_locked_memory(stage: Stage) -> str:
    """A container gets locked memory only when it starts: the reason comes first in the error, which oned cuts."""
    seen = []
    for driver in (ONEDOCK, LXDONE):
        vm = stage.vm(driver, "locked")
        before = stage.one.error(vm)
        stage.one("onevm", "nic-attach", vm, "--file", stage.one.file(HOT_FUNCTION))
        stage.one.running(vm)
        error = stage.one.error(vm)
        if error != before:
            require("memory" in error.lower(), f"{driver.name}: {error}")
        seen.append(f"{driver.name}: {error or 'attached'}")
        stage.end(vm)
    return "; ".join(seen)


@for_each_driver
def interface_comes_and_goes(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "nics")
    stage.do(vm, "nic-attach", "--network", "net")
    nic = newest(stage, vm)
    require(f"eth{nic}" in stage.inside(vm, "ls /sys/class/net"), "it is not there")
    address = stage.one.show("vm", vm)["TEMPLATE"]["CONTEXT"][f"ETH{nic}_IP"]
    require(address in stage.inside(vm, "cat /context/context.sh"), f"{address} is not in its context")
    if driver is ONEDOCK:
        require(address in stage.inside(vm, f"ip address show dev eth{nic}"), f"it does not have {address}")
    stage.do(vm, "nic-detach", nic)
    require(f"eth{nic}" not in stage.inside(vm, "ls /sys/class/net"), "it is there")
    stage.end(vm)
    return f"with {address}"


@for_each_driver
def changes_after_a_gpu_left(stage: Stage, driver: Driver) -> str:
    """A GPU is pulled out of the node; a NIC is detached and memory is resized all the same."""
    vm = stage.vm(driver, "gone", GPU + NETWORK)
    nic = newest(stage, vm)
    with stage.removed(stage.node(vm), stage.gpus(vm)[0]):
        stage.do(vm, "nic-detach", nic)
        require(f"eth{nic}" not in stage.inside(vm, "ls /sys/class/net"), "it is there")
        stage.do(vm, "resize", "--memory", "192")
    stage.end(vm)
    return "nic-detach and resize"


@scenario
def gpus_of_a_node_go_to_one_driver_at_a_time(stage: Stage) -> str:
    """Both drivers report a node's free GPUs; what one gave away the other must not, which oned knows from the next
    SYSTEM_HOST probe on."""
    vms: list[str] = []
    for driver, other in ((ONEDOCK, LXDONE), (LXDONE, ONEDOCK)) * 2:
        vm = stage.vm(driver, driver.name, GPU)
        vms.append(vm)
        host = f"{stage.node(vm).name}{other.suffix}"
        stage.await_that(lambda host=host, vm=vm: not set(stage.gpus(vm)) & offered(stage, host),
                         f"{host} does not offer the GPU of VM {vm} any more", TOLD_TIMEOUT)
    seen = {(stage.node(vm).name, address) for vm in vms for address in stage.gpus(vm)}
    require(len(seen) == len(vms), f"{len(vms)} VMs have {len(seen)} GPUs: {sorted(seen)}")
    stage.end(*vms)
    return f"{len(seen)} GPUs, each given once"


def offered(stage: Stage, host: str) -> set[str]:
    """The addresses of a host's PCI devices, as oned knows them."""
    return set(addresses(stage.host_share(host)["PCI_DEVICES"]))


@for_each_driver
def device_that_another_vm_has(stage: Stage, driver: Driver) -> str:
    """Without --enforce oned deploys a VM on a host that has no free device, with no address or another VM's."""
    full, elsewhere = stage.cloud.nodes
    host = f"{full.name}{driver.suffix}"
    holders = stage.vms_on(driver, full, GPU, GPU)
    mover, = stage.vms_on(driver, elsewhere, GPU)
    late = stage.one.create("vm", stage.template(driver, "late", GPU), "--hold")
    stage.one("onevm", "deploy", late, host, driver.datastore)
    stage.await_that(lambda: stage.one.state(late) == "ACTIVE BOOT_FAILURE", "its deployment fails")
    told = [stage.one.error(late)]
    stage.one("onevm", "migrate", "--poff", mover, host)
    stage.await_that(lambda: stage.one.state(mover) == "ACTIVE BOOT_FAILURE", "its move fails")
    told.append(stage.one.error(mover))
    require(all("GPU" in words or "ADDRESS" in words or "device" in words for words in told), f"the errors are {told}")
    require([gpus(stage, vm) for vm in holders] == [1, 1], "a VM lost its GPU, or has two")
    stage.end(late, *holders)
    stage.one("onevm", "recover", "--retry", mover)
    stage.one.running(mover)
    require(gpus(stage, mover) == 1, "it has no GPU")
    stage.end(mover)
    return "; ".join(words.split(": ", 1)[-1][:90] for words in told)


def gpus(stage: Stage, vm: str) -> int:
    return int(stage.inside(vm, "ls /dev | grep -c 'nvidia[0-9]' || true"))


def newest(stage: Stage, vm: str) -> str:
    """The highest NIC_ID."""
    template = stage.one.show("vm", vm)["TEMPLATE"]
    found = [each for key in ("NIC", "PCI") for each in listed(template.get(key, [])) if "NIC_ID" in each]
    return str(max(int(each["NIC_ID"]) for each in found))


def listed(found: object) -> list[dict[str, str]]:
    return found if isinstance(found, list) else [found]  # type: ignore[list-item]
