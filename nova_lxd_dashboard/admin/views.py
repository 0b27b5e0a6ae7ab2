# SPDX-License-Identifier: Apache-2.0
"""Serve the panel's pages."""

from typing import Any
from xml.etree import ElementTree

from django.http import Http404
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy as _
from horizon import exceptions, tables, views

from containerhost.operator.drawing import svg, text
from containerhost.operator.drawing.hostmap import HostMap
from nova_lxd_dashboard import api, exporter
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


class HostView(views.HorizonTemplateView):
    """Show the picture of one host, whose name and address come from nova."""

    template_name = "nova_lxd_dashboard/host.html"
    page_title = "{{ host }}"

    def get_context_data(self, host: str, **more: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(host=host, **more)
        if not exporter.configured():
            raise Http404
        try:
            service = api.service_of(self.request, host)
        except api.ServiceFailed:
            exceptions.handle(self.request, _("Unable to retrieve the hypervisors."))
            return context
        if service is None:
            raise Http404
        try:
            found = exporter.host_map(host, service)
        except exporter.ExporterFailed as error:
            return {**context, "failure": str(error)}
        return {**context, "picture": picture(found), "tree": text.write(found)}


def picture(found: HostMap) -> SafeString:
    """Return the picture as markup, at most as wide as the page."""
    element = svg.element(found)
    element.attrib.update({"class": "img-responsive", "role": "img"})
    return mark_safe(ElementTree.tostring(element, encoding="unicode"))  # noqa: S308 (all text is escaped in it)
