# SPDX-License-Identifier: Apache-2.0
"""The AI-cloud validation suite on the demo's cloud."""
