# SPDX-License-Identifier: Apache-2.0
"""Find a server's accelerator requests (ARQs), even if nova does not pass them (resume, a start with the host)."""

from collections.abc import Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.accelerator import cyborg

from nova_lxd_ext.instance.flavor import ACCELERATORS


def of(instance: objects.Instance, passed: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the server's accelerator requests.

    :param passed: as passed by nova; empty if it passes none
    :raises AcceleratorRequestOpFailed: cyborg does not answer
    """
    if passed or not instance.flavor.extra_specs.get(ACCELERATORS):
        return passed
    return cyborg.get_client(nova_context.get_admin_context()).get_arqs_for_instance(instance.uuid)
