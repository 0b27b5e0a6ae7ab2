# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver.setup import stanza
from onedriver.setup.stanza import CannotConfigure

KVM = 'VM_MAD = [\n    NAME = "kvm",\n    EXECUTABLE = "one_vmm_exec" ]\n'
MINE = 'VM_MAD = [ NAME = "lxdone" ]\n'
NAME = "lxdone"
BEGIN, END = stanza.marks(NAME)
LISTS = (("DATASTORE_MAD", "-d"), ("DATASTORE_MAD", "-s"), ("TM_MAD", "-d"))
DRIVERS = '''# TM_MAD = [ ARGUMENTS = "-d old" ]
TM_MAD = [
    EXECUTABLE = "one_tm",
    ARGUMENTS = "-t 15 -d dummy,fs_lvm" ]
DATASTORE_MAD = [ EXECUTABLE = "one_datastore",
    ARGUMENTS  = "-t 15 -d dummy,fs -s shared,ssh" ]
'''


class StanzaTest(testtools.TestCase):
    def test_in_once_and_out_again(self) -> None:
        for before in (KVM, "", "# only a comment\n\n"):
            once = stanza.inserted(before, MINE, NAME)
            self.assertTrue(once.startswith(before) and MINE in once)
            self.assertEqual(once, stanza.inserted(once, MINE, NAME))
            self.assertEqual(before, stanza.removed(once, NAME))
            self.assertEqual(before, stanza.removed(before, NAME))

    def test_a_newer_one_takes_the_place_of_the_older(self) -> None:
        once = stanza.inserted(KVM, MINE, NAME) + "LOG = 3\n"
        newer = stanza.inserted(once, MINE.replace("]", ", X = 1 ]\\1"), NAME)
        self.assertEqual(KVM + "LOG = 3\n", stanza.removed(newer, NAME))
        self.assertIn(", X = 1 ]\\1\n", newer)
        self.assertNotIn(MINE, newer)

    def test_a_file_without_a_last_line_end(self) -> None:
        self.assertEqual(KVM, stanza.removed(stanza.inserted(KVM.rstrip(), MINE, NAME), NAME))

    def test_one_behind_the_first_line_of_a_script(self) -> None:
        for script in ("#!/bin/sh\necho\n", "#!/bin/sh\n"):
            once = stanza.inserted(script, "act", NAME, len("#!/bin/sh\n"))
            self.assertEqual(["#!/bin/sh", "", BEGIN, "act", END, *script.splitlines()[1:]], once.splitlines())
            self.assertEqual(once, stanza.inserted(once, "act", NAME, len("#!/bin/sh\n")))
            self.assertEqual(script, stanza.removed(once, NAME))

    def test_what_was_configured_by_hand_is_not_doubled(self) -> None:
        self.assertRaises(CannotConfigure, stanza.inserted, KVM + MINE, MINE, NAME)
        self.assertIn(MINE, stanza.inserted(f"# {MINE}{KVM}", MINE, NAME))

    def test_a_mark_that_is_missing_is_told(self) -> None:
        whole = stanza.inserted(KVM, MINE, NAME)
        for broken in (whole.replace(END, ""), whole.replace(BEGIN, ""), whole + END + "\n"):
            self.assertRaises(CannotConfigure, stanza.removed, broken, NAME)
            self.assertRaises(CannotConfigure, stanza.inserted, broken, MINE, NAME)

    def test_a_name_comes_into_lists_once_and_out_again(self) -> None:
        once = stanza.listed(DRIVERS, LISTS, "onedock")
        for text in ("-d dummy,fs_lvm,onedock\"", "-d dummy,fs,onedock -s", "-s shared,ssh,onedock\""):
            self.assertIn(text, once)
        self.assertEqual(once, stanza.listed(once, LISTS, "onedock"))
        self.assertEqual(DRIVERS, stanza.unlisted(once, LISTS, "onedock"))
        self.assertEqual(DRIVERS, stanza.unlisted(DRIVERS, LISTS, "onedock"))
        self.assertEqual(KVM, stanza.unlisted(KVM, LISTS, "onedock"))

    def test_pairs_come_into_a_list_of_words_once_and_out_again(self) -> None:
        pairs = ("lxdone-ssh", "lxdone-local")
        for before in ('# comment\nLIVE="kvm-ssh lxc-ssh"\nOTHER="x"\n', 'LIVE="kvm-ssh"\n', 'LIVE=""\n'):
            once = stanza.with_words(before, "LIVE", pairs)
            self.assertIn('lxdone-ssh lxdone-local"\n', once)
            self.assertEqual(once, stanza.with_words(once, "LIVE", pairs))
            self.assertEqual(before, stanza.without_words(once, "LIVE", pairs))
            self.assertEqual(before, stanza.without_words(before, "LIVE", pairs))
        some = stanza.with_words('LIVE="lxdone-ssh kvm-ssh"\n', "LIVE", pairs)
        self.assertEqual('LIVE="lxdone-ssh kvm-ssh lxdone-local"\n', some)
        self.assertRaises(CannotConfigure, stanza.with_words, '#LIVE="kvm-ssh"\n', "LIVE", pairs)
        self.assertEqual("OTHER=1\n", stanza.without_words("OTHER=1\n", "LIVE", pairs))

    def test_a_list_that_is_not_there_is_told(self) -> None:
        for text in (KVM, DRIVERS.replace(" -s shared,ssh", ""), DRIVERS.replace("TM_MAD", "OTHER")):
            self.assertRaises(CannotConfigure, stanza.listed, text, LISTS, "onedock")
