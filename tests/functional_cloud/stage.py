# SPDX-License-Identifier: Apache-2.0
"""The cloud of these tests: a real OpenStack with Neutron's agents, brought up once for all tests of a process.

Root is needed, and a network namespace that nobody else uses: tools/fakehost gives both.
"""

import atexit
import dataclasses
import functools
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from openstack.connection import Connection

from containerhost.inventory.scan import scan
from tools.cloud import guest, hardware, identity
from tools.cloud.cloud import Cloud
from tools.cloud.configs import HOST
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT, SECOND, Layout, Shape

FLAVOR = "small"
FLAVOR_OF_DEVICES = "devices"
IMAGE = "guest"
KEY = "tests"
LAST_LOGS = "last-logs"


@dataclasses.dataclass(frozen=True)
class Stage:
    """:ivar tenant: logged in as the one who owns the servers
    :ivar key: file of the private key that opens them
    """

    cloud: Cloud
    admin: Connection
    tenant: Connection
    key: Path


@functools.cache
def shared() -> Stage:
    """Bring it up at the first call.

    :raises Unavailable: it did not come up; for every test at once, instead of trying again for each
    """
    found = _attempt()
    if isinstance(found, Exception):
        raise Unavailable(f"The cloud of these tests did not come up: {found}") from found
    return found


class Unavailable(Exception):
    """There is no cloud to test on."""


@functools.cache
def _attempt() -> Stage | Exception:
    # A run that is told to end shall clean up, as one that came to its end.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    layout = Layout(CHECKOUT / ".networks")
    layout.directory.mkdir(exist_ok=True)
    shape = Shape(networks=True, second_host=True)
    if layout.in_use:  # what a killed run left
        Cloud(layout, shape=shape).down()
    pair, _other = hardware.choose(scan().devices)  # one on each host: what is free is seen by who gets it next
    cloud = Cloud(layout, hardware.offers([pair]), shape=shape, say=_say)
    atexit.register(_end, cloud)
    try:
        cloud.up()
        return _furnished(cloud)
    except Exception as error:  # whatever it was, every test has to tell it
        return error


def let_second_host_have_servers(admin: Connection, enabled: bool) -> None:
    """Tests look at the first host, so that the second one is for those that ask for it."""
    (service,) = admin.compute.services(binary="nova-compute", host=HOST + SECOND)
    (admin.compute.enable_service if enabled else admin.compute.disable_service)(service)


def _furnished(cloud: Cloud) -> Stage:
    admin, tenant = cloud.connect("admin"), cloud.connect(TENANT)
    let_second_host_have_servers(admin, False)
    image = guest.build(cloud.layout.run / "guest.tar.gz")
    admin.create_image(IMAGE, filename=str(image), disk_format="raw", container_format="bare", visibility="public",
                       wait=True, timeout=60)
    admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=128, disk=1)
    devices = admin.compute.create_flavor(name=FLAVOR_OF_DEVICES, vcpus=1, ram=128, disk=1)
    admin.compute.create_flavor_extra_specs(devices, {
        "pci_passthrough:alias": ",".join(f"{offer.alias}:1" for offer in cloud.offers),
        "lxd:live_migration": "restart"})
    for offer in cloud.offers:
        identity.register_limit(admin, f"class:{offer.resource_class}", 10)
    key = cloud.layout.run / "key"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    tenant.compute.create_keypair(name=KEY, public_key=key.with_suffix(".pub").read_text())
    return Stage(cloud, admin, tenant, key)


def _end(cloud: Cloud) -> None:
    """The logs of the last run outlive it: a test that failed is understood from them."""
    kept = cloud.layout.directory / LAST_LOGS
    shutil.rmtree(kept, ignore_errors=True)
    if cloud.layout.logs.exists():
        shutil.copytree(cloud.layout.logs, kept)
    cloud.down()


def _say(text: str) -> None:
    """To the terminal of the one who waits, past what the test runner captures."""
    print(text, file=sys.__stderr__, flush=True)
