# SPDX-License-Identifier: Apache-2.0
"""Put the panel into Horizon's dashboard "Project"."""

import horizon
from django.utils.translation import gettext_lazy as _


class Accelerators(horizon.Panel):
    name = _("Accelerators")
    slug = "accelerators"
    permissions = ("openstack.services.compute",)
