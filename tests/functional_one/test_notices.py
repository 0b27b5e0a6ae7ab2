# SPDX-License-Identifier: Apache-2.0
"""Test what VMs on LXD are told of their resources."""

from tests.functional import noticecontract
from tests.functional_one.test_actions import ActionsCase


class NoticeTest(noticecontract.NoticeContract, ActionsCase):
    pass
