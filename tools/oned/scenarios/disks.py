# SPDX-License-Identifier: Apache-2.0
"""Disks beside the root, growth, copies."""

from collections.abc import Iterator
from contextlib import contextmanager

from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.stage import DATA, LXDONE, ONEDOCK, ROOT, Driver, Stage, require

OFFLINE_GROWTH = "cannot grow while it is"  # without CAP_SYS_RESOURCE no mounted ext4 grows; oned cuts what follows
VOLATILE = 'DISK=[TYPE="fs",FORMAT="raw",SIZE=16]\n'
WRITER = "while :; do echo x > /media/{number}/busy; done < /dev/null > /dev/null 2>&1 & echo $! > /pid"
BLOCK = 'NAME="{name}"\nTYPE="DATABLOCK"\nFS="ext4"\nFORMAT="raw"\nSIZE=16\nPERSISTENT="{persistent}"\n'


def kilobytes(stage: Stage, vm: str) -> int:
    return int(stage.inside(vm, "df -k /media/1 | tail -1 | awk '{print $2}'"))


@for_each_driver
def running_disk_grows(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "grows")
    before, path = stage.sums(vm), stage.disk(vm, DATA)
    size = stage.node(vm).run("stat", "--format=%s", path)
    stage.one("onevm", "disk-resize", vm, DATA, "96")
    stage.one.running(vm)
    error = stage.one.error(vm)
    if OFFLINE_GROWTH in error:
        require(size == stage.node(vm).run("stat", "--format=%s", path), "a refused resize changed the file")
    else:
        require(not error, error)
        require(kilobytes(stage, vm) > 70_000, "it did not grow")
    require(before == stage.sums(vm), "the content changed")
    stage.off(vm)
    stage.node(vm).run("e2fsck", "-f", "-n", path)
    stage.do(vm, "disk-resize", DATA, "160", then="POWEROFF LCM_INIT")
    stage.on(vm)
    require(before == stage.sums(vm), "the content changed")
    require(kilobytes(stage, vm) > 120_000, "it did not grow")
    stage.off(vm)
    stage.node(vm).run("e2fsck", "-f", "-n", path)
    stage.end(vm)
    return "refused while it runs, for want of CAP_SYS_RESOURCE; grown while it is off" if error else \
        "grown while it runs and while it is off"


@scenario
def root_of_a_container_keeps_its_size(stage: Stage) -> str:
    vm = stage.vm(ONEDOCK, "root")
    before, reference = stage.sums(vm), stage.node(vm).run("sha256sum", stage.disk(vm, ROOT))
    stage.refused(vm, "is the root of a container", "disk-resize", ROOT, "512")
    require(reference == stage.node(vm).run("sha256sum", stage.disk(vm, ROOT)), "the reference changed")
    stage.off(vm)
    stage.on(vm)
    require(before == stage.sums(vm), "the content changed")
    stage.end(vm)
    return "refused; nothing changed"


@scenario
def root_grows_while_it_runs(stage: Stage) -> str:
    vm = stage.vm(LXDONE, "root")
    before = stage.sums(vm)
    stage.do(vm, "disk-resize", ROOT, "384")
    limit = stage.engine(stage.node(vm), LXDONE, "config", "device", "get", f"one-{vm}", "root", "size").strip()
    require(limit in ("384MiB", str(384 << 20), f"{384 << 20}B"), f"LXD's limit is {limit}")
    stage.off(vm)
    stage.on(vm)
    require(before == stage.sums(vm), "the content changed")
    stage.end(vm)
    return f"LXD's limit is {limit}"


