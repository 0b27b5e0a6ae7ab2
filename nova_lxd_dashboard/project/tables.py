# SPDX-License-Identifier: Apache-2.0
"""Lay out the table of servers with devices."""

from django.utils.translation import gettext_lazy as _
from horizon import tables

from nova_lxd_dashboard.api import Holder


class HoldersTable(tables.DataTable):
    name = tables.WrappingColumn("name", link="horizon:project:instances:detail", verbose_name=_("Instance Name"))
    flavor = tables.WrappingColumn("flavor", verbose_name=_("Flavor"))
    requests = tables.Column(lambda holder: ", ".join(holder.requests), verbose_name=_("Accelerators"))
    status = tables.Column("status", verbose_name=_("Status"))

    class Meta:
        name = "accelerators"
        verbose_name = _("Accelerators")
        multi_select = False

    def get_object_id(self, datum: Holder) -> str:
        return datum.id
