"""``python -m lxdone``, as the command ``lxdone``."""

import sys

from onedriver.standby import client

if __name__ == "__main__":
    sys.exit(client.run("lxdone"))
