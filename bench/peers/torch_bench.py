#!/usr/bin/env python3
"""The cases of ops_bench in PyTorch, timed by the same method, as JSON of the same fields.

    ops_bench --device=cuda --list-cases=json | torch_bench.py --cases - --out torch.json

The arms of a case take turns. Needs PyTorch with CUDA, and nothing else.
"""

import argparse
import datetime
import json
import re
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import timing
import torch_models

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
AGREEMENT = 0.02  # of the largest magnitude: arms that differ by more compute different things


def linear_arms(case):
    nk = case["attrs"]["weight_layout"] == "NK"
    relu = case["attrs"].get("activation") == "RELU"
    assert relu and len(case["inputs"]) == 3, case["case"]

    tf32 = case["attrs"].get("allow_tf32", False)

    def eager(x, w, b):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return torch.relu_(F.linear(x, w, b) if nk else torch.addmm(b, x, w))

    def fused(x, w, b):  # cuBLASLt's epilogue, as far as PyTorch can use it
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return torch._addmm_activation(b, x, w.t() if nk else w, use_gelu=False)

    return {"torch_eager": eager, "torch_fused": fused}


def attention_arms(case):
    q, k = case["inputs"][0]["shape"], case["inputs"][1]["shape"]
    causal = case["attrs"].get("causal", False)
    # One query with the causal offset at the bottom right sees every key; PyTorch's is at the top.
    assert not causal or q[2] in (1, k[2]), case["case"]

    def with_backend(backend):
        def attention(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    q, k, v, is_causal=causal and q.shape[2] > 1,
                    enable_gqa=q.shape[1] != k.shape[1])
        return attention

    return {"torch_cudnn": with_backend(SDPBackend.CUDNN_ATTENTION),
            "torch_flash": with_backend(SDPBackend.FLASH_ATTENTION)}


def moving_call(case):
    attrs = case["attrs"]
    return {
        "add": lambda a, b: a + b,
        "transpose": lambda x: x.permute(attrs["permutation"]).contiguous(),
        "reshape": lambda x: x.reshape(attrs["dims"]),
        "slice": lambda x: x.narrow(
            attrs["axis"], attrs["start"], attrs["end"] - attrs["start"]).contiguous(),
        "broadcast": lambda x: x.expand(attrs["dims"]).contiguous(),
    }[case["op"]]


def arms_of(case):
    """Name -> call of the case's inputs."""
    op = case["op"]
    if op == "linear":
        return linear_arms(case)
    if op == "attention":
        return attention_arms(case)
    if op == "softmax":
        return {"torch_eager": lambda x: torch.softmax(x, -1)}
    if op == "softmax_grad":
        return {"torch_eager": lambda y, g: torch.ops.aten._softmax_backward_data(
            g, y, -1, y.dtype)}
    return {"torch_eager": moving_call(case)}


def normal(desc, dtype):
    """Normal, with one element in 64 ten times as large, as ops_bench has it."""
    shape, strides = desc["shape"], desc["strides"]
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    x = torch.randn(span, device="cuda", dtype=torch.float32)
    x *= 1 + 9 * (torch.rand(span, device="cuda") < 1 / 64)
    return x.to(dtype).as_strided(shape, strides)


def clone(x):
    """With the same strides, gaps and all."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def disagreement(a, b):
    """Largest difference over the largest magnitude; by parts, to spare memory."""
    most = difference = 0.0
    for part_a, part_b in zip(a.flatten().split(1 << 26), b.flatten().split(1 << 26)):
        part_a, part_b = part_a.float(), part_b.float()
        difference = max(difference, (part_a - part_b).abs().max().item())
        most = max(most, part_a.abs().max().item())
    return difference / most if most > 0 else difference


def measure(case, arms):
    """A row for each arm of the case."""
    dtype = DTYPES[case["dtype"]]
    inputs = [normal(desc, dtype) for desc in case["inputs"]]
    copies, warm = timing.copies_of(case["bytes"])
    copies = [inputs] + [[clone(x) for x in inputs] for _ in range(copies - 1)]
    rows, recordings, first = {}, {}, None
    for name, call in arms.items():
        rows[name] = {"name": f"{case['case']}/{name}", "run_type": "iteration", "baseline": 1,
                      "dtype": case["dtype"], "inputs": case["inputs"]}
        try:
            result = timing.warm_up(lambda: call(*inputs))
            if first is None:
                first = result
            elif (error := disagreement(first, result)) > AGREEMENT or error != error:
                raise RuntimeError(f"differs from the first arm by {error:.3g} of its maximum")
            recordings[name] = timing.Recording(call, copies)
        except Exception as e:  # a backend that does not take the case, or no memory
            rows[name].update(error_occurred=True, error_message=str(e).strip().split("\n")[0])
    first = result = None
    if recordings:
        times = timing.time_in_turns(list(recordings.values()))
        for (name, recording), time in zip(recordings.items(), times):
            rows[name].update(time)
            rows[name].update(
                real_time=time["us"], time_unit="us", launches=recording.launches,
                gbps=case["bytes"] / time["us"] * 1e-3, tflops=case["flops"] / time["us"] * 1e-6)
            if warm:
                rows[name]["warm"] = 1
    return list(rows.values())


def matcher(pattern):
    """As --benchmark_filter: a regular expression; "-" in front: all others."""
    negative = pattern.startswith("-")
    wanted = re.compile(pattern[1:] if negative else pattern)
    return lambda name: bool(wanted.search(name)) != negative


def context():
    properties = torch.cuda.get_device_properties(0)
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
        "device": f"cuda:0, {properties.name}",
    }


def show(row):
    figures = row.get("error_message") or (
        f"{row['us']:.2f} us, spread {row['spread_pct']:.1f} %")
    print(f"{row['name']:<60} {figures}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", help="what ops_bench --list-cases=json prints; - for stdin")
    parser.add_argument("--filter", default=".", help="regular expression on CASE/ARM")
    parser.add_argument("--compile", metavar="REGEX",
                        help="cases (and models) to measure through torch.compile as well: slow")
    parser.add_argument("--models", action="store_true", help="whole models as well")
    parser.add_argument("--out", required=True, help="JSON file to write")
    options = parser.parse_args()
    wanted = matcher(options.filter)
    compiles = matcher(options.compile) if options.compile else lambda name: False

    torch.manual_seed(1)
    rows = []
    cases = []
    if options.cases:
        with sys.stdin if options.cases == "-" else open(options.cases) as file:
            cases = json.load(file)
    with torch.inference_mode():
        for case in cases:
            arms = arms_of(case)
            if compiles(case["case"]):
                torch._dynamo.reset()
                call = next(iter(arms.values()))
                arms["torch_compiled"] = torch.compile(
                    call, mode="max-autotune-no-cudagraphs", dynamic=False)
            arms = {name: call for name, call in arms.items() if wanted(f"{case['case']}/{name}")}
            if not arms:
                continue
            for row in measure(case, arms):
                show(row)
                rows.append(row)
            torch.cuda.empty_cache()
        if options.models:
            for row in torch_models.measure_all(wanted, compiles):
                show(row)
                rows.append(row)
    with open(options.out, "w") as file:
        json.dump({"context": context(), "benchmarks": rows}, file, indent=1)


if __name__ == "__main__":
    main()
