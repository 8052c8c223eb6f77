"""How long the page's server takes to answer, and the memory that it takes.

    python benchmarks/page.py [--each 60] [--interactions 1000] [--json FILE] [--only MODEL]

For models of 10M and 14M parameters (with 4,096 tokens in the vocabulary) with 256 tokens, the larger with 1,024, and
GPT-2's 124M with 256 and 1,024 (random weights: times do not depend on them):

    seconds from the address to the answer of the first view, in a new process
    of `--each` interactions of each sort (another position; layer and head; target; text) the median and the 95th
        percentile of milliseconds, by the clock and of the processor, until all views that it changes are answered:
        of the view in the middle of a screen, of the screen, and of the whole page; of a view that comes in parts also
        until the first part
    how much the process has grown beyond the model after `--interactions` random ones, and its peak

A screen is a view and its neighbours above and below, as the page asks for those near the window, the view in the
middle first; which, is drawn anew each time. The percentiles are also told without the desks which write texts. Each
model has a process of its own, asked over HTTP as the browser asks, one request after the other; drawing is not
counted. Prints one JSON object.
"""

import argparse
import http.client
import json
import math
import random
import statistics
import string
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

import clearformer as cf
from clearformer.page import look
from clearformer.page.views import views_of
from clearformer.text import CharTokenizerSpec

MODELS: dict[str, dict[str, Any]] = {
    "10M, 256 tokens": {"preset": "quick", "d_model": 384, "n_layers": 4, "max_seq_len": 1024, "tokens": 256},
    "14M, 256 tokens": {"preset": "quick", "d_model": 384, "n_layers": 6, "max_seq_len": 1024, "tokens": 256},
    "14M, 1024 tokens": {
        "preset": "quick",
        "d_model": 384,
        "n_layers": 6,
        "max_seq_len": 1024,
        "tokens": 1024,
    },
    "124M, 256 tokens": {"preset": "gpt2", "tokens": 256},
    "124M, 1024 tokens": {"preset": "gpt2", "tokens": 1024},
}
LETTERS = string.ascii_lowercase
PAGE = (
    ("overview",),
    ("tokens",),
    ("block",),
    ("attention", "pattern"),
    ("ledger",),
    ("lens",),
    ("sampling",),
    ("continuations",),
    ("beams",),
    ("interventions",),
)
"""The page's views from top to bottom, with what each asks for beside itself."""
WRITING = {"continuations", "beams", "interventions"}
SORTS = ("position", "layer and head", "target", "text")
FIELDS = {"layer and head": ("layer", "head")}  # of others: the sort's own name
Times = tuple[float, float]
"""Milliseconds by the clock, and of the processor."""
FEWER = 12  # times fewer interactions of models that take long


def run_of(settings: dict[str, Any]) -> tuple[Any, int]:
    """A run with random weights, and how many tokens it reads; its tokens are characters."""
    settings = dict(settings)
    torch.manual_seed(1)
    preset, n = str(settings.pop("preset")), settings.pop("tokens")
    size = 50257 if preset == "gpt2" else 4096
    letters = LETTERS + "".join(chr(0x20000 + i) for i in range(size - len(LETTERS)))
    tokenizer = CharTokenizerSpec().train([letters], specials=())
    config = cf.preset(preset).model.model_dump() | settings | {"vocab_size": tokenizer.vocab_size}
    return cf.Run(cf.build(cf.ModelConfig.model_validate(config)), tokenizer), n


def memory_bytes() -> int:
    """The process's own memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def forget_peak() -> None:
    """Let the peak of the process's memory begin anew; building the model is not part of it."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that the process has had since then."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


