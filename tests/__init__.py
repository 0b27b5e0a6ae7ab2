# SPDX-License-Identifier: Apache-2.0
"""Test this project. Its tests make many objects that live on; Python looks for garbage less often than it would."""

import gc

gc.set_threshold(100_000, 50, 100)
