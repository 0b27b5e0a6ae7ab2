# SPDX-License-Identifier: Apache-2.0
"""Filter and weigh hosts for nova-scheduler.

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = nova_lxd_ext.scheduler.TaskGroupFilter
    enabled_filters = ComputeFilter,PciPassthroughFilter,NUMATopologyFilter,TaskGroupFilter
    weight_classes = nova.scheduler.weights.all_weighers,nova_lxd_ext.scheduler.TaskGroupWeigher
"""

from nova_lxd_ext.scheduler.ownhost import OwnHostWeigher
from nova_lxd_ext.scheduler.pairs import PairWeigher
from nova_lxd_ext.scheduler.taskgroups import TaskGroupFilter, TaskGroupWeigher

__all__ = ["OwnHostWeigher", "PairWeigher", "TaskGroupFilter", "TaskGroupWeigher"]
