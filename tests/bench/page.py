"""The page of the GPU benchmark: tables and plots in one file that needs nothing else."""

import html
import math
import time

from measure import harness, short

WAYS = ("native", *harness.HOST_COMMUNICATORS)
COLOURS = {
    **{"native": "#444444", "shm": "#1b7f5c", "unix": "#2f6fb2", "tcp": "#b5651d"},
    **{"vms": "#1b7f5c", "sessions": "#1b7f5c", "one after another": "#b5651d", "ideal": "#999999"},
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 13px; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.yes { color: #1b7f5c; } .NO { color: #b00020; font-weight: bold; }
svg text { font: 12px system-ui, sans-serif; fill: #222; }
"""


def tag(name, content="", **attributes):
    """An SVG element."""
    words = "".join(f' {key.replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items())
    return f"<{name}{words}>{content}</{name}>"


def bars(title, groups, unit):
    """Groups of bars: [(label, [(series, value)])], drawn from the left, each group scaled to its largest."""
    bar, gap, left, width = 14, 12, 190, 560
    parts, top = [], 10
    for label, values in groups:
        values = [(series, value) for series, value in values if value is not None]
        if not values:
            continue
        largest = max(value for _, value in values) or 1
        middle = top + bar * len(values) / 2 + 4
        parts.append(tag("text", html.escape(label), x=left - 8, y=middle, text_anchor="end"))
        for series, value in values:
            length = max(width * value / largest, 1)
            parts.append(tag("rect", x=left, y=top, width=f"{length:.1f}", height=bar - 2, fill=COLOURS.get(series, "#888")))
            text = f"{short(value)} {unit}  {series}"
            parts.append(tag("text", html.escape(text), x=f"{left + length + 6:.1f}", y=top + bar - 4))
            top += bar
        top += gap
    if not parts:
        return ""
    picture = tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {left + width + 170} {top}", role="img")
    return f"<h2>{html.escape(title)}</h2>\n{picture}\n"


def lines(title, series, across, upwards):
    """A plot with logarithmic axes and its heading."""
    picture = plot(series, across, upwards)
    return f"<h2>{html.escape(title)}</h2>\n{picture}\n" if picture else ""


def plot(series, across, upwards, marks=None):
    """A picture with logarithmic axes: {name: [(x, y)]}; y in seconds or whatever
    `upwards` says; lines across at the decades, or upwards from `marks`."""
    left, width, height = 70, 560, 300
    points = [point for values in series.values() for point in values if point[0] > 0 and point[1] > 0]
    if not points:
        return ""
    (x0, x1), (y0, y1) = [(math.floor(math.log10(min(axis))), math.ceil(math.log10(max(axis)))) for axis in zip(*points)]
    x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)
    place = lambda x, y: (  # noqa: E731
        left + width * (math.log10(x) - x0) / (x1 - x0),
        10 + height * (y1 - math.log10(y)) / (y1 - y0),
    )
    parts = []
    for mark in marks or [10**decade for decade in range(x0, x1 + 1)]:
        at = place(mark, 10**y0)[0]
        parts.append(tag("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=10, y2=10 + height, stroke="#ddd"))
        parts.append(tag("text", f"{mark:g}", x=f"{at:.1f}", y=height + 26, text_anchor="middle"))
    for decade in range(y0, y1 + 1):
        at = place(10**x0, 10**decade)[1]
        parts.append(tag("line", x1=left, x2=left + width, y1=f"{at:.1f}", y2=f"{at:.1f}", stroke="#ddd"))
        parts.append(tag("text", f"{10**decade:g}", x=left - 6, y=f"{at + 4:.1f}", text_anchor="end"))
    for index, (name, values) in enumerate(series.items()):
        colour = COLOURS.get(name, "#7a3fa0")
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in sorted(values) if min(point) > 0)
        parts.append(tag("polyline", points=path, fill="none", stroke=colour, stroke_width=2))
        parts.append(tag("rect", x=left + width + 14, y=index * 18 + 14, width=12, height=12, fill=colour))
        parts.append(tag("text", html.escape(name), x=left + width + 32, y=index * 18 + 24))
    parts.append(tag("text", html.escape(across), x=left + width / 2, y=height + 44, text_anchor="middle"))
    parts.append(tag("text", html.escape(upwards), x=4, y=height + 44))
    return tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {left + width + 200} {height + 52}", role="img")


def document(title, body):
    """A page around its parts."""
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>\n{body}</html>\n'


def ratios(entries):
    """Each measured ratio on one line, its goal as a mark: good is towards the goal's side."""
    row, left, width, most = 16, 250, 480, 2.0
    shown = [entry for entry in entries if entry["ratio"] is not None and entry["goal"] is not None and entry["goal_is"].startswith("ratio")]
    parts = []
    for at, entry in enumerate(shown):
        y = at * row + 20
        place = lambda ratio: left + width * min(ratio, most) / most  # noqa: E731
        colour = "#1b7f5c" if entry["met"] else "#b00020"
        parts.append(tag("text", html.escape(entry["name"]), x=left - 8, y=y + 4, text_anchor="end"))
        parts.append(tag("line", x1=left, x2=f"{place(entry['ratio']):.1f}", y1=y, y2=y, stroke=colour, stroke_width=6))
        goal = f"{place(entry['goal']):.1f}"
        parts.append(tag("line", x1=goal, x2=goal, y1=y - 6, y2=y + 6, stroke="#222", stroke_width=2))
        parts.append(tag("text", f"{short(entry['ratio'])}  ({entry['goal_is']} {short(entry['goal'])})", x=left + width + 8, y=y + 4))
    one = left + width / most
    height = len(shown) * row + 24
    parts.append(tag("line", x1=one, x2=one, y1=8, y2=height - 6, stroke="#bbb", stroke_dasharray="3 3"))
    picture = tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {left + width + 190} {height}", role="img")
    return (
        "<h2>Ratios and goals</h2>\n<p>Each line is the measured ratio to its baseline (native, or a bare copy), the mark its goal, "
        f"the dashed line 1; ratios over {most:g} are cut.</p>\n{picture}\n"
    )


def missed(entries):
    """What was not reached, and what the time is spent on."""
    rows = [
        f"<li><b>{html.escape(entry['name'])}</b>: {short(entry['value'])} {entry['unit']}, ratio {short(entry['ratio'])}, "
        f"goal {entry['goal_is']} {short(entry['goal'])}. {html.escape((entry.get('note') or 'No other measurement of this run says why') + '.')}</li>"
        for entry in entries
        if entry["met"] is False
    ]
    return "<h2>Goals that were not reached</h2>\n" + (f"<ul>{''.join(rows)}</ul>\n" if rows else "<p>None.</p>\n")


def numbers(entries):
    """All entries."""
    head = "".join(f"<th>{word}</th>" for word in ("name", "value", "unit", "baseline", "ratio", "goal", "met"))
    rows = []
    for entry in entries:
        met = {None: "-", True: "yes", False: "NO"}[entry["met"]]
        goal = "-" if entry["goal"] is None else f"{entry['goal_is']} {short(entry['goal'])}"
        rows.append(
            f"<tr><td>{html.escape(entry['name'])}</td><td class=n>{short(entry['value'])}</td><td>{entry['unit']}</td>"
            f"<td class=n>{short(entry['baseline'])}</td><td class=n>{short(entry['ratio'])}</td><td>{goal}</td><td class={met}>{met}</td></tr>"
        )
    return f"<h2>All numbers</h2>\n<table><tr>{head}</tr>{''.join(rows)}</table>\n"


def render(about, command, entries, samples):
    """The page."""

    def group(name):
        return name, [(way, samples.median(f"{way}_{name}")) for way in WAYS]

    programs = sorted({key.split("_program_")[1] for key in samples.values if "_program_" in key}, key=str.lower)
    operations = (
        "launch_issue launch_sync stream_sync_idle event_record event_create_destroy stream_create_destroy memset_4k "
        "copy64_h2d copy64_d2h malloc_free_2m graph100"
    ).split()
    copies = [group(name) for name in ("pinned_h2d", "pinned_d2h", "pageable_h2d", "pageable_d2h")]
    for direction, values in copies:
        values.append(("one-thread memcpy", samples.median("raw_memcpy")))
    title = "paragpu beside native"
    body = [
        f"<h1>{title}</h1>\n<p>{html.escape(about)}. {time.strftime('%Y-%m-%d')}, <code>{html.escape(command)}</code>. "
        "Native and remote runs alternate; every figure is a median.</p>\n",
        missed(entries),
        ratios(entries),
        bars("Single operations (shorter is better)", [group(name) for name in operations], "us"),
        bars("Null launches a second (longer is better)", [group("launch_throughput")], "/s"),
        bars("Bulk copies (longer is better)", copies, "B/s"),
        bars("From process start to the first result (shorter is better)", [group("start_to_first_result")], "s"),
        bars("Eight processes at once, kernels a second in all (longer is better)", [group("shared_8")], "/s"),
        bars(
            "Whole programs (shorter is better)",
            [(name, [(way, samples.median(f"{way}_program_{name}")) for way in WAYS]) for name in programs],
            "s",
        ),
        numbers(entries),
    ]
    if samples.failures:
        body.append("<h2>Not measured</h2>\n<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in samples.failures) + "</ul>\n")
    return document(title, "".join(body))
