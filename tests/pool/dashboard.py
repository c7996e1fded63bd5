#!/usr/bin/env python3
"""Draws docs/grafana.json from the metrics of a pool under load, into docs/grafana.svg.

usage: dashboard.py [--output FILE] [--seconds S]

Grafana is not needed and not used: Prometheus scrapes the GPU hosts of a cluster in
network namespaces, evaluates each panel's expressions, and matplotlib draws them at
their places, with their titles and units. Fails if a panel has an expression that
Prometheus refuses, or one without data.

Needs root, Slurm as tests/pool/run.py does, and Prometheus.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, MultipleLocator
from pool.cluster import Cluster, eventually

PORT, STEP = 9400, 2
# As Grafana replaces them: every VM, and four scrapes.
VARIABLES = {"$__rate_interval": "8s", "$vm": ".*"}
SCRAPES = """
global:
  scrape_interval: 2s
scrape_configs:
- job_name: paragpu
  static_configs:
{targets}
"""
# A host under its own name, which the dashboard shows as `instance`.
TARGET = "  - targets: [{address}:{port}]\n    labels: {{instance: {host}}}"
# Runs next to Prometheus, in its network, and queries it.
ASK = """
import json, sys, urllib.parse, urllib.request
answers = []
for query in json.load(sys.stdin):
    url = "http://127.0.0.1:9090/api/v1/" + query.pop("path") + "?" + urllib.parse.urlencode(query)
    try:
        try:
            answer = urllib.request.urlopen(url, timeout=30)
        except urllib.error.HTTPError as error:
            answer = error
        answers.append(json.load(answer))
    except (OSError, ValueError) as error:
        # While it starts, Prometheus answers with words.
        answers.append({"status": "error", "error": str(error)})
print(json.dumps(answers))
"""
# Grafana's names of units.
UNITS = {
    "short": ("", 1, 1000),
    "percentunit": ("%", 100, 1e9),
    "percent": ("%", 1, 1e9),
    "mbytes": ("iB", 1 << 20, 1024),
    "bytes": ("iB", 1, 1024),
    "Bps": ("B/s", 1, 1000),
    "ops": (" ops/s", 1, 1000),
    "s": (" s", 1, None),
}


# Passes each host's endpoint, which is for the host alone, to Prometheus: a site's proxy.
PROXY = """
import socket, sys, threading
address, port = sys.argv[1], int(sys.argv[2])
def copy(source, to):
    while data := source.recv(65536):
        to.sendall(data)
    to.shutdown(socket.SHUT_WR)
listener = socket.create_server((address, port))
while True:
    near = listener.accept()[0]
    far = socket.create_connection(("127.0.0.1", port))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


def ask(cluster, *queries):
    """Prometheus's answer."""
    command = cluster.inside("ctl", sys.executable, "-c", ASK)
    done = subprocess.run(command, env=cluster.environment, input=json.dumps(queries), capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def scrape(cluster):
    """Starts Prometheus on the controller's machine."""
    for host in cluster.hosts:
        cluster.processes[host + "proxy"] = cluster.start(host, sys.executable, "-c", PROXY, cluster.addresses[host], str(PORT))
    targets = "\n".join(TARGET.format(address=cluster.addresses[host], port=PORT, host=host) for host in cluster.hosts)
    cluster.write("prometheus.yml", SCRAPES.format(targets=targets))
    options = [f"--config.file={cluster.folder}/prometheus.yml", f"--storage.tsdb.path={cluster.folder}/series"]
    cluster.processes["prometheus"] = cluster.start("ctl", "prometheus", *options, "--web.listen-address=127.0.0.1:9090")

    def up():
        (answer,) = ask(cluster, {"path": "query", "query": "sum(up)"})
        found = answer.get("data", {}).get("result", [])
        return found and float(found[0]["value"][1]) == len(cluster.hosts)

    eventually(up, "Prometheus scrapes every host")


def load(cluster, seconds):
    """Programs start, work, move and end."""
    began, programs = time.monotonic(), []

    def until(part):
        time.sleep(max(0.0, began + seconds * part - time.monotonic()))

    for at, size in enumerate((20, 40, 80, 10)):
        until(at * 0.12)
        programs.append(cluster.lease(cluster.clients[at % 2], f"{size}GiB", "run"))
        eventually(lambda: programs[-1].rounds() > 2, "rounds", 60)
    until(0.6)
    busiest = max(cluster.hosts, key=lambda host: len(cluster.sessions(host)))
    cluster.slurm("scontrol", "update", f"nodename={busiest}", "state=drain", "reason=picture")
    until(0.8)
    programs[0].end()
    until(1)


def panels(dashboard):
    """The panels with their queries."""
    for panel in dashboard["panels"]:
        yield panel, panel["targets"]


def expression(target):
    """As Grafana sends it."""
    text = target["expr"]
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    if "$" in text:
        raise SystemExit(f"a variable of {target['expr']} is not known here")
    return text


def legend(target, labels):
    """The name of a line, as the panel says."""
    form = target.get("legendFormat") or "{{__name__}}"
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found.group(1), ""), form).strip()


