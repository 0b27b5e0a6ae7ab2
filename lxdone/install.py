"""The command ``lxdone-install``: puts the driver on a front-end, and checks a node."""

from lxdone import nodecheck
from onedriver.setup import frontend

main = frontend.commands(frontend.Driver("lxdone", "LXD", nodecheck.check))

if __name__ == "__main__":
    main()
