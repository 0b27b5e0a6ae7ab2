# SPDX-License-Identifier: Apache-2.0
"""Steps of the suites vm and bare_metal: the life of one server, seen from Nova's API and from inside."""

import os
import time
from typing import Any

import common
import openstack
from common import Output, describe, need, refusal, server_named, start, stop, tenant

NAME = "isv-server"
# `find -type` uses the type in the directory entry, which is "file" for nodes that LXD mounts on files. .lxd-mounts is
# unreadable.
FIND = "sudo find /dev -name .lxd-mounts -prune -o -exec stat -c '%F:%n' {} +"
# Nodes below /dev of every container, without devices.
PSEUDO = {"console", "full", "fuse", "net/tun", "null", "ptmx", "random", "tty", "urandom", "zero"}
TERMINALS = "pts/"
USB = ("bus/usb/", "usb", "hidraw", "ttyUSB", "ttyACM")
CLIPBOARD = ("virtio-ports/", "vport", "spice")
# Started when the server's first process was, in clock ticks since the host's start; and seconds since its start.
BOOT = "cut -d' ' -f22 /proc/1/stat; cut -d' ' -f1 /proc/uptime"


def launch_instance(output: Output) -> None:
    output |= common.launch(tenant(), NAME)
    output["requested_key_name"] = NAME


def list_instances(output: Output) -> None:
    cloud = tenant()
    target, found = server_named(cloud, NAME).id, [describe(cloud, server.id) for server in cloud.compute.servers()]
    output |= {"instances": found, "count": len(found), "target_instance": target,
               "found_target": target in [server["instance_id"] for server in found]}


def verify_tags(output: Output) -> None:
    """Read the server's metadata: Nova's pairs of a key and a value."""
    server = server_named(tenant(), NAME)
    output |= {"instance_id": server.id, "tags": dict(server.metadata)}


def verify_image(output: Output) -> None:
    cloud = tenant()
    image = cloud.image.get_image(server_named(cloud, NAME).image.id)
    output |= describe(cloud, NAME) | {"image_id": image.id, "image_name": image.name}
    output["instance_state"] = output["state"]
    need(image.name == common.setting("AICLOUD_IMAGE"), f"the server was made from {image.name}")


def serial_console(output: Output) -> None:
    """Read the console's output; and whether Nova opens the serial console itself."""
    cloud = tenant()
    server = server_named(cloud, NAME)
    text = cloud.compute.get_server_console_output(server)["output"] or ""
    output |= {"instance_id": server.id, "console_available": bool(text), "output_length": len(text)}
    try:
        url = cloud.compute.create_server_remote_console(server, protocol="serial", type="serial").url
        output["serial_access_enabled"] = bool(url)
    except openstack.exceptions.HttpException as error:
        output |= {"serial_access_enabled": False, "serial_access_error": common.said(error)}


def console_rbac(output: Output) -> None:
    """Read the console as a member of the project, as one of another project, and as the first one in that project."""
    cloud = tenant()
    server, other = server_named(cloud, NAME), common.new_project(output)
    allowed, denied = (common.new_user("member", *projects, undo=output.undo)
                       for projects in ((cloud.current_project_id, other), (other,)))

    def read(auth: dict[str, str]) -> Any:
        return common.login(auth).compute.get_server_console_output(server.id)

    with output.test("allowed_principal_can_access_console") as entry:
        entry["output_length"] = len(read(allowed)["output"])
    with output.test("denied_principal_cannot_access_console") as entry:
        entry["status"] = refusal(read, denied)
    with output.test("allowed_principal_is_resource_scoped") as entry:
        entry["status"] = refusal(read, {**allowed, "project_id": other})
    output |= {"instance_id": server.id, "access_restricted": output.holds, "rbac_model": "keystone roles in a project",
               "restricted_actions": ["os_compute_api:os-console-output"]}


