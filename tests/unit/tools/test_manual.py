# SPDX-License-Identifier: Apache-2.0
"""Test what the manual and the code say of themselves: modules exist, docstrings are docstrings."""

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

import testtools

ROOT = Path(__file__).parents[3]
PACKAGES = ("containerhost", "hpcjob", "hpcplan", "lxdone", "nova_lxd_dashboard", "nova_lxd_ext", "onedock",
            "onedriver")
MODULE = r"[a-z_]+(?:/[a-z_]+)*/?"
NAME = re.compile(rf"`({MODULE})`")
# A row of a table whose first column names modules, and names of modules in parentheses after what they do.
ROW = re.compile(r"^\| *(`[^|]*?) *\|", re.M)
LISTED = re.compile(rf"\((`{MODULE}`(?:, `{MODULE}`)*)\)")
DOTTED = re.compile(rf"(?<![\w/])(?:{'|'.join(PACKAGES)})(?:\.[a-z_]+)+\b(?!\()")
PATH = re.compile(rf"(?<![\w/])(?:{'|'.join(PACKAGES)})(?:/[a-z_]+)+(?:\.py)?\b")
# The only directory of installed samples in the pages; install.md has it for other environments.
SAMPLES = "/opt/nova-lxd-ext/share/nova-lxd-ext"
COMMENT = re.compile("<!--.*?-->", re.S)
SAMPLE = re.compile(r"[\w/.-]*\bshare/nova-lxd-ext\b/?([\w/.-]*)")
OF_CHECKOUT = re.compile(r"(?<![\w/.-])etc/(?:systemd|nova|metadefs|prometheus|grafana|opennebula|\w+\.\w+\.sample)\b")
PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
PICTURE_LIMIT = 400 << 10  # bytes; the repository keeps every version of them


def sources(*directories: str) -> Iterator[Path]:
    for directory in directories:
        yield from sorted((ROOT / directory).rglob("*.py"))


class Manual(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.modules = {str(path.relative_to(ROOT).with_suffix("")).removesuffix("/__init__")
                        for path in sources(*PACKAGES)}
        self.directories = {str(Path(module).parent) for module in self.modules} | self.modules

    def is_there(self, name: str) -> bool:
        return any(f"/{module}".endswith(f"/{name.rstrip('/')}") for module in self.modules | self.directories)

    def test_modules_of_the_architecture_exist(self) -> None:
        text = (ROOT / "doc/source/architecture.md").read_text(encoding="utf-8")
        named = [name for part in (*ROW.findall(text), *LISTED.findall(text)) for name in NAME.findall(part)]
        self.assertGreater(len(named), 50)
        self.assertEqual([], [name for name in named if not self.is_there(name)])

    def test_modules_that_pages_name_in_full_exist(self) -> None:
        for page in (*sorted((ROOT / "doc/source").glob("*.md")), *sorted(ROOT.glob("*.md"))):
            text = page.read_text(encoding="utf-8")
            named = {*(name.replace(".", "/") for name in DOTTED.findall(text)),
                     *(name.removesuffix(".py") for name in PATH.findall(text))}
            # An attribute of a module may follow it.
            missing = [name for name in sorted(named)
                       if not {name, str(Path(name).parent)} & (self.modules | self.directories)]
            self.assertEqual([], missing, page.name)

    def test_containerhost_has_few_parts_and_the_architecture_names_all_modules_of_shared_packages(self) -> None:
        parts = {module.split("/")[1] for module in self.modules if module.startswith("containerhost/")}
        self.assertLess(len(parts), 14)
        named = set(NAME.findall((ROOT / "doc/source/architecture.md").read_text(encoding="utf-8")))
        ends = {name.rstrip("/") for name in named}
        shared = ("containerhost/", "hpcplan/", "onedriver/")
        ours = [module for module in sorted(self.modules) if module.startswith(shared)]
        self.assertEqual([], [module for module in ours if not any(f"/{module}".endswith(f"/{end}") for end in ends)])

    def test_samples_have_one_place_and_exist(self) -> None:
        found = 0
        for page in sorted((ROOT / "doc/source").glob("*.md")):
            text = COMMENT.sub("", page.read_text(encoding="utf-8"))  # what the docs test runs is no reader's command
            self.assertEqual([], OF_CHECKOUT.findall(text.replace("../../etc/", "")), page.name)
            for match in SAMPLE.finditer(text) if page.name != "install.md" else ():
                self.assertEqual(SAMPLES, match[0][:len(SAMPLES)], page.name)
                self.assertTrue((ROOT / "etc" / match[1].rstrip("/.")).exists(), f"{page.name}: {match[0]}")
                found += 1
        self.assertGreater(found, 5)

    def test_every_page_is_in_the_table_of_contents_and_its_pictures_are_there(self) -> None:
        pages = sorted((ROOT / "doc/source").glob("*.md"))
        listed = set((ROOT / "doc/source/index.md").read_text(encoding="utf-8").splitlines())
        self.assertEqual([], [page.name for page in pages if page.stem not in {"index", *listed}])
        pictures = {page.parent / name for page in pages for name in PICTURE.findall(page.read_text(encoding="utf-8"))}
        self.assertNotEqual(set(), pictures)
        self.assertEqual([], [str(picture) for picture in sorted(pictures) if not picture.is_file()])
        self.assertEqual([], [str(picture) for picture in sorted(pictures) if picture.stat().st_size > PICTURE_LIMIT])


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module or statement and all statements in it. Expressions, most of a source, are not looked at."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield from statements(child)


class Sources(testtools.TestCase):
    def test_docstrings_come_first(self) -> None:
        """Else a string is no docstring. One below an attribute may tell of that where there is a docstring."""
        found = [f"{path.relative_to(ROOT)}:{later.lineno}" for path in sources(*PACKAGES, "tools", "tests")
                 for node in statements(ast.parse(path.read_bytes()))
                 if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and ast.get_docstring(node) is None
                 for later in node.body[1:]
                 if isinstance(later, ast.Expr) and isinstance(later.value, ast.Constant)
                 and isinstance(later.value.value, str)]
        self.assertEqual([], found)

    def test_nothing_is_imported_twice_in_one_place(self) -> None:
        found = []
        for path in sources(*PACKAGES, "tools", "tests"):
            for node in statements(ast.parse(path.read_bytes())):
                if not isinstance(node, ast.FunctionDef | ast.Module):
                    continue
                places = node.body if isinstance(node, ast.Module) else statements(node)
                names = collections.Counter(
                    (getattr(place, "module", ""), alias.name, alias.asname) for place in places
                    if isinstance(place, ast.Import | ast.ImportFrom) for alias in place.names)
                found += [f"{path.relative_to(ROOT)}: {name}" for name, count in names.items() if count > 1]
        self.assertEqual([], found)
