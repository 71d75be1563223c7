"""How a PyTorch call is timed: the method of engine/runtime/kernel_timer.h."""

import collections
import math
import statistics

import torch

MOST_COPIES = 256
MOST_LAUNCHES = 4096
REPLAY_US = 1000  # many clock ticks, and a launch's start is lost in it
SETTLE_US = 100e3  # of all arms' replays together
SAMPLES = 21


def l2_bytes():
    return torch.cuda.get_device_properties(0).L2_cache_size


def copies_of(case_bytes):
    """How many copies of a case's tensors let twice the L2 pass between two visits to one of them,
    and whether memory or a sensible number ended it earlier."""
    wanted = 2 * l2_bytes() // case_bytes + 1
    affordable = max(1, torch.cuda.mem_get_info()[0] // 2 // case_bytes)
    copies = int(min(wanted, affordable, MOST_COPIES))
    return copies, copies < wanted


def summarize(samples):
    """Median, least and spread (the middle half's width over the median, in per cent)."""
    ordered = sorted(samples)
    quantile = lambda p: ordered[max(0, math.ceil(p * len(ordered)) - 1)]
    median = statistics.median(ordered)
    return {
        "us": median,
        "min_us": ordered[0],
        "spread_pct": 100 * (quantile(0.75) - quantile(0.25)) / median,
        "samples": len(ordered),
    }


def event_us(launch):
    """Device time of what `launch` puts on the current stream."""
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    begin.record()
    launch()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def warm_up(call, times=3):
    """Outside any capture and on a stream of its own, as torch.cuda.graph wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            result = call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return result


class Recording:
    """A CUDA graph of as many launches as take about a millisecond, over the copies in turn."""

    def __init__(self, call, copies):
        self._call = call
        self._copies = copies
        self._record(len(copies))
        self.us()  # the first replay warms up
        us = max(0.1, self.us())
        self._record(int(min(max(REPLAY_US / us, 1), MOST_LAUNCHES)))

    def _record(self, launches):
        self.graph = None  # gives its memory back first
        self.launches = launches
        self.graph = torch.cuda.CUDAGraph()
        # Outputs that are still held get no memory of each other: they rotate as the inputs do.
        held = collections.deque(maxlen=len(self._copies))
        with torch.cuda.graph(self.graph):
            for i in range(launches):
                held.append(self._call(*self._copies[i % len(self._copies)]))

    def us(self):
        """Device time of one launch: the mean over one replay."""
        return event_us(self.graph.replay) / self.launches


def time_in_turns(recordings):
    """One summary for each; the replays take turns (A B A B)."""
    spent = 0
    while spent < SETTLE_US:
        for recording in recordings:
            spent += max(1, recording.us() * recording.launches)
    samples = [[] for _ in recordings]
    for _ in range(SAMPLES):
        for i, recording in enumerate(recordings):
            samples[i].append(recording.us())
    return [summarize(s) for s in samples]