class Browser:
    """Requests as the page makes them."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host = parts.netloc
        self.connection = http.client.HTTPConnection(self.host, timeout=300)
        self.connection.request("GET", f"/?{parts.query}")
        answer = self.connection.getresponse()
        answer.read()
        self.cookie = (answer.getheader("set-cookie") or "").partition(";")[0]

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """The whole of an answer."""
        return self.answer(method, path, body).read()

    def first_of(self, method: str, path: str, body: Any = None) -> Callable[[], bytes]:
        """Wait for the first part of an answer that comes in them; the others are read by what is returned."""
        answer = self.answer(method, path, body)
        (length,) = struct.unpack("<I", answer.read(4))
        answer.read(length)
        return answer.read

    def answer(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        headers = {"Cookie": self.cookie, "Origin": f"http://{self.host}", "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.read()[:200].decode()}")
        return answer


class Visitor:
    """Somebody who looks around, and waits for all views near the window."""

    def __init__(self, run: cf.Run, n_tokens: int, browser: Browser) -> None:
        self.run, self.n_tokens, self.browser = run, n_tokens, browser
        self.views = views_of(run)
        self.draws = random.Random(1)
        self.chosen = json.loads(browser.ask("GET", "/api/runs"))["first"]

    def ask(self, view: str) -> float:
        """Ask for a view; the moment at which its first part was there, of one that comes in parts."""
        if not self.views[view].is_in_parts:
            self.browser.ask("POST", f"/api/view/{view}", self.chosen)
            return time.perf_counter()
        read_others = self.browser.first_of("POST", f"/api/view/{view}", self.chosen)
        at = time.perf_counter()
        read_others()
        return at

    def change(self, sort: str) -> None:
        """Select something else."""
        config = self.run.model.config
        heads, _ = config.attention.heads(config.d_model)
        match sort:
            case "position":
                self.chosen["position"] = self.draws.randrange(self.n_tokens)
            case "target":
                self.chosen["target"] = self.draws.choice(LETTERS)
            case "text":
                self.chosen["text"] = "".join(self.draws.choices(LETTERS, k=self.n_tokens))
            case _:
                self.chosen["layer"] = self.draws.randrange(config.n_layers)
                self.chosen["head"] = self.draws.randrange(heads)

    def changed(self, sort: str, near: Sequence[str]) -> list[str]:
        """Those of some views that a sort of interaction changes."""
        fields = set(FIELDS.get(sort, (sort,)))
        return [view for view in near if fields & set(self.views[view].uses)]

    def screen(self, sort: str) -> tuple[list[str], list[str]]:
        """What stands in the middle of a screen and is changed, and what is near it and is changed; not neither."""
        while True:
            at = self.draws.randrange(len(PAGE))
            near = [name for place in (*PAGE[max(0, at - 1) : at], *PAGE[at + 1 : at + 2]) for name in place]
            middle, near = self.changed(sort, PAGE[at]), self.changed(sort, near)
            if middle or near:
                return middle, near

    def interact(self, sort: str, *groups: Sequence[str]) -> list[Times]:
        """Select something else, and ask for some views; the time until those of each group are answered.

        The last of these times is that until the first view had its first part.
        """
        self.change(sort)
        start, cpu = time.perf_counter(), time.process_time()
        times: list[Times] = []
        firsts: list[float] = []
        for group in groups:
            firsts += map(self.ask, group)
            times.append((1000 * (time.perf_counter() - start), 1000 * (time.process_time() - cpu)))
        return [*times, (1000 * (firsts[0] - start), math.nan)]


def of_sort(visitor: Visitor, sort: str, each: int) -> dict[str, Any]:
    """The figures of one sort of interaction."""
    views: list[Times] = []
    views_that_write: list[Times] = []
    first_parts: list[Times] = []
    screens: list[Times] = []
    screens_without: list[Times] = []
    for _ in range(each):
        middle, near = visitor.screen(sort)
        of_view, of_screen, first = visitor.interact(sort, middle, near)
        if middle:
            (views_that_write if WRITING & set(middle) else views).append(of_view)
            if WRITING & set(middle):
                first_parts.append(first)
        screens.append(of_screen)
        if not WRITING & {*middle, *near}:
            screens_without.append(of_screen)
    everything = visitor.changed(sort, [name for place in PAGE for name in place])
    return {
        "view": percentiles(views),
        "view that writes": percentiles(views_that_write),
        "first part of a view that writes": clock_alone(percentiles(first_parts)),
        "screen": percentiles(screens),
        "screen without writing": percentiles(screens_without),
        "all views": percentiles([visitor.interact(sort, everything)[0] for _ in range(each)]),
    }


def clock_alone(found: dict[str, float]) -> dict[str, float]:
    """Percentiles without those of the processor, which goes on with the other parts."""
    return {name: value for name, value in found.items() if "cpu" not in name}


def percentiles(times: Sequence[Times]) -> dict[str, float]:
    """The median and the 95th percentile of milliseconds by the clock, and of the processor's."""
    if len(times) < 2:
        return {"interactions": len(times)}
    clock, cpu = zip(*times, strict=True)
    return {
        "interactions": len(times),
        "median_milliseconds": round(statistics.median(clock), 1),
        "p95_milliseconds": round(statistics.quantiles(clock, n=20, method="inclusive")[-1], 1),
        "median_cpu_milliseconds": round(statistics.median(cpu), 1),
        "p95_cpu_milliseconds": round(statistics.quantiles(cpu, n=20, method="inclusive")[-1], 1),
    }


def measured(name: str, each: int, interactions: int) -> dict[str, Any]:
    """The figures of one of MODELS."""
    run, n = run_of(MODELS[name])
    before = memory_bytes()
    forget_peak()
    start = time.perf_counter()
    looking = look(run, text="".join(LETTERS[i % len(LETTERS)] for i in range(n)), browser=False)
    visitor = Visitor(run, n, Browser(looking.address))
    visitor.ask("tokens")
    first = time.perf_counter() - start
    for view in (name for place in PAGE for name in place):
        visitor.ask(view)
    by_sort = {sort: of_sort(visitor, sort, each) for sort in SORTS}
    for _ in range(interactions):
        sort = visitor.draws.choice(SORTS)
        visitor.interact(sort, *visitor.screen(sort))
    grown, peak = memory_bytes() - before, peak_bytes() - before
    looking.close()
    return {
        "parameters": sum(each.numel() for each in run.model.parameters()),
        "first_view_seconds": round(first, 3),
        "by_sort": by_sort,
        "random_interactions": interactions,
        "grown_megabytes": round(grown / 2**20, 1),
        "grown_at_peak_megabytes": round(peak / 2**20, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--each", type=int, default=60, help="interactions of each sort")
    parser.add_argument("--interactions", type=int, default=1000, help="random ones, for the memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=MODELS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measured(given.only, given.each, given.interactions)))
        return
    found: dict[str, Any] = {}
    for number, name in enumerate(MODELS):
        fewer = FEWER if number else 1
        counts = [
            "--each",
            str(max(2, given.each // fewer)),
            "--interactions",
            str(given.interactions // fewer),
        ]
        command = [sys.executable, __file__, "--only", name, *counts]
        found[name] = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
    found |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
