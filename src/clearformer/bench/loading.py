"""Time to load a model from disk, and from a command in a new process to its first new token."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clearformer.bench.peers import absence, asked_for, in_transformers, quietly, with_version
from clearformer.bench.rounds import OURS, Comparison, Contender, interleave, with_as_many_threads
from clearformer.errors import UserError
from clearformer.model import Decoder
from clearformer.parts import imported_files
from clearformer.run import Run, load

PEERS = ("transformers",)
THEIR_FIRST_TOKEN = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
with torch.inference_mode():
    model.generate(input_ids=torch.tensor([[0]]), max_new_tokens=1, do_sample=False, pad_token_id=0)
"""


def bench_loading(
    run: Run, against: list[str], rounds: int, on_figure: Callable[[str, float], None] = lambda *_: None
) -> list[Comparison]:
    """Compare the milliseconds to load a decoder's run, and the seconds from a command to its first new token.

    Raises:
        UserError: the run is not a decoder, or a peer is unknown.
    """
    if not isinstance(run.model, Decoder):
        raise UserError(f"bench load compares decoders, and {run.folder.path.name} is not one")
    asked = asked_for(against, PEERS)
    absent = [found for name in asked if (found := absence(name))]
    ours = run.folder.path
    command = [sys.executable, "-m", "clearformer", "generate", str(ours), "--device", "cpu"]
    command += ["--max-new-tokens", "1", "--temperature", "0"]
    command += [word for file in imported_files() for word in ("--import", str(file))]
    opening = [Contender(OURS, lambda: 1000 * seconds_of(lambda: load(ours, device="cpu")))]
    first = [Contender(OURS, lambda: seconds_of(lambda: in_new_process(command)))]
    n_parameters = sum(p.numel() for p in run.model.parameters())
    facts = {"n_parameters": n_parameters}
    with tempfile.TemporaryDirectory() as scratch:
        if asked and not absent:
            name, folder = with_version("transformers"), Path(scratch) / "theirs"
            theirs, note = in_transformers(run.model)
            with quietly():
                theirs.save_pretrained(folder)  # type: ignore[operator]
            code = [sys.executable, "-c", THEIR_FIRST_TOKEN, str(folder)]
            opening.append(Contender(name, lambda: 1000 * seconds_of(lambda: open_theirs(folder)), note))
            first.append(Contender(name, lambda: seconds_of(lambda: in_new_process(code)), note))
        return [
            Comparison("opening a model", "ms", False, interleave(opening, rounds, on_figure), absent, facts),
            Comparison(
                "from the command to the first token",
                "s",
                False,
                interleave(first, rounds, on_figure),
                absent,
                facts,
            ),
        ]


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def open_theirs(folder: Path) -> object:
    from transformers import AutoModelForCausalLM

    with quietly():
        return AutoModelForCausalLM.from_pretrained(folder)


def in_new_process(command: list[str]) -> None:
    """Run a command to its end.

    Raises:
        UserError: it failed; the message has the last line of its output.
    """
    done = subprocess.run(command, env=with_as_many_threads(), capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"{' '.join(command[:4])} ... failed: {(done.stderr.strip() or '?').splitlines()[-1]}"
        )
