"""What the documents name exists: files, headings, targets of make, attacks, metrics."""

import fnmatch
import os
import re
import unittest

from tree.test_tree import ROOT, read, tracked

# Names of past versions stay as they were.
HISTORY = {"CHANGELOG.md"}


def prose(text):
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(text), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head.strip()).replace(" ", "-") for head in plain}


class Documents(unittest.TestCase):
    """Every document of the repository."""

    @classmethod
    def setUpClass(cls):
        cls.files = tracked("*")
        cls.paths = {path for file in cls.files for path in (file, *parents(file))}
        cls.documents = {path: read(path) for path in cls.files if path.endswith(".md")}
        cls.current = {path: text for path, text in cls.documents.items() if path not in HISTORY}

    def test_links_lead_to_files_and_headings(self):
        """Links inside the repository."""
        found = 0
        for path, text in self.documents.items():
            for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
                if re.match(r"[a-z]+:", link):
                    continue
                found += 1
                file, _, anchor = link.partition("#")
                file = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                with self.subTest(document=path, link=link):
                    self.assertIn(file, self.paths)
                    if anchor and file in self.documents:
                        self.assertIn(anchor, anchors(self.documents[file]))
        self.assertGreater(found, 200, "links were not found")

    def test_files_in_code_exist(self):
        """A path in code is one of the repository, or its end."""
        found = 0
        for path, text in self.current.items():
            for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.(?:rs|py|sh|cu|c|h|md|toml|json))`", prose(text)):
                if name.startswith(("out/", ".cache/")):
                    continue
                found += 1
                with self.subTest(document=path, file=name):
                    self.assertTrue(any(f"/{file}".endswith(f"/{name}") for file in self.files))
        self.assertGreater(found, 50, "paths were not found")

    def test_targets_of_make_exist(self):
        """`make TARGET`."""
        targets = set(re.findall(r"^([a-z][\w-]*(?: [a-z][\w-]*)*):", read("Makefile"), re.M))
        targets = {target for line in targets for target in line.split()}
        found = 0
        for path, text in self.current.items():
            for target in re.findall(r"`make ([a-z][a-z0-9-]+)", text):
                found += 1
                with self.subTest(document=path):
                    self.assertIn(target, targets)
        self.assertGreater(found, 50, "targets were not found")

    def test_attacks_exist(self):
        """Attacks that SECURITY.md names by their group, and others by their name."""
        groups = {}
        for path in tracked("tests/hostile/*.py"):
            for name in re.findall(r"^@attack\n(?:@.*\n)*def (\w+)|^def (\w+)\(field\):", read(path), re.M):
                groups.setdefault("".join(name).replace("_", "-"), set()).add(os.path.basename(path)[:-3])
        found = 0
        for path, text in self.current.items():
            listed = re.findall(r"\*([a-z]+)\*: ((?:`[a-z*-]+`(?: \([A-Z, ]+\))?(?:, )?)+)", text)
            named = [(group, name) for group, names in listed for name in re.findall(r"`([^`]+)`", names)]
            named += [(None, name) for name in re.findall(r"attacks? `([^`]+)`", text)]
            for group, name in named:
                found += 1
                with self.subTest(document=path, group=group, attack=name):
                    matching = fnmatch.filter(groups, name)
                    self.assertTrue([known for known in matching if group is None or group in groups[known]])
        self.assertGreater(found, 80, "attacks were not found")

    def test_guides_that_messages_name_exist(self):
        """Help and errors of programs, examples of configurations."""
        found = 0
        for path in tracked("*.rs", "*.example", "*.toml", "*.service", "*.sh"):
            for guide in re.findall(r"\bdocs/[\w/-]+\.md", read(path)):
                found += 1
                with self.subTest(file=path):
                    self.assertIn(guide, self.paths)
        self.assertGreater(found, 5, "guides were not found")


def parents(path):
    """The folders of a file."""
    while path := os.path.dirname(path):
        yield path


if __name__ == "__main__":
    unittest.main()