def virtual_device_hardening(output: Output) -> None:
    """List the device nodes inside: USB, clipboard channels, and any that neither the system nor the flavor needs."""
    server = describe(tenant(), NAME)
    nodes = device_nodes(common.inside(server, FIND))
    need("null" in nodes, "not even /dev/null is seen")
    needed = (TERMINALS, *filter(None, os.environ.get("AICLOUD_DEVICE_NODES", "").split(",")))
    output |= {"instance_id": server["instance_id"], "nodes": nodes}
    for name, found in (
            ("usb_devices_disabled", [node for node in nodes if node.startswith(USB)]),
            ("clipboard_disabled", [node for node in nodes if node.startswith(CLIPBOARD)]),
            ("unnecessary_virtual_devices_absent",
             [node for node in nodes if node not in PSEUDO and not node.startswith(needed)])):
        output.confirm(name, not found, ", ".join(found))


def device_nodes(output: str) -> list[str]:
    """Return the device nodes in what :data:`FIND` prints, without /dev/."""
    lines = [line.split(":/dev/", 1) for line in output.splitlines() if ":/dev/" in line]
    return sorted(path for kind, path in lines if kind.endswith("special file"))


def stop_instance(output: Output) -> None:
    stop(tenant(), NAME)
    output |= {"stop_initiated": True, **describe(tenant(), NAME)}


def start_instance(output: Output) -> None:
    start(tenant(), NAME)
    output |= {"start_initiated": True, **describe(tenant(), NAME), "ssh_ready": True}


def reboot_instance(output: Output) -> None:
    """Reboot it, and compare when its first process was started, from inside."""
    cloud = tenant()
    server = describe(cloud, NAME)
    before, _ = boot(server)
    cloud.compute.reboot_server(server["instance_id"], "SOFT")
    output["reboot_initiated"] = True
    await_boot(server, before)
    begun, uptime = boot(server)
    output |= {**describe(cloud, NAME), "ssh_ready": True, "uptime_seconds": uptime,
               "reboot_confirmed": begun > before}


def boot(server: dict[str, Any]) -> tuple[int, float]:
    begun, uptime = common.inside(server, BOOT).split()
    return int(begun), float(uptime)


def await_boot(server: dict[str, Any], before: int) -> None:
    """Wait for another first process than that of before, and for Nova."""
    def booted() -> bool:
        done = common.ssh(server, BOOT)
        return done.returncode == 0 and int(done.stdout.split()[0]) > before

    common.wait(booted, "another first process")
    common.await_status(tenant(), NAME)


def power_cycle_instance(output: Output) -> None:
    """Stop the server, see that nobody can log in, and start it again: Nova's power off and on."""
    cloud = tenant()
    server = describe(cloud, NAME)
    stop(cloud, NAME)
    off = common.ssh(server, "true").returncode == common.NO_CONNECTION
    output |= {"power_cycle_initiated": True, "power_was_off": off}
    begun = time.monotonic()
    start(cloud, NAME)
    output |= {**describe(cloud, NAME), "ssh_ready": True, "recovery_seconds": round(time.monotonic() - begun, 1)}


def reinstall_instance(output: Output) -> None:
    """Rebuild the server from its image, and see that a file of before is gone."""
    cloud = tenant()
    server, found = describe(cloud, NAME), server_named(cloud, NAME)
    common.inside(server, "touch /var/tmp/before && sync")
    before, _ = boot(server)
    cloud.compute.rebuild_server(found, image=found.image.id)
    await_boot(server, before)
    output |= {**describe(cloud, NAME), "ssh_ready": True}
    need(not common.succeeds(server, "test -e /var/tmp/before"), "a file of before is still there")


def describe_instance(output: Output) -> None:
    output |= describe(tenant(), NAME)


def teardown(output: Output) -> None:
    output["resources_deleted"] = common.remove(tenant(), NAME)


def verify_teardown(output: Output) -> None:
    cloud = tenant()
    for name, find in (("instance_terminated", cloud.compute.find_server), ("key_deleted", cloud.compute.find_keypair),
                       ("sg_deleted", cloud.network.find_security_group)):
        with output.test(name, "checks"):
            need(find(NAME) is None, "it is still there")


if __name__ == "__main__":
    common.run(globals())
