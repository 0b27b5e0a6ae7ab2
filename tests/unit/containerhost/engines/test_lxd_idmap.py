# SPDX-License-Identifier: Apache-2.0
import json

import testtools

from containerhost.engines.lxd import idmap
from containerhost.errors import EngineError
from containerhost.linux.storage.idmounts import IdMap, IdRange


def instance(status: int, **config: str) -> dict[str, object]:
    keys = {key.replace("_", "."): text for key, text in config.items()}
    return {"name": "c1", "status_code": status, "config": keys}


def ranges(outside: int) -> str:
    return json.dumps([{"Isuid": True, "Isgid": False, "Hostid": outside, "Nsid": 0, "Maprange": 65536},
                       {"Isuid": False, "Isgid": True, "Hostid": outside + 1, "Nsid": 0, "Maprange": 65536}])


class IdMapTest(testtools.TestCase):
    def test_of_now_while_it_runs_else_of_its_next_start(self) -> None:
        config = {"volatile_idmap_current": ranges(100), "volatile_idmap_next": ranges(200)}
        for status, outside in ((103, 100), (110, 100), (102, 200)):
            self.assertEqual(IdMap((IdRange(0, outside, 65536),), (IdRange(0, outside + 1, 65536),)),
                             idmap.of(instance(status, **config)))

    def test_a_privileged_container_has_the_hosts(self) -> None:
        self.assertIsNone(idmap.of(instance(102, volatile_idmap_next="[]", security_privileged="true")))

    def test_what_is_not_told_is_not_guessed(self) -> None:
        for config in ({}, {"volatile_idmap_next": "x"}, {"volatile_idmap_next": '[{"Isuid": true}]'}):
            self.assertRaises(EngineError, idmap.of, instance(102, **config))
