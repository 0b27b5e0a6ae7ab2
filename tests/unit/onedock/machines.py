# SPDX-License-Identifier: Apache-2.0
import functools

from onedock.attributes import PREFIX
from tests.unit.lxdone import machines

machine = functools.partial(machines.machine, own_prefix=PREFIX)