@for_each_driver
def disk_comes_and_goes(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "disks")
    stage.do(vm, "disk-attach", "--file", stage.one.file(VOLATILE))
    number = newest(stage, vm)
    stage.inside(vm, f"echo there > /media/{number}/file")
    stage.refused(vm, "", "disk-detach", *busy(stage, vm, number))
    stage.inside(vm, "kill $(cat /pid)")
    stage.do(vm, "disk-detach", number)
    require(not stage.inside(vm, f"ls /media/{number} 2>/dev/null || true").strip(), "it is there")
    stage.off(vm)
    stage.do(vm, "disk-attach", "--file", stage.one.file(VOLATILE), then="POWEROFF LCM_INIT")
    number = newest(stage, vm)
    stage.on(vm)
    stage.inside(vm, f"echo there > /media/{number}/file")
    stage.end(vm)
    return "while it runs and while it is off; refused while a file of it is open"


def busy(stage: Stage, vm: str, number: str) -> tuple[str]:
    stage.inside(vm, f"sleep 1000 < /media/{number}/file > /dev/null 2>&1 & echo $! > /pid")
    return (number,)


def newest(stage: Stage, vm: str) -> str:
    found = stage.one.show("vm", vm)["TEMPLATE"]["DISK"]
    return str(max(int(disk["DISK_ID"]) for disk in found))


@for_each_driver
def persistent_data_follows_its_image(stage: Stage, driver: Driver) -> str:
    datastore = "containers" if driver is ONEDOCK else "default"
    image = stage.one.create("image", BLOCK.format(name=f"data-{driver.name}", persistent="YES"), "--datastore",
                             datastore)
    try:
        await_image(stage, image, "READY")
        vm = stage.vm(driver, "first", f'DISK=[IMAGE_ID="{image}"]\n')
        stage.inside(vm, "echo kept > /media/2/file; sync")
        stage.one("onevm", "terminate", vm)
        stage.one.over(vm)
        await_image(stage, image, "READY")
        vm = stage.vm(driver, "second", "")
        stage.do(vm, "disk-attach", "--image", f"data-{driver.name}")
        require(stage.inside(vm, f"cat /media/{newest(stage, vm)}/file") == "kept\n", "the content is gone")
        stage.end(vm)
    finally:
        delete_image(stage, image)
    return "written by one VM, read by another"


@for_each_driver
def persistent_root(stage: Stage, driver: Driver) -> str:
    stage.one("oneimage", "clone", driver.image, f"root-{driver.name}")
    image = image_id(stage, f"root-{driver.name}")
    try:
        await_image(stage, image, "READY")
        stage.one("oneimage", "persistent", image)
        vm = stage.vm(driver, "first", image=f"root-{driver.name}", root="")
        stage.inside(vm, "echo kept > /kept; sync")
        stage.one("onevm", "terminate", vm)
        stage.one.over(vm)
        await_image(stage, image, "READY")
        vm = stage.vm(driver, "second", image=f"root-{driver.name}", root="")
        require(stage.inside(vm, "cat /kept") == "kept\n", "what the first VM wrote is gone")
        stage.end(vm)
        await_image(stage, image, "READY")
    finally:
        delete_image(stage, image)
    return "what a VM wrote is in the image"


@for_each_driver
def saved_as_another_image(stage: Stage, driver: Driver) -> str:
    """``onevm disk-saveas`` of a root, while the VM runs and while it is off."""
    vm = stage.vm(driver, "saved")
    stage.inside(vm, "echo before > /saved; sync")
    seen = []
    for state, name in (("running", f"running-{driver.name}"), ("off", f"off-{driver.name}")):
        if state == "off":
            stage.off(vm)
        stage.one("onevm", "disk-saveas", vm, ROOT, name)
        image = image_id(stage, name)
        try:
            await_image(stage, image, "READY")
            made = stage.vm(driver, name, image=name)
            text = stage.inside(made, "cat /saved 2> /dev/null || echo nothing").strip()
            require(text == "before", f"{state}: it has {text}")
            seen.append(f"{state}: {text}")
            stage.end(made)
        finally:
            delete_image(stage, image)
    stage.end(vm)
    return "; ".join(seen)


