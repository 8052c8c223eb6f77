"""Texts by a compiled step are those of the plain one.

In a process of its own: torch's compiler traces no function whose shapes are checked as the tests check them.
"""

from ..forks import ForkServer

SCRIPT = """
import copy
import functools
import inspect
import torch
import torch._dynamo.utils
import torch._inductor.config
from clearformer.decoding.fast import compiling
from clearformer.decoding import Sampling, collect, generate_tokens, random_stream
from clearformer.decoding.fast.int8 import with_int8_weights
from clearformer.model.fast import packed
from clearformer.model import Decoder, EncoderDecoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import RoPE

torch._inductor.config.compile_threads = 1  # no processes beside this one, each of which would import torch
torch._inductor.config.cpp_cache_precompile_headers = False  # they pay from many graphs on
torch._inductor.config.cpp.simdlen = 0  # four compilations find out what this processor has
DECODER = ModelConfig(
    vocab_size=13,
    d_model=12,
    n_layers=1,
    max_seq_len=16,
    attention=MultiHead(n_heads=2, qk_norm=RMSNorm()),
    position=RoPE(),
    norm=RMSNorm(),
    init=Gaussian(),
    logit_soft_cap=30.0,
)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
SOURCES = [[3, 1], [2, 2, 2, 2], [7]]

def written(model, prompts, n=20, **options):
    streams = [random_stream(1, row) for row in range(len(prompts))]
    new_tokens = generate_tokens(model, prompts, n, Sampling(temperature=3.0), streams, **options)
    return [completion.tokens for completion in collect(new_tokens, len(prompts))]

torch.manual_seed(0)
first, second = (build(DECODER).double() for _ in range(2))
eos_id = written(first, PROMPTS)[1][3]
both = build(DECODER.replace(family="encoder-decoder", max_seq_len=32)).double()
packed.LEAST_WEIGHTS = 1
products, product = [], packed._product
packed._product = lambda *arguments: products.append(1) or product(*arguments)
cases = {
    "one text": (first, PROMPTS[:1], {"n": 6}),
    "another model of that configuration": (second, PROMPTS[:1], {"n": 6}),
    "one text, longer than the positions": (first, PROMPTS[:1], {}),
    "three texts, of which some end early": (first, PROMPTS, {"eos_id": eos_id}),
    "an encoder-decoder": (both, PROMPTS, {"sources": SOURCES}),
    "int8 weights": (with_int8_weights(first), PROMPTS[:1], {}),
    "weights that are laid out": (copy.deepcopy(first).float(), PROMPTS, {}),
}
texts = []
for name, (model, prompts, options) in cases.items():
    texts.append(written(model, prompts, **options))
    print(name, "same" if written(model, prompts, compiled=True, **options) == texts[-1] else "DIFFERENT")
    if name.startswith("another"):  # C++ takes its time: of the rest only the tracing and the guards
        print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0)
        whole = torch.compile
        torch.compile = functools.wraps(whole)(  # with its arguments, which differ between versions
            lambda step, options, **settings: whole(
                step, backend="eager", options={k: v for k, v in options.items() if k == "guard_filter_fn"}, **settings
            )
        )
        compiling._compiled.cache_clear()
isolates = "isolate_recompiles" in inspect.signature(whole).parameters  # others compile no more models than eight
print("laid out", sum(products) > 20 or not isolates)
print("both models", "same" if texts[0] == texts[1] else "differ")
"""


def test_the_compiled_step_writes_what_the_plain_one_does(forks: ForkServer) -> None:
    done = forks.run(script=SCRIPT)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "one text same",
        "another model of that configuration same",
        "graphs True",
        "one text, longer than the positions same",
        "three texts, of which some end early same",
        "an encoder-decoder same",
        "int8 weights same",
        "weights that are laid out same",
        "laid out True",
        "both models differ",
    ]
    assert "compiling failed" not in done.stderr
