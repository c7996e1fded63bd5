"""Rules for the source tree that no compiler checks."""

import os
import re
import subprocess
import tempfile
import tomllib
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Files that import each other, directly or through others.
LONGEST_CYCLE = 4
# Fields of a structure: with more it is several types that have no names yet.
MAX_FIELDS = 15
# Records, whose fields others read one by one: no code of ours owns their state.
RECORDS = {
    ("protocol/abi/src/device.rs", "cudaDeviceProp"): "NVIDIA's structure",
    ("protocol/abi/src/cuda12.rs", "cudaDeviceProp"): "NVIDIA's structure",
    ("protocol/control/src/admin.rs", "SessionInfo"): "a message; its fields are a session's line of JSON",
    ("protocol/interface/src/function.rs", "Function"): "a row of the description; its fields are the attributes",
}
# Lines of code in a file, without comments and blank lines: of programs, of tests.
LONGEST_FILE = 600
LONGEST_TEST = 700
# Guides, and the folders whose files they show.
GUIDES = {"docs/pool.md": "host-backend/pool/examples", "docs/kubernetes.md": "host-backend/kubernetes/examples"}
# Modules of tests: they may import anything.
TESTS = {"tests", "testing", "fuzzing", "fake", "conformance"}


def tracked(*patterns):
    """Files of the repository, relative to its root."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, text=True)
    return [path for path in listed.split("\0") if path and os.path.exists(os.path.join(ROOT, path))]


def read(path):
    """The text of a file of the repository."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def leaves(tree, before=()):
    """The paths of a tree of imports: `a::{b, c::{d, e as f}}`."""
    depth, part, parts = 0, "", []
    for letter in tree + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    for part in filter(None, parts):
        head, brace, rest = part.partition("{")
        if brace:
            words = tuple(word.strip() for word in head.split("::") if word.strip())
            yield from leaves(rest.rsplit("}", 1)[0], before + words)
        else:
            yield before + tuple(re.sub(r"\s+as\s+\w+", "", part).split("::"))


def structures(text):
    """Names of a file's structures and how many fields each has."""
    text = re.sub(r"//[^\n]*", "", text)
    for found in re.finditer(r"^([ \t]*)(?:pub(?:\([^)]*\))? )?struct (\w+)[^;{(]*\{\n(.*?)^\1\}", text, re.S | re.M):
        indent, name, body = found.groups()
        yield name, len(re.findall(rf"^{indent}    (?:pub(?:\([^)]*\))? )?(?:r#)?\w+:\s", body, re.M))


def is_test(path):
    """Is a Rust file all tests?"""
    words = re.split(r"[/.]", path)
    return not {"tests", "fuzz"}.isdisjoint(words) or path.endswith("_tests.rs")


class Crate:
    """The modules of a crate, and which import which. A module is the path of its
    names; the root is empty."""

    def __init__(self, folder, files):
        source = os.path.join(folder, "src")
        self.files = {self.module(source, path): path for path in files if path.startswith(source + os.sep)}
        self.text = {module: self.code(path) for module, path in self.files.items()}
        self.exported = {}
        for path in self.written(()):
            target = self.target((), path)
            if target:
                self.exported[path[-1]] = target
        self.imports = {module: self.imported(module) for module in self.files}

    @staticmethod
    def module(source, path):
        """The module of a file."""
        words = os.path.relpath(path, source).removesuffix(".rs").split(os.sep)
        return tuple(words[:-1] if words[-1] in ("lib", "main", "mod") else words)

    @staticmethod
    def code(path):
        """A file without its comments and its tests."""
        text = re.sub(r"//[^\n]*", "", read(path))
        return re.split(r"#\[cfg\((?:all\()?test\b[^]]*\]\s*(?:pub\(\w+\) )?mod \w+ \{", text)[0]

    def written(self, module):
        """Paths that a module names: what it imports, `crate::a::b` in between, and
        `child::b` of a module inside it."""
        text = self.text.get(module, "")
        uses = r"\buse\s+([^;]+);"
        for tree in re.findall(uses, text):
            yield from leaves(re.sub(r"\s+", " ", tree))
        for path in re.findall(r"(?<![\w:])[a-z]\w*(?:::\w+)+", re.sub(uses, "", text)):
            path = tuple(path.split("::"))
            if path[0] in ("crate", "self", "super") or (*module, path[0]) in self.files:
                yield path

    def target(self, module, path):
        """The module that a path leads to; `None` for another crate's, and for the root."""
        base, path = list(module), list(path)
        if path[0] == "crate":
            base, path = [], path[1:]
        elif path[0] not in ("self", "super") and (*module, path[0]) not in self.files:
            return None
        while path and path[0] in ("self", "super"):
            base = base[:-1] if path[0] == "super" else base
            path = path[1:]
        whole = (*base, *path)
        for length in range(len(whole), 0, -1):
            if whole[:length] in self.files:
                return whole[:length]
        # What the root exports is the module's that declares it.
        return self.exported.get(whole[0]) if whole else None

    def imported(self, module):
        """The modules that a module imports. The root and tests are at nobody's disposal."""
        if not module or TESTS.intersection(module):
            return set()
        return {self.target(module, path) for path in self.written(module)} - {None, module}

    def cycles(self):
        """Sets of modules each of which leads to every other one."""
        reach = {}
        for module in self.files:
            seen, left = set(), [module]
            while left:
                for other in self.imports.get(left.pop(), ()):
                    if other not in seen:
                        seen.add(other)
                        left.append(other)
            reach[module] = seen
        found = {
            frozenset(other for other in seen if module in reach[other]) for module, seen in reach.items() if module in seen
        }
        return sorted(found, key=len, reverse=True)


