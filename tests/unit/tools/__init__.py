# SPDX-License-Identifier: Apache-2.0
"""The tools' parts that can be tried without a cloud; tools/demo itself tries the rest."""
