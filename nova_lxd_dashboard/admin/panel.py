# SPDX-License-Identifier: Apache-2.0
"""Put the panel into Horizon's dashboard "Admin"."""

import horizon
from django.utils.translation import gettext_lazy as _


class Accelerators(horizon.Panel):
    name = _("Accelerators")
    slug = "accelerators"
    permissions = ("openstack.services.compute", "openstack.services.placement")
    policy_rules = (("compute", "os_compute_api:os-hypervisors:list-detail"),)
