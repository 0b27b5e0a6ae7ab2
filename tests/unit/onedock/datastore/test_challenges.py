# SPDX-License-Identifier: Apache-2.0
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from onedock.datastore import challenges

BEARER = {"realm": "https://a/token", "service": "b", "scope": "repository:c:pull,push"}
TEXT = 'Bearer realm="https://a/token",service="b",scope="repository:c:pull,push"'


class ParseTest(testtools.TestCase):
    def parsed(self, text: str) -> list[tuple[str, dict[str, str]]]:
        return [(scheme, dict(values)) for scheme, values in challenges.parse(text)]

    def test_lists_of_challenges(self) -> None:
        basic, bearer = ("basic", {"realm": "Registry, Realm"}), ("bearer", BEARER)
        for text, expected in (
                (TEXT, [bearer]), (f'Basic realm="Registry, Realm", {TEXT}', [basic, bearer]),
                (f'{TEXT}, Basic realm="Registry, Realm"', [bearer, basic]), (f"Negotiate, {TEXT}",
                                                                              [("negotiate", {}), bearer]),
                (f"Negotiate YII=, {TEXT}", [("negotiate", {}), bearer]), (f" , ,{TEXT},,", [bearer]),
                ('bearer Realm = "a\\"b" , x=y', [("bearer", {"realm": 'a"b', "x": "y"})]),
                (f'NTLM, Digest qop="auth, auth-int", nonce="n", stale=FALSE, {TEXT}',
                 [("ntlm", {}), ("digest", {"qop": "auth, auth-int", "nonce": "n", "stale": "FALSE"}), bearer]),
                ('Basic realm="open', [("basic", {})]), ("", []), ("=", []), ('"a"', [])):
            self.assertEqual(expected, self.parsed(text)[:len(expected) or None], text)

    @given(st.text("Ba =\",\\;\t", max_size=200))
    @settings(max_examples=100, deadline=1000)
    def test_any_text_is_parsed(self, text: str) -> None:
        challenges.parse(text * 20)