def unit(name):
    """Writes numbers as Grafana's unit does."""
    suffix, factor, base = UNITS[name]

    def written(value, _):
        value *= factor
        if not base:
            return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
        power = 0
        while abs(value) >= base and power < 5:
            value, power = value / base, power + 1
        prefix = " KMGTP"[power].strip()
        return f"{value:.4g}{' ' if prefix else ''}{prefix}{suffix}"

    return FuncFormatter(written)


def draw(dashboard, answers, output):
    """One picture of all panels."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "paragpu", "font.size": 8})
    figure = pyplot.figure(figsize=(12, rows * 0.3))
    first = min(point[0] for _, _, series in answers for line in series for point in line["values"])
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        axes = figure.add_axes(
            [
                place["x"] / 24 + 0.06,
                1 - (place["y"] + place["h"] - 1.2) / rows,
                place["w"] / 24 - 0.075,
                (place["h"] - 2.4) / rows,
            ]
        )
        for own, target, series in answers:
            if own is not panel:
                continue
            for line in series:
                points = [(at - first, float(value)) for at, value in line["values"]]
                points = [(at, value) for at, value in points if math.isfinite(value)]
                axes.plot(*zip(*points), linewidth=1.2, label=legend(target, line["metric"])) if points else None
        axes.set_title(panel["title"], loc="left", fontweight="bold")
        axes.yaxis.set_major_formatter(unit(panel["fieldConfig"]["defaults"].get("unit", "short")))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0f} s"))
        # Room for the names of the lines.
        top = axes.get_ylim()[1] * 1.5
        axes.set_ylim(0, top)
        if UNITS[panel["fieldConfig"]["defaults"].get("unit", "short")][2] == 1024:
            axes.yaxis.set_major_locator(MultipleLocator(2 ** round(math.log2(top / 5))))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=5.5, ncols=2, loc="upper left", framealpha=0.6)
    figure.savefig(output, metadata={"Date": None, "Title": dashboard["title"]})


def main():
    """Runs the cluster, and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "docs", "grafana.svg"))
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("this makes network namespaces: run it as root")
    with open(os.path.join(harness.ROOT, "docs", "grafana.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    asked = [(panel, target) for panel, targets in panels(dashboard) for target in targets]
    with Cluster(metrics=PORT) as cluster:
        scrape(cluster)
        began = time.time()
        load(cluster, options.seconds)
        window = {"path": "query_range", "start": began, "end": time.time(), "step": STEP}
        found = ask(cluster, *({**window, "query": expression(target)} for _, target in asked))
    answers, bad = [], []
    for (panel, target), answer in zip(asked, found):
        series = answer.get("data", {}).get("result", [])
        if answer["status"] != "success" or not series:
            bad.append(f"{panel['title']}: {target['expr']}: {answer.get('error', 'no data')}")
        answers.append((panel, target, series))
    if bad:
        raise SystemExit("\n".join(bad))
    draw(dashboard, answers, options.output)
    print(f"{options.output}: {len(dashboard['panels'])} panels, {sum(len(series) for _, _, series in answers)} lines")


if __name__ == "__main__":
    main()
