"""How long the page's server takes to answer, and the memory that it takes.

    python benchmarks/page.py [--interactions 1000] [--json FILE]

For a model of 12M parameters with 256 tokens, the same with 1,024, and GPT-2's 124M with 256 (random weights: times do
not depend on them): seconds from the address to the answer of the first view; of random interactions (another position
or temperature, and with it every view that uses it) the median and the 95th percentile of milliseconds; and how much
the process has grown beyond the model after them. Each in a process of its own, asked over HTTP as the browser asks;
drawing is not counted. Prints one JSON object.
"""

import argparse
import http.client
import json
import random
import statistics
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

import clearformer as cf
from clearformer.page import look
from clearformer.page.views import views_of
from clearformer.text import CharTokenizerSpec

MODELS: dict[str, dict[str, Any]] = {
    "12M, 256 tokens": {"preset": "quick", "d_model": 384, "n_layers": 6, "max_seq_len": 1024, "tokens": 256},
    "12M, 1024 tokens": {
        "preset": "quick",
        "d_model": 384,
        "n_layers": 6,
        "max_seq_len": 1024,
        "tokens": 1024,
    },
    "124M, 256 tokens": {"preset": "gpt2", "tokens": 256},
}
LETTERS = string.ascii_lowercase
FIELDS = ("position", "temperature")


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
        headers = {"Cookie": self.cookie, "Origin": f"http://{self.host}", "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {content[:200].decode()}")
        return content


def measured(name: str, interactions: int) -> dict[str, float]:
    """The figures of one of MODELS."""
    run, n = run_of(MODELS[name])
    before = memory_bytes()
    start = time.perf_counter()
    looking = look(run, text="".join(LETTERS[i % len(LETTERS)] for i in range(n)), browser=False)
    browser = Browser(looking.address)
    chosen = json.loads(browser.ask("GET", "/api/runs"))["first"]
    browser.ask("POST", "/api/view/tokens", chosen)
    first = time.perf_counter() - start
    draws, seconds = random.Random(1), []
    offered = views_of(run)
    for _ in range(interactions):
        field = draws.choice(FIELDS)
        chosen[field] = draws.randrange(n) if field == "position" else draws.choice((0.5, 0.8, 1.0, 1.5))
        start = time.perf_counter()
        for view in (name for name, each in offered.items() if field in each.uses):
            browser.ask("POST", f"/api/view/{view}", chosen)
        seconds.append(1000 * (time.perf_counter() - start))
    grown = memory_bytes() - before
    looking.close()
    return {
        "parameters": sum(each.numel() for each in run.model.parameters()),
        "first_view_seconds": round(first, 3),
        "interactions": interactions,
        "median_milliseconds": round(statistics.median(seconds), 1),
        "p95_milliseconds": round(statistics.quantiles(seconds, n=20)[-1], 1),
        "grown_megabytes": round(grown / 2**20, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--interactions", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=MODELS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measured(given.only, given.interactions)))
        return
    found: dict[str, Any] = {}
    for name in MODELS:
        n = given.interactions if name == next(iter(MODELS)) else min(given.interactions, 100)
        command = [sys.executable, __file__, "--only", name, "--interactions", str(n)]
        found[name] = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
    found |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
