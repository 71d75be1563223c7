#!/usr/bin/env python3
"""One table from the JSON of ops_bench and of the peers' benchmarks.

    table.py FILE... [--cases FILE] [--evidence DIR]

"ours" is the kernel that a plan takes; a ratio is the peer's time over ours, above 1 where ours is
faster. Where several files time the same thing (rounds that alternate) the middle figure counts.
"""

import argparse
import collections
import json
import math
import os
import re
import sys

USES = 20  # FLOP for a byte, from which on a case counts as one that computes
FASTER = 1.02  # a kernel that beats the plan's choice by more than this is named


def load(paths):
    """The files' contexts, and case -> kernel -> its entries, both in the order of the files."""
    contexts, cases = [], collections.defaultdict(lambda: collections.defaultdict(list))
    for path in paths:
        with open(path) as file:
            content = json.load(file)
        contexts.append(content["context"])
        for entry in content["benchmarks"]:
            if entry.get("run_type") == "aggregate":
                continue
            # Google Benchmark adds how it ran.
            entry["name"] = re.sub(r"(/iterations:\d+|/manual_time|/repeats:\d+)+$", "",
                                   entry["name"])
            case, kernel = entry["name"].rsplit("/", 1)
            cases[case][kernel].append(entry)
    return contexts, cases


