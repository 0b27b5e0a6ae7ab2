# SPDX-License-Identifier: Apache-2.0
"""Run nova's own services with our driver in this process over the real LXD, on tools/fakehost's emulated host."""

# Nova decides between threads and eventlet at its first import, and this module must be that one.
from nova.tests.functional import integrated_helpers  # isort: skip

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import fixtures
import nova.conf
from nova import context as nova_context
from nova import objects
from nova.compute.manager import ComputeManager
from oslo_utils import uuidutils

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device, Kind, LinkLayer, Role
from containerhost.engines.contract import ContainerState
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.inventory.scan import scan
from nova_lxd_ext import conf, osvif_hook
from nova_lxd_ext.image.images import IMAGE_ID
from nova_lxd_ext.instance import labels
from tests.functional import lxd
from tests.functional.nova import reuse, states, wakeups

CONF = nova.conf.CONF
conf.register()
osvif_hook.install()

HOST = "lxd-1"
GPU_ALIAS, VF_ALIAS = "gpu-a100", "ib-vf"
TIMEOUT = 120  # half seconds
FILTERS = ["PciPassthroughFilter", "NUMATopologyFilter"]


class Inside(NamedTuple):
    """Hold the result of a command in a container."""

    status: int
    output: str


class LxdServers(integrated_helpers._IntegratedTestBase):
    """One compute host. Servers have no ports unless a test says otherwise."""

    ADMIN_API = True
    #: A cast returns at once, as it does between real services.
    CAST_AS_CALL = False
    microversion = "latest"
    #: Whether Placement holds the PCI devices, or nova's PCI tracker alone.
    pci_in_placement = False
    #: Of devices and aliases.
    pci_tags: Mapping[str, str] = {}
    daemon: type[lxd.Lxd] = lxd.Lxd
    #: More options for nova.conf: (group or None, option) -> value.
    options: Mapping[tuple[str | None, str], Any] = {}

    def setUp(self) -> None:
        self.lxd = self.useFixture(self.daemon())
        self.state = Path(self.useFixture(fixtures.TempDir()).path)
        self.state.chmod(0o711)  # the container's users reach the config drive below it
        self.devices_before = scan().devices
        # Nova's own tests must not read this machine. These read an emulated one.
        for poison in ("SysFsPoisonFixture", "GenericPoisonFixture"):
            self.useFixture(fixtures.MonkeyPatch(f"nova.tests.fixtures.{poison}", fixtures.Fixture))
        self.useFixture(reuse.Reused())
        self.useFixture(wakeups.WakeUps())
        self.states = self.useFixture(states.States())
        self._configure()
        super().setUp()
        self.useFixture(reuse.Calm())
        # Nova's own tests wait for these ten seconds.
        self.notifier.wait_for_versioned_notifications = functools.partial(
            self.notifier.wait_for_versioned_notifications, timeout=TIMEOUT / 2)

    def _delete_images(self) -> None:
        for image in self.lxd.store.having(IMAGE_ID):
            self.lxd.store.delete(image.fingerprint)

    def with_ports(self, *ports: dict[str, Any], **request: Any) -> Any:
        return self.server(networks=[{"port": port["id"]} for port in ports], **request)

    def attach_port(self, server: Any, port: dict[str, Any]) -> None:
        self.api.attach_interface(server["id"], {"interfaceAttachment": {"port_id": port["id"]}})

    def detach_port(self, server: Any, port: dict[str, Any]) -> None:
        self.notifier.reset()
        self.api.detach_interface(server["id"], port["id"])
        self.notifier.wait_for_versioned_notifications("instance.interface_detach.end")

    def _stop_and_start(self, server: Any) -> None:
        self._stop_server(server)
        self._start_server(server)

    def _configure(self) -> None:
        paste = self.state / "api-paste.ini"
        paste.write_text(Path(sys.prefix, "etc/nova/api-paste.ini").read_text().replace(reuse.LEGACY_API, ""))
        self.flags(api_paste_config=str(paste), group="wsgi")
        # Whether nova's answers fit its schemas is for nova's own tests.
        self.flags(response_validation="ignore", group="api")
        self.flags(compute_driver="lxd.LXDDriver", instances_path=str(self.state / "instances"), shutdown_timeout=10)
        self.flags(shutdown_retry_interval=2, group="compute")
        # A service reports that it is up only after five seconds. Some tests restart theirs before that.
        self.flags(service_down_time=3600)
        # Tests that end containers themselves determine when nova polls.
        self.flags(handle_virt_lifecycle_events=False, group="workarounds")
        if hasattr(ComputeManager, "_wait_for_in_progress_tasks"):
            # A compute service that is stopped has stopped when it says so: nova keeps this much for its driver. The
            # release before would sleep as long at the end of every service.
            self.flags(manager_shutdown_timeout=20)
        self.flags(endpoint=self.lxd.socket, storage_pool=self.lxd.pool, owners_dir=str(self.state / "owners"),
                   rdma_memlock=lxd.memlock(), ready_timeout=0, group="lxd")
        gpu = next(device for device in self.devices_before if device.kind is Kind.GPU)
        vf = next(device for device in self.devices_before if self._is_ib_vf(device))
        specs = [{"vendor_id": vf.vendor_id, "product_id": vf.product_id},
                 {"vendor_id": gpu.vendor_id, "product_id": gpu.product_id}]
        tags = {"numa_policy": "required", **self.pci_tags}
        aliases = [{"name": GPU_ALIAS, **specs[1], "device_type": "type-PCI", **tags},
                   {"name": VF_ALIAS, **specs[0], "device_type": "type-VF", **tags}]
        self.flags(device_spec=[json.dumps({**spec, **self.pci_tags}) for spec in specs],
                   alias=[json.dumps(alias) for alias in aliases],
                   report_in_placement=self.pci_in_placement, group="pci")
        enabled = CONF.filter_scheduler.enabled_filters
        self.flags(pci_in_placement=self.pci_in_placement, group="filter_scheduler",
                   enabled_filters=[*enabled, *(name for name in FILTERS if name not in enabled)])
        for (group, option), value in self.options.items():
            self.flags(**{option: value}, group=group)

    def restart_compute_service(self, compute: Any, keep_hypervisor_state: bool = False) -> Any:
        """Restart nova-compute with a new driver: what that is to know again is in LXD.

        Nova's leaves the stopped one in ``computes``, whose periodic looks would go on beside the new one's."""
        started = super().restart_compute_service(compute, keep_hypervisor_state)
        self.computes[compute.host] = started
        return started

    def _setup_compute_service(self) -> Any:
        return self._start_compute(HOST)

    @staticmethod
    def _is_ib_vf(device: Device) -> bool:
        return device.link_layer is LinkLayer.INFINIBAND and device.role is Role.VF

    # Making

    def image(self, form: str = "unified", content: bytes | None = None, **properties: str) -> str:
        """Id of an image in Glance, with one of the files of tests.functional.images or other content."""
        image_id = uuidutils.generate_uuid()
        metadata = {"id": image_id, "name": form, "container_format": "bare", "disk_format": "raw", "min_ram": 0,
                    "min_disk": 0, "status": "active", "visibility": "public", "protected": False, "tags": [],
                    "deleted": False, "is_public": True, "properties": dict(properties)}
        self.glance.create(None, metadata)
        self.glance._imagedata[image_id] = content if content is not None else self.lxd.images[form].read_bytes()
        return image_id

    def flavor(self, *, vcpu: int = 1, memory_mb: int = 128, disk: int = 1, **extra_specs: str) -> str:
        """Id of a flavor; ``__`` in a key stands for a colon."""
        specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
        return self._create_flavor(vcpu=vcpu, memory_mb=memory_mb, disk=disk, ephemeral=0, extra_spec=specs)

    def server(self, flavor: str | None = None, image: str | None = None, expected: str = "ACTIVE", **request: Any
               ) -> dict[str, Any]:
        body = self._build_server(image_uuid=image or self.image(), flavor_id=flavor or self.flavor(), networks="none")
        created = self.api.post_server({"server": body | request})
        try:
            return self._wait_for_state_change(created, expected)
        except AssertionError as error:
            fault = self.api.get_server(created["id"]).get("fault")
            raise AssertionError(f"{fault}: {error}") from error

    def _wait_for_server_parameter(self, server: Mapping[str, Any], expected_params: Mapping[str, Any],
                                   max_retries: int = TIMEOUT, **options: Any) -> dict[str, Any]:
        """Ask the API when the server's state may be the expected one, or after a while.

        Nova's own tests wait for a driver that does nothing; containers on a busy machine take longer."""
        end = time.monotonic() + max(max_retries, TIMEOUT) / 2
        while True:
            seen = self.states.of(server["id"])
            try:
                return super()._wait_for_server_parameter(server, expected_params, 1, **options)
            except AssertionError:
                if time.monotonic() > end:
                    raise
            self.states.await_change(server["id"], seen, lambda state: state.fits(expected_params))

    def _wait_until_deleted(self, server: Mapping[str, Any]) -> None:
        if self.states.of(server["id"]):
            self.states.await_change(server["id"], None, lambda state: state.deleted, TIMEOUT / 2)
        super()._wait_until_deleted(server)

    def _wait_for_migration_status(self, *arguments: Any) -> dict[str, Any]:
        return self._patiently(super()._wait_for_migration_status, *arguments)

    def _wait_for_instance_action_event(self, *arguments: Any) -> dict[str, Any]:
        return self._patiently(super()._wait_for_instance_action_event, *arguments)

    @staticmethod
    def _patiently(wait: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Nova's own tests wait for these five seconds."""
        for _ in range(TIMEOUT // 10 - 1):
            with contextlib.suppress(AssertionError):
                return wait(*arguments)
        return wait(*arguments)

    def resize(self, server: Mapping[str, Any], flavor: str) -> None:
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_state_change(server, "VERIFY_RESIZE")

    def revert(self, server: Mapping[str, Any]) -> None:
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_migration_status(server, ["reverted"])
        self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})

    # Looking

    @property
    def driver(self) -> Any:
        return self.computes[HOST].manager.driver

    def instance(self, server: Mapping[str, Any]) -> objects.Instance:
        return objects.Instance.get_by_uuid(nova_context.get_admin_context(), server["id"])

    def container(self, server: Mapping[str, Any]) -> ContainerState:
        return next(state for state in self.lxd.engine.containers() if labels.uuid(state.labels) == server["id"])

    def config(self, server: Mapping[str, Any]) -> dict[str, Any]:
        """The container as LXD describes it, with what its config says."""
        return self.lxd.engine.client.instance(self.container(server).name)[0]

    def inside(self, server: Mapping[str, Any], *command: str) -> Inside:
        """Run a command in the server's container, as its root."""
        return self.run_in(self.lxd.engine, self.container(server).name, *command)

    @staticmethod
    def run_in(engine: LxdEngine, container: str, *command: str) -> Inside:
        pid = engine.metrics(container).pid
        done = subprocess.run(["nsenter", "--target", str(pid), "--all", *command], capture_output=True, text=True,
                              timeout=60, check=False, env={"PATH": "/bin:/sbin:/usr/bin:/usr/sbin"})
        return Inside(done.returncode, done.stdout + done.stderr)

    def fault(self, server: Mapping[str, Any]) -> str:
        return str(self.admin_api.get_server(server["id"])["fault"]["message"])

    def reasons(self, server: Mapping[str, Any]) -> list[str]:
        """Why the hosts that nova tried did not boot the server."""
        actions = self.admin_api.get_instance_actions(server["id"])
        create = next(action for action in actions if action["action"] == "create")
        shown = self.admin_api.api_get(f"/servers/{server['id']}/os-instance-actions/{create['request_id']}").body
        return [event["details"] for event in shown["instanceAction"]["events"] if event["event"] == "lxd_spawn"]

    def assert_told(self, words: str, action: str, server: Mapping[str, Any]) -> None:
        """The failed events of the server's latest ``action`` say ``words``; nova writes them last."""
        def told() -> None:
            actions = self.admin_api.get_instance_actions(server["id"])
            latest = next(found for found in actions if found["action"] == action)
            shown = self.admin_api.api_get(f"/servers/{server['id']}/os-instance-actions/{latest['request_id']}").body
            self.assertIn(words, " ".join(event["details"] or "" for event in shown["instanceAction"]["events"]))
        self._wait_for_assert(told, max_retries=TIMEOUT)

    def held(self) -> dict[str, str]:
        """Device id -> server, as the host's records say."""
        records = AllocationStore(self.state / "owners").records()
        return {device: record.consumer.uuid for device, record in records.items()}

    def assert_nothing_left(self, servers: Collection[Mapping[str, Any]] = ()) -> None:
        """Check that no server but ``servers`` has anything on this host or in Placement."""
        kept = {server["id"] for server in servers}
        self.assertEqual(kept, {labels.uuid(state.labels) for state in self.lxd.engine.containers()})
        self.assertEqual(set(), set(self.held().values()) - kept)
        directories = {path.parent.name for path in (self.state / "instances").glob("*/lxd-*")}
        self.assertEqual(set(), directories - kept)
        if not kept:
            self.assertEqual(self.devices_before, scan().devices)
            for provider in self._get_all_providers():
                self.assertEqual({}, {name: used for name, used in self._get_provider_usages(provider["uuid"]).items()
                                      if used}, provider["name"])
