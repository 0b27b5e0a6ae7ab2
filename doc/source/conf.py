project = "nova-lxd-ext"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "alabaster"
