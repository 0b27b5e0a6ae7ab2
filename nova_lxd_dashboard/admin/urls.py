# SPDX-License-Identifier: Apache-2.0
"""Define the addresses of the panel's pages."""

from django.urls import re_path

from nova_lxd_dashboard.admin.views import HostView, IndexView

urlpatterns = [
    re_path(r"^$", IndexView.as_view(), name="index"),
    re_path(r"^hosts/(?P<host>[^/]+)/$", HostView.as_view(), name="host"),
]
