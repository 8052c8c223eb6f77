"""A compiled model that nobody looks at is one graph; one that is looked at shows and takes what a plain one does.

In a process of its own: torch's compiler traces no function whose shapes are checked as the tests check them.
"""

from ..forks import ForkServer

SCRIPT = """
import torch
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.positions import RoPE

torch.manual_seed(0)
model = build(ModelConfig(vocab_size=13, d_model=12, n_layers=2, max_seq_len=8, position=RoPE(),
                            attention=MultiHead(n_heads=2))).double()
tokens = torch.randint(13, (2, 7))
whole = torch.compile(model, backend="eager", fullgraph=True)
broken = torch.compile(model, backend="eager")

def same(compiled):
    plain = model(tokens)
    return torch.allclose(compiled(tokens), plain, rtol=0, atol=1e-12)

print("nobody looks", same(whole), same(broken))
unpatched = model(tokens)
for name in ("blocks.*.attn.hook_z", "blocks.1.attn.hook_pattern", "blocks.0.attn.hook_rot_q"):
    for factor in (0.0, 3.0):
        seen = []
        def look(activation, hook):
            seen.append(hook.name)
            return activation * factor
        with model.hooked({name: look}):
            taken = same(broken), not torch.allclose(model(tokens), unpatched)
        print(name, factor, *taken, len(seen))
print("nobody looks any more", same(whole), same(broken))
"""


def test_compiling_takes_the_hook_points_away_and_brings_them_back(forks: ForkServer) -> None:
    done = forks.run(script=SCRIPT)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "nobody looks True True",
        "blocks.*.attn.hook_z 0.0 True True 6",
        "blocks.*.attn.hook_z 3.0 True True 6",
        "blocks.1.attn.hook_pattern 0.0 True True 3",
        "blocks.1.attn.hook_pattern 3.0 True True 3",
        "blocks.0.attn.hook_rot_q 0.0 True True 3",
        "blocks.0.attn.hook_rot_q 3.0 True True 3",
        "nobody looks any more True True",
    ]
