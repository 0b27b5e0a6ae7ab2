# SPDX-License-Identifier: Apache-2.0
from nova import objects

objects.register_all()
