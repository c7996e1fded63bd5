#!/usr/bin/env python3
"""Draws the page of a benchmark from its JSON: `page.py RESULTS.json...` writes
RESULTS.html beside each, and `page.py --gallery GALLERY.html RESULTS.json...` also one
page with the plots of all. Needs matplotlib (`make plots` brings it); the machine that
measures does not.
"""

import argparse
import html
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
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 13px; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.yes { color: #1b7f5c; } .NO { color: #b00020; font-weight: bold; }
svg { max-width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif; }
"""


def looks(names):
    """Colour and marker of each series, no two alike."""
    free = [colour for colour in OTHERS if colour not in {COLOURS.get(name) for name in names}]
    chosen = {}
    for at, name in enumerate(names):
        chosen[name] = {"color": COLOURS.get(name) or free.pop(0), "marker": MARKERS[at % len(MARKERS)]}
    return chosen


def picture(figure):
    """A figure as SVG for a page, without what a page does not show: the names of
    groups, fonts that the page's style names, and more than a tenth of a point."""
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
    return re.sub(r"\s*\n\s*", "\n", svg)


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
    return f"<h2>Ratios and goals</h2>\n{picture(figure)}\n"


def section(title, items):
    """A heading and a list; nothing where the list is empty."""
    return f"<h2>{title}</h2>\n<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>\n" if items else ""


def missed(entries, remarks):
    """Goals that were missed, and goals that were not measured."""
    texts = []
    for entry in entries:
        if entry["met"] is False and entry["value"] is not None:
            remark = remarks[entry["name"]]
            texts.append(
                f"<b>{html.escape(entry['name'])}</b>: {short(entry['value'])} {entry['unit']}, ratio {short(entry['ratio'])}, "
                f"goal {remark['goal_is']} {short(entry['goal'])}. {html.escape(remark.get('note') or '')}"
            )
    absent = [html.escape(entry["name"]) for entry in entries if entry["value"] is None]
    return (section("Goals that were not reached", texts) or "<p>Every goal that was measured was reached.</p>\n") + section(
        "Not part of this run", absent
    )


def numbers(entries, remarks):
    """A table of the measurements."""
    head = "".join(f"<th>{word}</th>" for word in ("name", "value", "unit", "baseline", "ratio", "goal", "met"))
    rows = []
    for entry in entries:
        if entry["value"] is None:
            continue
        met = {None: "-", True: "yes", False: "NO"}[entry["met"]]
        goal = "-" if entry["goal"] is None else f"{remarks[entry['name']]['goal_is']} {short(entry['goal'])}"
        rows.append(
            f"<tr><td>{html.escape(entry['name'])}</td><td class=n>{short(entry['value'])}</td><td>{entry['unit']}</td>"
            f"<td class=n>{short(entry['baseline'])}</td><td class=n>{short(entry['ratio'])}</td><td>{goal}</td><td class={met}>{met}</td></tr>"
        )
    return f"<h2>All numbers</h2>\n<table><tr>{head}</tr>{chr(10).join(rows)}</table>\n" if rows else ""


def table(described):
    """A table of the data, as it is."""
    cells = lambda kind, row: "".join(  # noqa: E731
        f"<{kind}>{html.escape('' if cell is None else short(cell) if isinstance(cell, float) else str(cell))}</{kind}>" for cell in row
    )
    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in described["rows"])
    return f"<h3>{html.escape(described['title'])}</h3>\n<table><tr>{cells('th', described['head'])}</tr>{body}</table>\n"


def with_classes(text):
    """The same page with a class for each style that is there more than once."""
    styles = [style for style, count in Counter(re.findall(r' style="([^"]*)"', text)).items() if count > 1]
    for at, style in enumerate(styles):
        text = text.replace(f' style="{style}"', f' class="s{at}"')
    rules = "".join(f".s{at} {{ {style} }}\n" for at, style in enumerate(styles))
    return text.replace("</style>", rules + "</style>", 1)


def drawn(data):
    """Each plot of a benchmark: a heading and a picture."""
    for plot in data.get("plots", []):
        picture_of = {"lines": lines, "dots": dots}[plot["kind"]]
        yield f"<h2>{html.escape(plot['title'])}</h2>\n{picture_of(plot)}\n"


def document(title, parts):
    """A page of parts."""
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>\n'
    return with_classes(f"{head}{''.join(parts)}</html>\n")


def page(data):
    """The whole page."""
    entries, remarks = data.get("results", []), data.get("remarks", {})
    about = f"{data['machine']}. {data['date']}, <code>{html.escape(data['command'])}</code>. {html.escape(data['about'])}"
    parts = [f"<h1>{html.escape(data['title'])}</h1>\n<p>{about}</p>\n"]
    if entries:
        parts += [missed(entries, remarks), ratios(entries, remarks)]
    parts += drawn(data)
    parts += map(table, data.get("tables", []))
    parts += [numbers(entries, remarks), section("Not measured", [html.escape(name) for name in data.get("not_measured", [])])]
    return document(data["title"], parts)


def gallery(folder, pages):
    """The plots of several pages, each under the page's title with a link to it."""
    parts = ["<h1>Gallery</h1>\n<p>Every plot of these measurements; each page has the numbers, the machine and the command.</p>\n"]
    for path, data in pages:
        plots = [*drawn(data)] or [ratios(data.get("results", []), data.get("remarks", {}))]
        link = html.escape(os.path.relpath(path, folder))
        parts += [f'<h1><a href="{link}">{html.escape(data["title"])}</a></h1>\n<p>{data["machine"]}. {data["date"]}</p>\n', *plots]
    return document("Gallery", parts)


def main():
    """A page for each file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gallery", metavar="FILE", help="write all plots on one page there")
    parser.add_argument("results", nargs="+", metavar="RESULTS.json")
    options = parser.parse_args()
    pages = []
    for path in options.results:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        pages.append((os.path.splitext(path)[0] + ".html", data))
        write(pages[-1][0], page(data))
    if options.gallery:
        write(options.gallery, gallery(os.path.dirname(options.gallery), pages))


def write(path, text):
    """Writes a page."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
