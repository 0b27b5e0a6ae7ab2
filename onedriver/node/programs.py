# SPDX-License-Identifier: Apache-2.0
"""Run programs of the host as :mod:`containerhost.linux.run` does; what fails is an error of the driver."""

import functools

from containerhost.linux.run import check, running
from onedriver.errors import DriverError

run = functools.partial(check, failure=DriverError)
beside = functools.partial(running, failure=DriverError)
