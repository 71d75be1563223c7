#!/usr/bin/env python3
"""config_times.py FILE.json...: from outputs of ops_bench --configs to a table of the times of every kernel and
configuration, one a line: case, kernel, configuration (may be empty) and microseconds, between tabs. Baselines,
refusals and what took more than three times as long as the case's fastest are left out. Where a kernel names its
configurations its own choice, the same as one of them, is left out too. tests/ops/cuda/linear_config_times.tsv is such
a table."""
import collections
import json
import sys

cases = collections.OrderedDict()
for path in sys.argv[1:]:
    with open(path) as file:
        data = json.load(file)
    for run in data["benchmarks"]:
        if run.get("error_occurred") or run.get("baseline"):
            continue
        name = run["name"].split("/iterations")[0]
        # linear/MxNxK/NK/bf16/KERNEL[CONFIGURATION]
        path_part, _, config = name.partition("[")
        case, _, kernel = path_part.rpartition("/")
        cases.setdefault(case, {})[kernel, config.rstrip("]")] = run["us"]

for case, times in cases.items():
    fastest = min(times.values())
    configured = {kernel for kernel, config in times if config}
    for (kernel, config), us in times.items():
        if us <= 3 * fastest and (config or kernel not in configured):
            print(case, kernel, config, f"{us:.2f}", sep="\t")