class Tree(unittest.TestCase):
    """What holds for every crate."""

    @classmethod
    def setUpClass(cls):
        manifests = tracked("*Cargo.toml")
        cls.folders = [os.path.dirname(path) for path in manifests if "package" in tomllib.loads(read(path))]
        cls.files = tracked("*.rs")

    def test_no_more_than_a_few_files_import_each_other(self):
        """Imports point one way."""
        checked = 0
        for folder in self.folders:
            crate = Crate(folder, self.files)
            checked += sum(map(len, crate.imports.values()))
            for cycle in crate.cycles():
                names = ", ".join(sorted(crate.files[module] for module in cycle))
                with self.subTest(crate=folder):
                    self.assertLessEqual(len(cycle), LONGEST_CYCLE, f"{len(cycle)} files import each other: {names}")
        self.assertGreater(checked, 1000, "imports were not found")

    def test_cycles_are_found(self):
        """Modules in a circle, in the ways in which an import is written."""
        crate = Crate.__new__(Crate)
        crate.files = {(): "", ("a",): "", ("a", "inner"): "", ("b",): "", ("c",): "", ("c", "inner"): ""}
        crate.text = {
            (): "pub use c::Thing;",
            ("a",): "use crate::{b::{One, Two as Three}, other};",
            ("b",): "fn f() { crate::Thing::new() }",
            ("c",): "fn f() -> g::inner::Y { inner::g() }",
            ("c", "inner"): "use crate::a::inner::X;",
            ("a", "inner"): "use super::Y;",
        }
        crate.exported = {"Thing": ("c",)}
        crate.imports = {module: crate.imported(module) for module in crate.files}
        self.assertEqual(list(map(len, crate.cycles())), [5])

    def test_types_have_few_fields(self):
        """A type with more fields owns more than one thing."""
        large, checked = {}, 0
        for path in self.files:
            for name, fields in structures(read(path)):
                checked += 1
                if fields > MAX_FIELDS:
                    large[path, name] = fields
        self.assertGreater(checked, 500, "structures were not found")
        self.assertEqual({}, {key: fields for key, fields in large.items() if key not in RECORDS})
        self.assertEqual([], [key for key in RECORDS if key not in large], "no longer large")

    def test_fields_are_counted(self):
        """Visibility, attributes, comments and generics do not hide fields."""
        text = "pub struct A<'a> where B: C {\n    // a: b,\n    #[x]\n    pub(super) c: D<'a>,\n    e:\n        F,\n}\n"
        self.assertEqual([("A", 2)], list(structures(text + "struct G(u8);\n")))

    def test_files_are_short(self):
        """A file that is longer holds several modules."""
        long, checked = {}, 0
        for path in self.files:
            whole = read(path) if is_test(path) else Crate.code(os.path.join(ROOT, path))
            lines = [line.strip() for line in whole.splitlines()]
            count = sum(1 for line in lines if line and not line.startswith("//"))
            checked += count
            if count > (LONGEST_TEST if is_test(path) else LONGEST_FILE):
                long[path] = count
        self.assertGreater(checked, 50_000, "code was not found")
        self.assertEqual({}, long)

    def test_guides_show_their_examples(self):
        """What the packages ship and what the tests use is what a reader copies."""
        for guide, folder in GUIDES.items():
            examples = [path for path in tracked(f"{folder}/*") if not path.endswith(".rs")]
            self.assertTrue(examples, folder)
            for path in examples:
                self.assertIn(read(path), read(guide), path)

    def test_scripts_print_their_usage(self):
        """`--help` of a script is its first comment, and does nothing else."""
        scripts = [path for path in tracked("*.sh") if re.search(r"^# usage: ", read(path), re.M)]
        self.assertGreater(len(scripts), 15, "scripts were not found")
        for path in scripts:
            with self.subTest(script=path), tempfile.TemporaryDirectory() as empty:
                command = ["bash", os.path.join(ROOT, path), "--help"]
                done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr, os.listdir(empty)), (0, "", []))
                self.assertRegex(done.stdout, rf"(?m)^usage: {os.path.basename(path)}")

    def test_comments_hold_no_code_to_compile(self):
        """No documentation test is ever run: rustdoc needs a minute to find that there is none."""
        found = 0
        for path in self.files:
            # Each second fence closes a block.
            blocks = re.findall(r"^\s*//[/!] *```(.*)$", read(path), re.MULTILINE)[::2]
            found += len(blocks)
            self.assertEqual([], [block for block in blocks if not block.startswith("text")], path)
        self.assertGreater(found, 10, "blocks were not found")

    def test_no_crate_allows_unsafe_operations_outside_of_blocks(self):
        """The workspace denies them, and unsafe code in files not named for it; every crate
        has its lints."""
        workspace = tomllib.loads(read("Cargo.toml"))["workspace"]
        self.assertEqual(workspace["lints"]["rust"]["unsafe_code"], "deny")
        self.assertEqual(workspace["lints"]["rust"]["unsafe_op_in_unsafe_fn"], "deny")
        for path in self.files:
            self.assertNotRegex(read(path), r"(allow|warn|expect)\([^)]*unsafe_op_in_unsafe_fn", path)
        for folder in self.folders:
            lints = tomllib.loads(read(os.path.join(folder, "Cargo.toml"))).get("lints", {})
            own = lints.get("rust", {}).get("unsafe_op_in_unsafe_fn")
            with self.subTest(crate=folder):
                self.assertTrue(lints.get("workspace") or own == "deny")
