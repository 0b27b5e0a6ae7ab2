# SPDX-License-Identifier: Apache-2.0
"""Answer the panel's page."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import exceptions, tables

from nova_lxd_dashboard import api
from nova_lxd_dashboard.accelerators import Device
from nova_lxd_dashboard.admin.tables import AcceleratorsTable


class IndexView(tables.DataTableView):
    table_class = AcceleratorsTable
    template_name = "horizon/common/_data_table_view.html"
    page_title = _("Accelerators")
    _more = False

    def has_more_data(self, table: Any) -> bool:
        return self._more

    def get_data(self) -> list[Device]:
        try:
            page = api.page_of_devices(self.request, self.request.GET.get(AcceleratorsTable._meta.pagination_param, ""))
        except api.ServiceFailed:
            exceptions.handle(self.request, _("Unable to retrieve the accelerators."))
            return []
        self._more = page.more
        self.table.servers, self.table.last_host = page.servers, page.last_host
        return page.devices
