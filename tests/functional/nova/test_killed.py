# SPDX-License-Identifier: Apache-2.0
"""nova-compute killed (-9) during a boot and during an end: the next start and the server's end leave nothing.

The victim is a forked process that kills itself before or after the n-th thing it does to the outside: a request to the
engine, an allocation record, an action as root, a file. One victim finishes first, which shows the steps there are.
"""

import contextlib
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import context, objects
from nova.compute import task_states, vm_states
from nova.image import glance

from containerhost import privileged
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, LinkLayer, Role
from containerhost.engines.lxd.client import LxdClient
from containerhost.inventory.scan import scan
from nova_lxd_ext import backend, conf
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.storage import configdrive, connections, directories
from nova_lxd_ext.storage.connectors import Connectors
from tests import levels
from tests.functional import lxd
from tests.functional.nova.effects import effect
from tests.unit.nova import records

CONF = nova.conf.CONF
conf.register()

FINISHED = 0
FEWEST_STEPS = 30  # a boot takes more, or its steps are not seen
OUTSIDE = ((LxdClient, ("request",)), (AllocationStore, ("claim", "prepare", "attach", "begin_cleaning", "release")),
           (configdrive, ("write",)), (directories, ("remove",)), (connections, ("keep", "forget")),
           (Connectors, ("connect", "disconnect")), (glance.API, ("download",)),
           (privileged.Privileged, tuple(name for name, _ in inspect.getmembers(privileged.Privileged, callable)
                                         if not name.startswith("_"))))


class Countdown:
    """Kill the process at the n-th step; a step is either edge of a call to the outside.

    :ivar effects: what the steps have changed
    """

    def __init__(self, step: int | None) -> None:
        self._at = step
        self.effects: list[str | None] = []

    def step(self, change: str | None = None) -> None:
        if len(self.effects) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.effects.append(change)

    def around(self, target: Any, name: str) -> Callable:
        function = getattr(target, name)

        def call(*args: object, **kwargs: object) -> object:
            self.step()
            result = function(*args, **kwargs)
            self.step(effect(f"{target.__name__}.{name}", args, kwargs))
            return result
        return call


@contextlib.contextmanager
def armed(step: int | None) -> Iterator[Countdown]:
    countdown = Countdown(step)
    with contextlib.ExitStack() as stack:
        for target, names in OUTSIDE:
            for name in names:
                stack.enter_context(mock.patch.object(target, name, countdown.around(target, name)))
        yield countdown


def killed_at(step: int | None, action: Callable[[], None]) -> list[str | None] | None:
    """Run ``action`` in a process that is killed at ``step``.

    :returns: what its steps changed, where it finished before
    """
    with tempfile.NamedTemporaryFile() as effects:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with armed(step) as countdown:
                    action()
                Path(effects.name).write_text(json.dumps(countdown.effects))
                status = FINISHED
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return None
        if os.waitstatus_to_exitcode(status) != FINISHED:
            raise AssertionError(f"the victim failed by itself before step {step}; its error is above")
        return json.loads(Path(effects.name).read_text())


def killed_at_points(action: Callable[[], None], fewest: int,
                     before: Callable[[], object] = lambda: None) -> Iterator[int | None]:
    """Let ``action`` finish, and then kill it at its points, one after the other.

    :param fewest: steps that it takes more than, or nothing was tried
    :param before: done before each try
    :returns: None once it finished, and each step once it was killed there
    """
    before()
    effects = killed_at(None, action) or []
    if len(effects) <= fewest:
        raise AssertionError(f"it took {len(effects)} steps only")
    yield None
    for step in levels.points(effects):
        before()
        killed_at(step, action)
        yield step


class KilledCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.lxd = self.useFixture(lxd.Lxd())
        self.state = Path(self.useFixture(fixtures.TempDir()).path)
        self.state.chmod(0o711)
        self.override("instances_path", str(self.state / "instances"))
        for name, value in {"endpoint": self.lxd.socket, "storage_pool": self.lxd.pool,
                            "owners_dir": str(self.state / "owners"), "rdma_memlock": lxd.memlock()}.items():
            self.override(name, value, "lxd")
        self.useFixture(fixtures.MockPatchObject(glance.API, "download", side_effect=self._download))
        # There is no database: the host has only its own identity.
        node = objects.ComputeNode(id=records.NODE)
        self.useFixture(fixtures.MockPatchObject(objects.ComputeNode, "get_by_host_and_nodename", return_value=node))
        for tagged in (objects.VirtualInterfaceList, objects.BlockDeviceMappingList):
            self.useFixture(fixtures.MockPatchObject(tagged, "get_by_instance_uuid", return_value=[]))
        # Nova fills its metadata from its database and from neutron, of which there are none here.
        self.useFixture(fixtures.MockPatch("nova.api.metadata.base.InstanceMetadata")).mock.return_value \
            .metadata_for_config_drive.return_value = [("openstack/latest/meta_data.json", "{}")]
        self.before = self._devices()
        self.gpu = next(device for device in self.before.values() if device.kind is Kind.GPU)
        self.vf = next(device for device in self.before.values()
                       if device.link_layer is LinkLayer.INFINIBAND and device.role is Role.VF)
        self.addCleanup(self._delete_images)

    def override(self, name: str, value: object, group: str | None = None) -> None:
        CONF.set_override(name, value, group=group)
        self.addCleanup(CONF.clear_override, name, group=group)

    def _download(self, context: object, id_or_uri: str, data: object = None, dest_path: str | None = None,
                  trusted_certs: object = None) -> None:
        shutil.copyfile(self.lxd.images["unified"], dest_path)

    def _delete_images(self) -> None:
        for image in self.lxd.engine.client.images():
            self.lxd.engine.client.delete_image(image["fingerprint"])

    def _devices(self) -> dict:
        return {device.id: device for device in scan().devices}

    def server(self, **changes: object) -> objects.Instance:
        return records.instance(("gpu", self.gpu.address), ("vf", self.vf.address), config_drive="True", **changes)

    def boot(self) -> None:
        image = objects.ImageMeta(id=records.IMAGE, name="busybox", disk_format="raw", container_format="bare",
                                  min_disk=0, min_ram=0, properties=objects.ImageMetaProps())
        lifecycle = backend.build(CONF).lifecycle
        lifecycle.spawn(context.get_admin_context(), self.server(), image, (), None, NOTHING, True)

    def end(self) -> None:
        backend.build(CONF).lifecycle.remove(self.server(task_state=task_states.DELETING))

    def restart(self, instance: objects.Instance) -> None:
        """Do what the driver does at nova-compute's start (LXDDriver.init_host, process_instances_at_startup)."""
        parts = backend.build(CONF)
        parts.images.purge()
        parts.lifecycle.reconcile([instance])
        parts.lifecycle.end_interrupted_boots([instance])

    def assert_nothing_left(self, step: int | None) -> None:
        self.assertEqual([], [state.name for state in self.lxd.engine.containers() if labels.uuid(state.labels)],
                         f"containers after step {step}")
        self.assertEqual({}, AllocationStore(self.state / "owners").records(), f"allocation records after step {step}")
        self.assertEqual(self.before, self._devices(), f"devices after step {step}")
        left = [str(path) for path in (self.state / "instances").rglob("*")
                if path.is_file() and not path.name.startswith("nova-lxd-image-")]
        self.assertEqual([], left, f"files after step {step}")
        self.assertEqual([], [point for point in lxd.mounts_below(self.state)], f"mounts after step {step}")


class KilledTest(KilledCase):
    def test_boot(self) -> None:
        """After the restart nothing of an unfinished boot is left, although the server is not deleted yet."""
        # Each boot fetches and imports the image.
        for step in killed_at_points(self.boot, FEWEST_STEPS, self._delete_images):
            if step is None:
                self.assertEqual(1, len(self.lxd.engine.containers()))
                self.end()
            else:
                self.restart(self.server(vm_state=vm_states.BUILDING, task_state=task_states.SPAWNING))
            self.assert_nothing_left(step)

    def test_end(self) -> None:
        for step in killed_at_points(self.end, FEWEST_STEPS, self.boot):
            if step is not None:
                self.restart(self.server(vm_state=vm_states.ACTIVE, task_state=task_states.DELETING))
                self.end()
            self.assert_nothing_left(step)
