# SPDX-License-Identifier: Apache-2.0
"""Define the panel's address."""

from django.urls import re_path

from nova_lxd_dashboard.project.views import IndexView

urlpatterns = [re_path(r"^$", IndexView.as_view(), name="index")]
