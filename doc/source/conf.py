# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools import supportmatrix

supportmatrix.write()

project = "nova-lxd-ext"
extensions = ["myst_parser", "openstackdocstheme", "oslo_config.sphinxext", "reno.sphinxext"]
myst_heading_anchors = 3
html_theme = "openstackdocs"
# Without a name the theme would look for the repository on opendev.org.
openstackdocs_auto_name = False
openstackdocs_use_storyboard = False
