# SPDX-License-Identifier: Apache-2.0
"""Configure the form "Launch Instance" to boot from the image: containers do not boot from volumes.

Horizon executes this after its own settings. A tenant may still choose a volume, for other hypervisors of the cloud.
"""

LAUNCH_INSTANCE_DEFAULTS = {**globals().get("LAUNCH_INSTANCE_DEFAULTS", {}), "create_volume": False}
