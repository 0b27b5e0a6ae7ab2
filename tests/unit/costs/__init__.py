# SPDX-License-Identifier: Apache-2.0
"""Count how often each operation of the drivers asks the host, the vendors' libraries, the records and the engine."""

from nova import objects

objects.register_all()
