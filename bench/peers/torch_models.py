"""Whole models in PyTorch, as targets: latency of one run, eager and as a CUDA graph.

Weights and inputs stay where they are from run to run, as in serving, so that small models find
them in the L2. `us` is host time from the launch until the host has woken up; `gpu_us` is device
time of one replay whose launch was hidden.
"""

import itertools
import time

import torch
import torch.nn.functional as F

import timing

BLOCKS = [  # batch, sequence, width, heads, inner width
    (1, 128, 512, 8, 2048),
    (1, 512, 1024, 16, 4096),
    (1, 2048, 4096, 32, 16384),
    (8, 1024, 2048, 16, 8192),
]
MLPS = [  # widths, batch
    ((784, 512, 256, 10), 1),
    ((784, 512, 256, 10), 64),
    ((4096, 4096, 4096, 1000), 1),
]
DTYPE = torch.bfloat16
RUNS = 201
SLEEP_CYCLES = 200_000  # about 0.1 ms: longer than the host takes to launch a graph


def parameters(widths):
    """A weight [out, in] and a bias for each pair; weights small enough to keep values in range."""
    return [(torch.randn(n, k, device="cuda", dtype=DTYPE) / k**0.5,
             torch.randn(n, device="cuda", dtype=DTYPE)) for k, n in widths]


def block(batch, sequence, width, heads, inner):
    """QKV product, causal attention, output product, product + ReLU, product."""
    qkv, out, up, down = parameters(
        [(width, 3 * width), (width, width), (width, inner), (inner, width)])
    x = torch.randn(batch, sequence, width, device="cuda", dtype=DTYPE)

    def run():
        projected = F.linear(x, *qkv).view(batch, sequence, 3, heads, width // heads)
        q, k, v = projected.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = F.linear(y.transpose(1, 2).reshape(batch, sequence, width), *out)
        return F.linear(torch.relu(F.linear(y, *up)), *down)

    return run


def mlp(widths, batch):
    """Products + ReLU, the last one + softmax."""
    *hidden, last = parameters(list(itertools.pairwise(widths)))
    x = torch.randn(batch, widths[0], device="cuda", dtype=DTYPE)

    def run():
        y = x
        for layer in hidden:
            y = torch.relu(F.linear(y, *layer))
        return torch.softmax(F.linear(y, *last), -1)

    return run


def host_us(run):
    samples = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        samples.append(1e6 * (time.perf_counter() - start))
    return timing.summarize(samples[RUNS // 4:])  # the first quarter warms up


def gpu_us(graph):
    samples = []
    for _ in range(timing.SAMPLES):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(1e3 * begin.elapsed_time(end))
    return timing.summarize(samples)["us"]


def measure(model, arm, run):
    row = {"name": f"{model}/{arm}", "run_type": "iteration", "baseline": 1, "time_unit": "us",
           "dtype": "bf16", "warm": 1}
    try:
        timing.warm_up(run)
        if arm != "torch_eager":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = run()
            row.update(host_us(graph.replay), gpu_us=gpu_us(graph))
            del result
        else:
            row.update(host_us(run))
        row["real_time"] = row["us"]
    except Exception as e:
        row.update(error_occurred=True, error_message=str(e).strip().split("\n")[0])
    return row


def measure_all(wanted, compiles):
    models = {"block_{}x{}x{}_h{}_i{}".format(*b): (block, b) for b in BLOCKS}
    models |= {"mlp_{}_b{}".format("-".join(map(str, w)), b): (mlp, (w, b)) for w, b in MLPS}
    for name, (make, sizes) in models.items():
        model = f"model/{name}/bf16"
        arms = ["torch_eager", "torch_graph"] + ["torch_compiled"] * compiles(model)
        arms = [arm for arm in arms if wanted(f"{model}/{arm}")]
        run = make(*sizes) if arms else None
        for arm in arms:
            if arm == "torch_compiled":
                torch._dynamo.reset()
                run = torch.compile(run, mode="max-autotune-no-cudagraphs", dynamic=False)
            yield measure(model, arm, run)
        torch.cuda.empty_cache()
