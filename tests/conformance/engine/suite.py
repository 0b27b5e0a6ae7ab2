# SPDX-License-Identifier: Apache-2.0
"""Test what every container engine must do alike (:mod:`containerhost.engines`), on a real daemon on an emulated host.

An engine passes when a test case mixes in :class:`EngineConformance` beside its own base class, which brings what
:class:`~tests.conformance.engine.frame.EngineFrame` asks for. After every test the host is as it was before: no
interface, device, loop device, mount or record is left of a container.

Import the module, not its classes: each would else be a test of the importing module.
"""

from tests.conformance.engine import commands, crashes, devices, keeping, life, limits, usage


class EngineConformance(life.Life, limits.Limits, commands.Commands, usage.Usage, devices.Devices, keeping.Keeping,
                        crashes.Crashes):
    """Test what every engine must do."""
