"""The command ``lxdone``: see :mod:`lxdone.cli`, which it leaves to the process that stands by, if there is one."""

import sys

from onedriver.standby import client


def main() -> int:
    return client.run("lxdone")


if __name__ == "__main__":
    sys.exit(main())
