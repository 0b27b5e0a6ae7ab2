# SPDX-License-Identifier: Apache-2.0
"""List what Tempest may ask of the driver, as options ``[compute-feature-enabled]``.

They are read from the support matrix, which a unit test compares with the driver, so that nothing the driver does is
left untested."""

from collections.abc import Mapping
from typing import Any

from tools import supportmatrix

# Tempest's option -> the method of nova's ComputeDriver that must be done for it
METHODS = {
    "block_migration_for_live_migration": "live_migration",
    "cold_migration": "migrate_disk_and_power_off",
    "change_password": "set_admin_password",
    "console_output": "get_console_output",
    "interface_attach": "attach_interface",
    "live_migrate_back_and_forth": "live_migration",
    "live_migration": "live_migration",
    "pause": "pause",
    "rescue": "rescue",
    "resize": "finish_migration",
    "serial_console": "get_serial_console",
    "shelve": "snapshot",
    "shelve_migrate": "migrate_disk_and_power_off",
    "snapshot": "snapshot",
    "spice_console": "get_spice_console",
    "suspend": "suspend",
    "swap_volume": "swap_volume",
    "vnc_console": "get_vnc_console",
}
CAPABILITIES = {"volume_multiattach": "supports_multiattach"}
# Of every server without a virtual machine around it.
FIXED = {"stable_rescue": False, "attach_encrypted_volume": False, "ide_bus": False,
         "config_drive": True, "metadata_service": True, "personality": False, "enable_instance_password": True}


def enabled(matrix: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    """:param matrix: ``methods`` and ``capabilities`` of the support matrix
    :raises KeyError: the matrix does not know a method
    """
    flags = {option: matrix["methods"][method]["status"] == "done" for option, method in METHODS.items()}
    flags |= {option: bool(matrix["capabilities"][name]["value"]) for option, name in CAPABILITIES.items()}
    return {option: str(value).lower() for option, value in sorted({**flags, **FIXED}.items())}


if __name__ == "__main__":
    for name, enabled_here in enabled(supportmatrix.load()).items():
        print(name, enabled_here)
