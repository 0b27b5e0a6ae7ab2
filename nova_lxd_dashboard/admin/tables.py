# SPDX-License-Identifier: Apache-2.0
"""Lay out the table of devices."""

from urllib.parse import quote_plus

from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from horizon import tables

from nova_lxd_dashboard import exporter, pciids
from nova_lxd_dashboard.accelerators import Device

HEALTH = {
    "ok": _("In order"),
    "sick": _("Sick"),
    "tainted": _("Tainted by the operator"),
    "unclean": _("Could not be cleaned"),
    "used_elsewhere": _("Used by something else"),
    "reserved": _("Reserved"),
    "host down": _("Host down"),
    "host disabled": _("Host disabled"),
}


class Health(tables.Column):
    """Show the health, and why nova-compute of the host was disabled."""

    def get_raw_data(self, datum: Device) -> str:
        reason = datum.service.reason if datum.service else ""
        return f"{HEALTH[datum.health]}: {reason}" if reason else str(HEALTH[datum.health])


class Servers(tables.Column):
    """Link each server that holds the device."""

    def get_raw_data(self, datum: Device) -> SafeString:
        names = getattr(self.table, "servers", {})
        return format_html_join(", ", '<a href="{}">{}</a>', (
            (reverse("horizon:admin:instances:detail", args=(uuid,)), names.get(uuid, uuid))
            for uuid in datum.servers))


def host_page(device: Device) -> str | None:
    """Return the address of the page with the host's picture; None if the name cannot be part of a URL."""
    if device.service is None or not exporter.configured() or not exporter.NAME.fullmatch(device.host):
        return None
    return str(reverse("horizon:admin:accelerators:host", args=(device.host,)))


class AcceleratorsTable(tables.DataTable):
    host = tables.WrappingColumn("host", link=host_page, verbose_name=_("Host"))
    name = tables.WrappingColumn("name", verbose_name=_("Device"))
    model = tables.WrappingColumn(lambda device: pciids.model(device.resource_class) or "-", verbose_name=_("Model"))
    resource_class = tables.WrappingColumn("resource_class", verbose_name=_("Resource Class"))
    total = tables.Column("total", verbose_name=_("Total"))
    used = tables.Column("used", verbose_name=_("Used"))
    servers_holding = Servers("servers", verbose_name=_("Instances"))
    health = Health("health", verbose_name=_("Health"), status=True,
                    status_choices=tuple((str(text), key == "ok") for key, text in HEALTH.items()))

    class Meta:
        name = "accelerators"
        verbose_name = _("Accelerators")
        pagination_param = "after"
        multi_select = False

    def get_object_id(self, datum: Device) -> str:
        return datum.id

    def get_object_display(self, datum: Device) -> str:
        return f"{datum.host} {datum.name}"

    def get_marker(self) -> str:
        """Return the last host of this page as a query."""
        return quote_plus(getattr(self, "last_host", ""))
