"""Transformers you can see through: one readable model to learn, teach, compare and train.

import clearformer as cf

run = cf.train("quick", data={"path": "my.txt"}, train={"max_seconds": 60})
run = cf.load("NAME")                             # run.model, run.tokenizer, run.config
cf.replay("NAME", 700)                            # the same run after 700 steps
model = cf.build(cf.ModelConfig(vocab_size=65))   # an nn.Module: model(tokens) -> logits [B T V]
logits, cache = model.run_with_cache(tokens)      # cache["blocks.0.attn.hook_pattern"]
samples = cf.generate(run, "KING RICHARD II:\n", max_new_tokens=200, temperature=0.8, seed=1)
[[best]] = cf.translate(run, ["le 3 mai"])         # with a run that translates
[found] = cf.classify(run, ["Österreich"])        # with a run that classifies: found.label, found.probability
[found] = cf.score(run, ["To be or not to be"])   # log p of a text: found.logprob, found.perplexity, found.logprobs
vectors = cf.lens.embed(run, "the bank").vectors  # hidden vectors by layer, with any run
cf.lens.ledger(run, "To be or not").figure("ledger.png")  # why this token: what each part wrote for it
cf.lens.show(run, "To be or not", "attention")    # one view of the page, in a notebook
cf.look(run)                                      # the whole page in a browser
cf.export_page(run, "page.html")                  # the page as one file that needs no server
cf.compare("rope", "alibi")                       # settings that differ, losses, paired differences
cf.run_study("depth", scale=0.05)                 # an experiment of the lectures, or a cf.Study of your own
run = cf.from_hf("gpt2-folder")                   # and cf.to_hf(run, "folder")
run = cf.Run(model, tokenizer)                    # a model from your own training loop; run.save("NAME") keeps it
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from clearformer.late import say_where as _say_where
from clearformer.resources import free_cores as _free_cores

__version__ = "0.1.0"

_free_cores()  # counts the free cores from here on, while torch is imported

__all__ = [
    "ClearformerError",
    "ModelConfig",
    "Run",
    "RunConfig",
    "Study",
    "build",
    "classify",
    "compare",
    "errors",
    "evaluate",
    "export_page",
    "from_hf",
    "generate",
    "lens",
    "load",
    "look",
    "plan",
    "preset",
    "register",
    "replay",
    "run_study",
    "score",
    "search",
    "stream",
    "sweep",
    "to_hf",
    "tokenize",
    "train",
    "translate",
]

# The module of each public name that is not in `api`. All names are imported at first use, so that
# `import clearformer` costs next to nothing.
_ELSEWHERE = {
    "ClearformerError": "clearformer.errors",
    "Study": "clearformer.study.study",
    "compare": "clearformer.study.everyday.comparison",
    "export_page": "clearformer.page",
    "look": "clearformer.page",
    "register": "clearformer.registry",
    "run_study": "clearformer.study.workers.launch",
    "sweep": "clearformer.study.everyday.sweep",
}
_PACKAGES = ("errors", "lens")
_say_where("lens.show", lambda: _import_module("clearformer.page").show)
_say_where("register.study", lambda: _import_module("clearformer.study.lectures").register_study)

if TYPE_CHECKING:
    from clearformer import errors, lens
    from clearformer.api import (
        ModelConfig,
        Run,
        RunConfig,
        build,
        classify,
        evaluate,
        from_hf,
        generate,
        load,
        plan,
        preset,
        replay,
        score,
        search,
        stream,
        to_hf,
        tokenize,
        train,
        translate,
    )
    from clearformer.errors import ClearformerError
    from clearformer.page import export_page, look
    from clearformer.registry import register
    from clearformer.study.everyday.comparison import compare
    from clearformer.study.everyday.sweep import sweep
    from clearformer.study.study import Study
    from clearformer.study.workers.launch import run_study


if not TYPE_CHECKING:  # else a type checker would take any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'clearformer' has no attribute {name!r}")
        if name in _PACKAGES:
            return _import_module(f"clearformer.{name}")
        value = getattr(_import_module(_ELSEWHERE.get(name, "clearformer.api")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
