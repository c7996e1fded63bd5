#!/usr/bin/env python3
"""Draws the page of a benchmark from its JSON: `page.py NAME.json...` writes pages/NAME.md
and its plots, pages/NAME/TITLE.svg, beside each, and `page.py --gallery GALLERY.md NAME.json...`
also one page with the plots of all. Needs matplotlib (`make plots` brings it); the machine that
measures does not.
"""

import argparse
import io
import json
import os
import re
import sys
from collections import Counter

import matplotlib

matplotlib.use("svg")
# pylint: disable=wrong-import-position
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from short import short

# The same input gives the same page, and a browser's fonts draw its text.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "paragpu", "font.size": 9, "axes.axisbelow": True})
for axis in ("xtick", "ytick"):
    matplotlib.rcParams.update({f"{axis}.major.size": 0, f"{axis}.minor.size": 0, f"{axis}.minor.width": 0})
# Where a series has the same colour on every page.
COLOURS = {"native": "#444444", "shm": "#1b7f5c", "unix": "#2f6fb2", "tcp": "#b5651d", "ideal": "#999999"}
OTHERS = ("#1b7f5c", "#b5651d", "#2f6fb2", "#7a3fa0", "#b00020", "#444444")
MARKERS = "osD^vP"
# What a picture of its own needs.
STYLE = "text { font-family: system-ui, sans-serif; }"


def looks(names):
    """Colour and marker of each series, no two alike."""
    free = [colour for colour in OTHERS if colour not in {COLOURS.get(name) for name in names}]
    chosen = {}
    for at, name in enumerate(names):
        chosen[name] = {"color": COLOURS.get(name) or free.pop(0), "marker": MARKERS[at % len(MARKERS)]}
    return chosen


def picture(figure):
    """A figure as SVG, without what nobody sees: the names of groups, a font for each text,
    and more than a tenth of a point."""
    text = io.StringIO()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # In tags only: what they enclose is text.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", tag[0]), svg)
    svg = re.sub(r" font-family: [^;]+;| transform=\"rotate\(-0 [^\"]+\"| id=\"[a-z]+[._]?[a-z]*_\d+\"", "", svg)
    # Ticks have no length.
    svg = re.sub(r"<use [^>]*stroke: #000000[^>]*/>", "", svg)
    while (fewer := re.sub(r"<g>\s*</g>|<g/>", "", svg)) != svg:
        svg = fewer
    return with_classes(re.sub(r"\s*\n\s*", "\n", svg))


def with_classes(svg):
    """The same picture with a class for each style that is there more than once."""
    styles = [style for style, count in Counter(re.findall(r' style="([^"]*)"', svg)).items() if count > 1]
    for at, style in enumerate(styles):
        svg = svg.replace(f' style="{style}"', f' class="s{at}"')
    rules = "".join(f".s{at} {{ {style} }}\n" for at, style in enumerate(styles))
    return svg.replace(">", f">\n<style>\n{STYLE}\n{rules}</style>", 1)


def lines(plot):
    """Series across logarithmic axes, or linear ones that begin at 0."""
    linear = plot.get("scale") == "linear"
    figure, axes = pyplot.subplots(figsize=(6.5, 3.4))
    style = looks(plot["series"])
    for name, points in plot["series"].items():
        points = sorted(point for point in points if linear or min(point) > 0)
        axes.plot(*zip(*points), label=name, linewidth=1.4, markersize=4, **style[name])
    scale = "linear" if linear else "log"
    axes.set(xscale=scale, yscale=scale, xlabel=plot["across"], ylabel=plot["upwards"])
    if linear:
        axes.set_ylim(bottom=0)
    marks = sorted({point[0] for points in plot["series"].values() for point in points if linear or point[0] > 0})
    if len(marks) <= 8:
        axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False)
    return picture(figure)


def dots(plot):
    """A row each group, a marker each series."""
    groups = [(label, [pair for pair in pairs if pair[1]]) for label, pairs in plot["groups"]]
    groups = [(label, pairs) for label, pairs in groups if pairs]
    names = list(dict.fromkeys(name for _, pairs in groups for name, _ in pairs))
    figure, axes = pyplot.subplots(figsize=(6.5, 0.7 + 0.2 * len(groups)))
    style = looks(names)
    for name in names:
        points = [(value, row) for row, (_, pairs) in enumerate(groups) for series, value in pairs if series == name]
        axes.plot(*zip(*points), linestyle="none", markersize=5, label=name, **style[name])
    axes.set(xscale="log", xlabel=plot["unit"], ylim=(len(groups) - 0.5, -0.5))
    axes.set_yticks(range(len(groups)), [label for label, _ in groups])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture(figure)


def ratios(entries, remarks, most=2.0):
    """Each measured ratio to its baseline, and its goal."""
    shown = [
        entry
        for entry in entries
        if entry["ratio"] is not None and entry["goal"] is not None and remarks[entry["name"]]["goal_is"].startswith("ratio")
    ]
    if not shown:
        return ""
    figure, axes = pyplot.subplots(figsize=(6.5, 0.7 + 0.16 * len(shown)))
    for met, label, colour in ((True, "met", "#1b7f5c"), (False, "missed", "#b00020")):
        points = [(min(entry["ratio"], most), row) for row, entry in enumerate(shown) if entry["met"] is met]
        if points:
            axes.plot(*zip(*points), linestyle="none", marker="o", markersize=4, color=colour, label=label)
    goals = [(min(entry["goal"], most), row) for row, entry in enumerate(shown)]
    axes.plot(*zip(*goals), linestyle="none", marker="|", markersize=8, color="#222222", label="goal")
    axes.axvline(1, color="#bbbbbb", linestyle="--", linewidth=0.8)
    axes.set(xlabel=f"ratio to the baseline, {most:g} where it is more", xlim=(0, most * 1.03), ylim=(len(shown) - 0.5, -0.5))
    axes.set_yticks(range(len(shown)), [entry["name"] for entry in shown], fontsize=7)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture(figure)


