# SPDX-License-Identifier: Apache-2.0
"""Nova's programs register its objects before they load a driver; so do these tests."""

from nova import objects

objects.register_all()
