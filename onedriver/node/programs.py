# SPDX-License-Identifier: Apache-2.0
"""Run programs of the host like :mod:`containerhost.linux.run`, raising the driver's errors."""

import functools

from containerhost.linux.run import check, running
from onedriver.errors import DriverError

run = functools.partial(check, failure=DriverError)
beside = functools.partial(running, failure=DriverError)
