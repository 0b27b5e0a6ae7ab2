# SPDX-License-Identifier: Apache-2.0
"""Run the command ``onedock-install``: install the driver on a front-end, and check a node."""

from onedock import nodecheck
from onedriver.setup import frontend

#: Drivers of images, of system datastores, and of transfers, as oned starts them.
LISTS = (("DATASTORE_MAD", "-d"), ("DATASTORE_MAD", "-s"), ("TM_MAD", "-d"))

main = frontend.commands(frontend.Driver("onedock", "Docker", nodecheck.check, LISTS, ("onedock",)))

if __name__ == "__main__":
    main()
