# SPDX-License-Identifier: Apache-2.0
from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.docker.live import Live, Seen
from tests import levels
from tests.conformance.engine import elastic
from tests.functional_docker.base import DockerTestCase


@levels.exhaustive("the service is the same, and the gate has it on LXD", tests=(
    "test_what_a_hostile_guest_puts_in_the_way_keeps_nothing",
    "test_guest_that_never_acknowledges_loses_it_when_its_time_is_over"))
class DockerElasticTest(elastic.ElasticConformance, DockerTestCase):
    def sizes(self) -> LiveSizes[Seen]:
        return Live(self.engine)

    def options(self) -> list[str]:
        return ["--engine", f"docker={self.daemon.endpoint}", "--records", str(self.daemon.records)]

    def test_label_of_an_image_opts_in_to_nothing(self) -> None:
        self.member("c1")
        label = self.daemon.api().inspect_container("c1")["Config"]["Labels"]
        self.daemon.api().create_container("polite", name="foreign", labels=label)
        self.daemon.api().start("foreign")
        self.assertEqual(["it/c1"], [row["container"] for row in self.service().plan()])
