"""The command ``onedock``: see :mod:`onedock.cli`, which it leaves to the process that stands by, if there is one."""

import sys

from onedriver.standby import client


def main() -> int:
    return client.run("onedock")


if __name__ == "__main__":
    sys.exit(main())