def middle(entries):
    """The entry of median time, or the first one where none was timed."""
    timed = sorted((e for e in entries if "us" in e), key=lambda e: e["us"])
    return timed[(len(timed) - 1) // 2] if timed else entries[0]


class Case:
    """A row of the table."""

    def __init__(self, name, kernels):
        self.name = name
        self.op = name.split("/")[0]
        entries = {kernel: middle(found) for kernel, found in kernels.items()}
        self.faults = {k: e["error_message"] for k, e in entries.items() if "us" not in e}
        timed = {k: e for k, e in entries.items() if "us" in e}
        self.peers = {k: e for k, e in timed.items() if e.get("baseline")}
        self.mine = {k: e for k, e in timed.items() if not e.get("baseline")}
        chosen = [k for k, e in self.mine.items() if e.get("chosen")]
        self.fastest = min(self.mine, key=lambda k: self.mine[k]["us"], default=None)
        self.kernel = chosen[0] if chosen else self.fastest
        self.ours = self.mine.get(self.kernel)

    def ratio(self, peer):
        return self.peers[peer]["us"] / self.ours["us"]

    def best_peer(self):
        return min(self.peers, key=lambda k: self.peers[k]["us"], default=None)


def number(value):
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def time_text(entry):
    text = number(entry["us"])
    if "gpu_us" in entry:
        text += f" (GPU {number(entry['gpu_us'])})"
    return text + ("w" if entry.get("warm") else "")


def rate_text(entry):
    """By the ceiling that is nearer; without ceilings by how often the case uses a byte."""
    matrix, copy = entry.get("pct_matrix", 0), entry.get("pct_copy", 0)
    share = f"{max(matrix, copy):.1f}" if matrix or copy else ""
    computes = matrix > copy if share else 1e3 * entry["tflops"] > USES * entry["gbps"]
    if not computes:
        digits = ".3g" if entry["gbps"] < 100 else ".0f"
        return f"{entry['gbps']:{digits}} GB/s", share
    if entry["tflops"] < 1:
        return f"{1e3 * entry['tflops']:.3g} GFLOP/s", share
    return f"{entry['tflops']:.1f} TFLOP/s", share


def case_cells(case, peers):
    cells = [case.name.split("/", 1)[1]]
    if case.ours:
        cells += [case.kernel, time_text(case.ours), f"{case.ours['spread_pct']:.1f}",
                  *rate_text(case.ours)]
    else:
        cells += ["", "", "", "", ""]
    for peer in peers:
        text = time_text(case.peers[peer]) if peer in case.peers else ""
        if text and case.ours:
            text += f" · {case.ratio(peer):.2f}"
        cells.append(text)
    best = case.best_peer()
    cells.append(f"{case.ratio(best):.2f}" if best and case.ours else "")
    return cells


def mean_cells(cases, peers):
    """Geometric means of the ratios, over the cases that have both."""
    def mean(ratios):
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def text(ratios):
        return f"{mean(ratios):.3f} ({len(ratios)}, least {min(ratios):.2f})" if ratios else ""

    cases = [case for case in cases if case.ours]
    cells = ["geometric mean", "", "", "", "", ""]
    cells += [text([c.ratio(peer) for c in cases if peer in c.peers]) for peer in peers]
    return cells + [text([c.ratio(c.best_peer()) for c in cases if c.peers])]


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def print_op(op, cases):
    peers = list(dict.fromkeys(peer for case in cases for peer in case.peers))
    header = ["case", "ours", "µs", "±%", "rate", "% of ceiling"]
    rows = [header + [f"{peer} µs · ratio" for peer in peers] + ["over the best"]]
    rows += [case_cells(case, peers) for case in cases if case.ours or case.peers]
    if len(rows) == 1:
        return
    print(f"\n## {op}\n")
    if len(rows) > 2 and any(case.ours and case.peers for case in cases):
        rows.append(mean_cells(cases, peers))
    print_table(rows)


def print_notes(cases):
    lines = []
    for case in cases:
        if case.ours and case.ours["us"] > FASTER * case.mine[case.fastest]["us"]:
            fastest = time_text(case.mine[case.fastest])
            lines.append(f"{case.name}: the plan takes {case.kernel}; {case.fastest} takes only "
                         f"{fastest} µs")
        for kernel, fault in case.faults.items():
            # Refusals of a kernel are no news where another one took the case.
            if not fault.startswith("refused") or not case.ours:
                lines.append(f"{case.name}/{kernel}: {fault}")
    if lines:
        print("\n## Notes\n")
        print("\n".join(f"- {line}" for line in lines))


def slug(contexts):
    """date-commit-device, from the first file that knows."""
    known = collections.ChainMap(*contexts)
    device = known.get("device", "unknown")
    if device.startswith("cuda"):
        device = device.split(", ")[1]
    device = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return f"{known.get('date', 'undated')[:10]}-{known.get('commit', 'unknown')}-{device}"


def keep_evidence(folder, contexts, cases, paths, table):
    """Adds a file; replaces none."""
    benchmarks = [e for kernels in cases.values() for found in kernels.values() for e in found]
    os.makedirs(folder, exist_ok=True)
    name, number = slug(contexts), 1
    while True:
        path = os.path.join(folder, name + (f"-{number}" if number > 1 else "") + ".json")
        try:
            with open(path, "x") as file:
                json.dump({"files": [os.path.basename(p) for p in paths], "contexts": contexts,
                           "cases": table, "benchmarks": benchmarks}, file, indent=1)
        except FileExistsError:
            number += 1
            continue
        print(f"\nevidence: {path}", file=sys.stderr)
        return


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--cases", help="what ops_bench --list-cases=json printed, for evidence")
    parser.add_argument("--evidence", metavar="DIR", help="keep everything as a new file there")
    options = parser.parse_args()
    contexts, by_name = load(options.files)
    for context in contexts:
        print("; ".join(f"{k} {v}" for k, v in context.items()
                        if isinstance(v, str) and k not in ("host_name", "library_build_type")))
    print("\nA ratio is the peer's time over ours; w: operands may come from the cache; ±%: the "
          "middle half of the samples, over the median.")
    cases = [Case(name, kernels) for name, kernels in by_name.items()]
    for op in dict.fromkeys(case.op for case in cases):
        print_op(op, [case for case in cases if case.op == op])
    print_notes(cases)
    if options.evidence:
        table = None
        if options.cases:
            with open(options.cases) as file:
                table = [case for case in json.load(file) if case["case"] in by_name]
        keep_evidence(options.evidence, contexts, by_name, options.files, table)


if __name__ == "__main__":
    main()
