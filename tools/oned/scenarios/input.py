# SPDX-License-Identifier: Apache-2.0
"""Test tenants' input: values that make no sense, words for a shell, lines that end a message early."""

import time

from tools.oned.machine import Machine, MachineFailed
from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.scenarios.disks import await_image, data_image, image_id, newest
from tools.oned.setup import SAMPLES
from tools.oned.stage import LXDONE, NETWORK, ONEDOCK, Driver, Stage, require

WORDS = "; touch /tmp/broken; $(touch /tmp/broken) `touch /tmp/broken` ' \\\" | & > /tmp/broken"
CONTEXT_WORDS = WORDS.replace("$", "\\$")  # oned takes an unescaped $ in CONTEXT for a variable and refuses $(
EXEC_WORDS = WORDS.replace("'", "")  # a single quote ends oned's own quotation: doc/source/opennebula-upstream.md
BROKEN = "/tmp/broken"  # noqa: S108  (on machines that end with the cloud)
TIMEOUT = 120  # s
ENDS = ("ACTIVE BOOT_FAILURE", "ACTIVE PROLOG_FAILURE", "ACTIVE RUNNING")
BEGINS = ("PENDING LCM_INIT", "ACTIVE PROLOG", "ACTIVE BOOT")
BAD = {
    "onedock": ('DOCKER_COMMAND="sh -c \'unbalanced"\n', 'DOCKER_PRIVILEGED="YES"\n', 'DOCKER_USER="a;b"\n',
                'TOPOLOGY=[HUGEPAGE_SIZE="2"]\n', 'DOCKER_PROCESS_LIMIT="many"\n'),
    "lxdone": ('LXD_SECURITY_PRIVILEGED="YES"\n', 'LXD_RAW="x"\n', 'LXD_PROCESS_LIMIT="-1"\n',
               'LXD_GPU_CAPABILITIES="compute;reboot"\n', 'GRAPHICS=[TYPE="VNC",PORT="22"]\n')}
NAMED = {"TOPOLOGY": "HUGEPAGE_SIZE"}  # what a reason names instead of the first word


@for_each_driver
def shell_metacharacters(stage: Stage, driver: Driver) -> str:
    """Everywhere in a template where words are free; a name is not."""
    with data_image(stage, driver) as image:
        vm = stage.vm(driver, "metacharacters", f'{NETWORK}DESCRIPTION="{WORDS}"\nLOGO="{WORDS}"\n'
                      f'DISK=[IMAGE_ID="{image}"]\n', context=f',FREE="{CONTEXT_WORDS}",START_SCRIPT="{CONTEXT_WORDS}"')
        free = stage.inside(vm, ". /context/context.sh; printf '%s\\n' \"$FREE\"")
        require(CONTEXT_WORDS.replace('\\"', '"') in free, f"the variable became {free}")
        stage.do(vm, "snapshot-create", WORDS)
        stage.do(vm, "exec", f'echo "{EXEC_WORDS}"')
        stage.off(vm)
        stage.do(vm, "disk-snapshot-create", newest(stage, vm), WORDS, then="POWEROFF LCM_INIT")
        stage.on(vm)
        stage.end(vm)
    for machine in stage.cloud.machines:
        require(not has(machine), f"{machine.name} has {BROKEN}")
    return "description, context, snapshots, commands"


@for_each_driver
def bad_values(stage: Stage, driver: Driver) -> str:
    """Each is refused when the VM is created or deployed, with a reason."""
    seen = []
    for bad in BAD[driver.name]:
        try:
            vm = stage.one.create("vm", stage.template(driver, "bad", bad))
        except MachineFailed as error:
            seen.append(f"{bad.split('=')[0]}: {str(error)[-60:]}")
            continue
        stage.await_that(lambda vm=vm: stage.one.state(vm) in ENDS, f"{bad!r} is refused", TIMEOUT)
        require(stage.one.state(vm) == "ACTIVE BOOT_FAILURE", f"{bad!r} is RUNNING")
        error, attribute = stage.one.error(vm), bad.split("=")[0]
        require("mistake" not in error and NAMED.get(attribute, attribute) in error, f"{bad!r} fails with {error!r}")
        seen.append(attribute)
        stage.one("onevm", "terminate", "--hard", vm)
        stage.one.over(vm)
    return ", ".join(seen)


@for_each_driver
def line_that_ends_a_message(stage: Stage, driver: Driver) -> str:
    """A line EOT in an attribute ends oned's here-document: what follows is run as oneadmin on the node, before any
    driver is asked. This shows what the manual warns of; it can be repaired in OpenNebula only. The VM never runs, and
    nothing is left when it is deleted."""
    vm = stage.one.create("vm", stage.template(driver, "eot", f'WORD="x\nEOT\ntouch {BROKEN}\n: #"\n'))
    began = time.monotonic()
    while not (ran := [machine.name for machine in stage.cloud.machines if has(machine)]) and (
            stage.one.state(vm) not in ENDS and time.monotonic() - began < TIMEOUT):
        time.sleep(1)
    state = stage.await_that(lambda: stage.one.state(vm) in ENDS and stage.one.state(vm), "it ends", TIMEOUT)
    require(state != "ACTIVE RUNNING", "it runs")
    stage.one("onevm", "recover", "--delete", vm)
    stage.one.over(vm)
    for machine in stage.cloud.machines:
        machine.run("rm", "-f", BROKEN)
    return f"{state}; what followed the line was run on: {', '.join(ran) or 'no machine'}"


def has(machine: Machine) -> bool:
    return bool(machine.run("sh", "-c", f"ls {BROKEN} 2> /dev/null || true"))


@scenario
def sample_goes_to_its_own_driver(stage: Stage) -> str:
    """A template that comes with the driver, in the scheduler that has both drivers' hosts and datastores."""
    stage.one("oneimage", "clone", ONEDOCK.image, "nginx")
    await_image(stage, image_id(stage, "nginx"), "READY")
    text = (SAMPLES / "web.tmpl").read_text().replace('"public"', '"net"').replace("CPU      = 1", "CPU      = 0.1")
    stage.one.create("template", text)
    vm = stage.one("onetemplate", "instantiate", "web").split(":")[1].strip()
    try:
        stage.await_that(lambda: stage.one.show("vm", vm)["HISTORY_RECORDS"], "it is scheduled")
        datastore = stage.one.history(vm)["DS_ID"]
        chosen = stage.one.show("datastore", datastore)["TM_MAD"]
        require(chosen == ONEDOCK.name and not stage.one.host(vm).endswith(LXDONE.suffix),
                f"it is in datastore {datastore} of {chosen}, on {stage.one.host(vm)}")
    finally:
        stage.await_that(lambda: stage.one.state(vm) in ENDS, "its deployment ends")  # the image has no nginx
        stage.one("onevm", "recover", "--delete", vm)
        stage.one.over(vm)
        stage.one("onetemplate", "delete", "web")
        stage.one("oneimage", "delete", "nginx")
    return f"on {stage.one.host(vm)}, datastore {datastore}"