def drawn(data):
    """Titles and pictures of all plots of a benchmark."""
    ratio = ratios(data.get("results", []), data.get("remarks", {}))
    if ratio:
        yield "Ratios and goals", ratio
    for plot in data.get("plots", []):
        yield plot["title"], {"lines": lines, "dots": dots}[plot["kind"]](plot)


def cell(value):
    """The text of a cell."""
    text = "" if value is None else short(value) if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")


def table(head, rows):
    """A table."""
    rules = ["---"] * len(head)
    return "".join(f"| {' | '.join(map(cell, row))} |\n" for row in (head, rules, *rows)) + "\n"


def section(title, items):
    """A heading and a list; nothing where the list is empty."""
    return f"## {title}\n\n{''.join(f'- {item}' + chr(10) for item in items)}\n" if items else ""


def missed(entries, remarks):
    """Goals that were missed, and goals that were not measured."""
    texts = []
    for entry in entries:
        if entry["met"] is False and entry["value"] is not None:
            remark = remarks[entry["name"]]
            texts.append(
                f"**{entry['name']}**: {short(entry['value'])} {entry['unit']}, ratio {short(entry['ratio'])}, "
                f"goal {remark['goal_is']} {short(entry['goal'])}. {remark.get('note') or ''}".rstrip()
            )
    absent = [entry["name"] for entry in entries if entry["value"] is None]
    return (section("Goals that were not reached", texts) or "Every goal that was measured was reached.\n\n") + section(
        "Not part of this run", absent
    )


def numbers(entries, remarks):
    """A table of the measurements."""
    rows = []
    for entry in entries:
        if entry["value"] is None:
            continue
        met = {None: "-", True: "yes", False: "**no**"}[entry["met"]]
        goal = "-" if entry["goal"] is None else f"{remarks[entry['name']]['goal_is']} {short(entry['goal'])}"
        rows.append((entry["name"], short(entry["value"]), entry["unit"], short(entry["baseline"]), short(entry["ratio"]), goal, met))
    head = ("name", "value", "unit", "baseline", "ratio", "goal", "met")
    return f"## All numbers\n\n{table(head, rows)}" if rows else ""


class Pages:
    """The pages and pictures of a folder of results."""

    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.folder = os.path.join(os.path.dirname(path), "pages")
        with open(path, encoding="utf-8") as file:
            self.data = json.load(file)
        self.plots = os.path.join(self.folder, self.name)
        os.makedirs(self.plots, exist_ok=True)
        for old in os.listdir(self.plots):
            os.remove(os.path.join(self.plots, old))
        self.pictures = [(title, self.draw(title, svg)) for title, svg in drawn(self.data)]
        self.page = os.path.join(self.folder, f"{self.name}.md")

    def draw(self, title, svg):
        """Writes a picture; its path."""
        words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        path = os.path.join(self.plots, f"{words}.svg")
        write(path, svg)
        return path

    def shown(self, folder, level):
        """The plots, for a page in a folder."""
        return "".join(f"{level} {title}\n\n![{title}]({os.path.relpath(path, folder)})\n\n" for title, path in self.pictures)

    def write(self):
        """Writes the page."""
        data = self.data
        entries, remarks = data.get("results", []), data.get("remarks", {})
        parts = [f"# {data['title']}\n\n{data['machine']}. {data['date']}, `{data['command']}`. {data['about']}\n\n"]
        if entries:
            parts.append(missed(entries, remarks))
        parts.append(self.shown(self.folder, "##"))
        parts += [f"### {each['title']}\n\n{table(each['head'], each['rows'])}" for each in data.get("tables", [])]
        parts += [numbers(entries, remarks), section("Not measured", data.get("not_measured", []))]
        write(self.page, "".join(parts).rstrip() + "\n")


def gallery(path, several):
    """The plots of several pages, each under the page's title with a link to it."""
    folder = os.path.dirname(path)
    parts = ["# Gallery\n\nEvery plot of these measurements; each page has the numbers, the machine and the command.\n\n"]
    for pages in several:
        data = pages.data
        parts.append(f"## [{data['title']}]({os.path.relpath(pages.page, folder)})\n\n{data['machine']}. {data['date']}\n\n")
        parts.append(pages.shown(folder, "###"))
    write(path, "".join(parts).rstrip() + "\n")


def main():
    """A page for each file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gallery", metavar="FILE", help="write all plots on one page there")
    parser.add_argument("results", nargs="+", metavar="NAME.json")
    options = parser.parse_args()
    several = [Pages(path) for path in options.results]
    for pages in several:
        pages.write()
        print(f"written to {os.path.relpath(pages.page)}")
    if options.gallery:
        gallery(options.gallery, several)


def write(path, text):
    """Writes a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
