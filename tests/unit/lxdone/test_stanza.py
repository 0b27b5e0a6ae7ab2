import testtools

from lxdone import stanza
from lxdone.stanza import CannotConfigure

KVM = 'VM_MAD = [\n    NAME = "kvm",\n    EXECUTABLE = "one_vmm_exec" ]\n'
MINE = 'VM_MAD = [ NAME = "lxdone" ]\n'


class StanzaTest(testtools.TestCase):
    def test_in_once_and_out_again(self) -> None:
        for before in (KVM, "", "# only a comment\n\n"):
            once = stanza.inserted(before, MINE)
            self.assertTrue(once.startswith(before) and MINE in once)
            self.assertEqual(once, stanza.inserted(once, MINE))
            self.assertEqual(before, stanza.removed(once))
            self.assertEqual(before, stanza.removed(before))

    def test_a_newer_one_takes_the_place_of_the_older(self) -> None:
        once = stanza.inserted(KVM, MINE) + "LOG = 3\n"
        newer = stanza.inserted(once, MINE.replace("]", ", X = 1 ]\\1"))
        self.assertEqual(KVM + "LOG = 3\n", stanza.removed(newer))
        self.assertIn(", X = 1 ]\\1\n", newer)
        self.assertNotIn(MINE, newer)

    def test_a_file_without_a_last_line_end(self) -> None:
        self.assertEqual(KVM, stanza.removed(stanza.inserted(KVM.rstrip(), MINE)))

    def test_what_was_configured_by_hand_is_not_doubled(self) -> None:
        self.assertRaises(CannotConfigure, stanza.inserted, KVM + MINE, MINE)
        self.assertIn(MINE, stanza.inserted(f"# {MINE}{KVM}", MINE))

    def test_a_mark_that_is_missing_is_told(self) -> None:
        whole = stanza.inserted(KVM, MINE)
        for broken in (whole.replace(stanza.END, ""), whole.replace(stanza.BEGIN, ""), whole + stanza.END + "\n"):
            self.assertRaises(CannotConfigure, stanza.removed, broken)
            self.assertRaises(CannotConfigure, stanza.inserted, broken, MINE)
