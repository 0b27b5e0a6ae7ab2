# SPDX-License-Identifier: Apache-2.0
"""Run the command ``lxdone-install``: install the driver on a front-end, and check a node."""

from lxdone import nodecheck
from onedriver.setup import frontend

#: OpenNebula's transfer drivers of disks that are files.
LIVE = ("local", "ssh", "shared", "qcow2")

main = frontend.commands(frontend.Driver("lxdone", "LXD", nodecheck.check, live=LIVE))

if __name__ == "__main__":
    main()
