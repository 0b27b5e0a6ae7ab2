# SPDX-License-Identifier: Apache-2.0
"""Refuse nova's driver methods that containers do not support, each with its reason.

The reasons are those of doc/source/support-matrix.yaml. If nova passes the message to the user, the error is of the
class for that; otherwise it is for nova-compute's log.
"""

from typing import Any, NoReturn

from nova import exception, objects
from nova.virt import driver

NO_SCREEN = "a container has no screen; ask for a serial console: openstack console url show --serial"
NO_SNAPSHOT = ("snapshots that the hypervisor makes are for volumes that are image files; volumes are attached as "
               "block devices")
NO_SHARE = "Manila shares reach a guest by virtiofs, which is for virtual machines; mount the share in the guest"


class UnsupportedMethods(driver.ComputeDriver):
    """Raise an error in unsupported driver methods, each with its reason."""

    def get_vnc_console(self, context: Any, instance: objects.Instance) -> NoReturn:
        raise exception.ConsoleTypeUnavailable(f"Unavailable console type VNC: {NO_SCREEN}")

    def get_spice_console(self, context: Any, instance: objects.Instance) -> NoReturn:
        raise exception.ConsoleTypeUnavailable(f"Unavailable console type SPICE: {NO_SCREEN}")

    def get_mks_console(self, context: Any, instance: objects.Instance) -> NoReturn:
        raise exception.ConsoleTypeUnavailable(f"Unavailable console type MKS: {NO_SCREEN}")

    def trigger_crash_dump(self, instance: objects.Instance) -> NoReturn:
        raise NotImplementedError("a container runs on the host's kernel, which must not be crashed")

    def quiesce(self, context: Any, instance: objects.Instance, image_meta: objects.ImageMeta) -> NoReturn:
        raise exception.InstanceQuiesceNotSupported(
            f"Quiescing is not supported in instance {instance.uuid}: no agent in a container freezes its file systems")

    def unquiesce(self, context: Any, instance: objects.Instance, image_meta: objects.ImageMeta) -> NoReturn:
        raise exception.InstanceQuiesceNotSupported(
            f"Quiescing is not supported in instance {instance.uuid}: nothing is quiesced")

    def volume_snapshot_create(self, context: Any, instance: objects.Instance, volume_id: str, create_info: Any
                               ) -> NoReturn:
        raise NotImplementedError(NO_SNAPSHOT)

    def volume_snapshot_delete(self, context: Any, instance: objects.Instance, volume_id: str, snapshot_id: str,
                               delete_info: Any) -> NoReturn:
        raise NotImplementedError(NO_SNAPSHOT)

    def mount_share(self, context: Any, instance: objects.Instance, share_mapping: Any) -> NoReturn:
        raise NotImplementedError(NO_SHARE)

    def umount_share(self, context: Any, instance: objects.Instance, share_mapping: Any) -> NoReturn:
        raise NotImplementedError(NO_SHARE)

    def is_share_mounted(self, share_mapping: Any) -> NoReturn:
        raise NotImplementedError(NO_SHARE)

    def power_update_event(self, instance: objects.Instance, target_power_state: str) -> NoReturn:
        raise NotImplementedError("external power events are for Ironic only; the daemon reports when a container ends")

    def host_power_action(self, action: str) -> NoReturn:
        raise NotImplementedError("nova-compute does not switch off the machine it runs on; use the operator's tools")

    def host_maintenance_mode(self, host: str, mode: bool) -> NoReturn:
        raise NotImplementedError("disable the compute service, then migrate its servers: openstack compute service "
                                  "set --disable; openstack server migrate")