@for_each_driver
def disk_snapshots_while_it_is_off(stage: Stage, driver: Driver) -> str:
    with data_image(stage, driver) as image:
        vm = stage.vm(driver, "snapshots", f'DISK=[IMAGE_ID="{image}"]\n')
        number = newest(stage, vm)
        stage.inside(vm, f"echo first > /media/{number}/file; sync")
        stage.off(vm)
        stage.do(vm, "disk-snapshot-create", number, "first", then="POWEROFF LCM_INIT")
        stage.on(vm)
        stage.inside(vm, f"echo other > /media/{number}/file; sync")
        stage.off(vm)
        stage.do(vm, "disk-snapshot-revert", number, "0", then="POWEROFF LCM_INIT")
        stage.on(vm)
        require(stage.inside(vm, f"cat /media/{number}/file") == "first\n", "the content is not that of the snapshot")
        stage.end(vm)
    return "created and reverted"


@for_each_driver
def disk_snapshots_while_it_runs(stage: Stage, driver: Driver) -> str:
    """Snapshot a disk that a program writes to without pause, and the root, which has VM snapshots alone on Docker."""
    with data_image(stage, driver) as image:
        vm = stage.vm(driver, "live", f'DISK=[IMAGE_ID="{image}"]\n')
        number = newest(stage, vm)
        disks = (number, ROOT) if driver is LXDONE else (number,)
        files = [f"/media/{number}/file", "/file"][:len(disks)]
        stage.inside(vm, "; ".join(f"echo first > {file}" for file in files))
        stage.inside(vm, WRITER.format(number=number))
        for disk in disks:
            stage.do(vm, "disk-snapshot-create", disk, "first")
        if driver is ONEDOCK:
            stage.refused(vm, "the root of a container", "disk-snapshot-create", ROOT, "first")
        stage.inside(vm, "kill $(cat /pid)")
        stage.inside(vm, "; ".join(f"echo other > {file}" for file in files))
        stage.off(vm)
        stage.node(vm).run("e2fsck", "-f", "-n", f"{stage.disk(vm, number)}.snap/0")
        left = stage.node(vm).run("ls", "-A", stage.disk(vm, number).rpartition("/")[0])
        require("copy" not in left, f"a copy is left: {left}")
        for disk in disks:
            stage.do(vm, "disk-snapshot-revert", disk, "0", then="POWEROFF LCM_INIT")
        stage.on(vm)
        for file in files:
            require(stage.inside(vm, f"cat {file}") == "first\n", f"{file} is not that of the snapshot")
        stage.end(vm)
    return "created while it ran, reverted while it was off"


@contextmanager
def data_image(stage: Stage, driver: Driver) -> Iterator[str]:
    """An image of data within the block; volatile disks have no snapshots in OpenNebula."""
    image = stage.one.create("image", BLOCK.format(name=f"data-{driver.name}", persistent="NO"), "--datastore",
                             "containers" if driver is ONEDOCK else "default")
    with temporary(stage, image):
        yield image


@contextmanager
def temporary(stage: Stage, image: str) -> Iterator[None]:
    """Let an image that was just created be used within the block, and delete it then."""
    try:
        await_image(stage, image, "READY")
        yield
    except BaseException:
        stage.clear()  # a VM that has the image keeps it, and the reason would be lost
        raise
    finally:
        delete_image(stage, image)


def image_id(stage: Stage, name: str) -> str:
    found = stage.one("oneimage", "list", "--csv", "--list", "ID,NAME", "--filter", f"NAME={name}")
    return found.split()[-1].split(",")[0]


def await_image(stage: Stage, image: str, state: str) -> None:
    stage.await_that(lambda: stage.one.look("image", image)["state"] == state, f"image {image} is {state}", 120)


def delete_image(stage: Stage, image: str) -> None:
    stage.await_that(lambda: stage.one.look("image", image)["state"] in ("READY", "ERROR"), f"image {image} is free")
    stage.one("oneimage", "delete", image)
