# SPDX-License-Identifier: Apache-2.0
"""Nova's own fixtures and the driver, on a real LXD."""

# First of all imports of nova: it decides how nova runs its threads, and registers nova's objects.
from nova.tests.functional import integrated_helpers  # noqa: F401
