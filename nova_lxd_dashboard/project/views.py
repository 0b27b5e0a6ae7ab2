# SPDX-License-Identifier: Apache-2.0
"""Serve the panel's page."""

from django.utils.translation import gettext_lazy as _
from horizon import exceptions, tables

from nova_lxd_dashboard import api
from nova_lxd_dashboard.project.tables import HoldersTable


class IndexView(tables.DataTableView):
    table_class = HoldersTable
    template_name = "horizon/common/_data_table_view.html"
    page_title = _("Accelerators")

    def get_data(self) -> list[api.Holder]:
        try:
            return api.holders(self.request)
        except api.ServiceFailed:
            exceptions.handle(self.request, _("Unable to retrieve the project's accelerators."))
            return []
