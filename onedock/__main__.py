"""``python -m onedock``, as the command ``onedock``."""

import sys

from onedriver.standby import client

if __name__ == "__main__":
    sys.exit(client.run("onedock"))
