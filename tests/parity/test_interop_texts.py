"""Whole folders as transformers saves them, tokenizer included: texts in, the same texts out."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from clearformer import lens
from clearformer.decoding import generate
from clearformer.decoding.text.translations import translate
from clearformer.interop import to_hf
from clearformer.run import Run, from_hf
from clearformer.runs.scores import evaluate

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CORPUS = ["the cat sat on the mat", "a naïve dog sat by the cat", "and then they slept; it was late!"] * 5
TEXTS = ["the dog sat", "a cat, late", "they slept by the mat"]


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


def byte_level_bpe() -> Any:
    """As GPT-2's: no token is put before a text."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )


def byte_fallback_bpe() -> Any:
    """As Llama's first: "▁" for spaces, bytes for what is unknown, <s> before a text."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=70, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    document = json.loads(backend.to_str())
    vocab = document["model"]["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def unigram() -> Any:
    """As T5's: <pad> begins what is written, </s> ends every text."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=70, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def bart_bpe() -> Any:
    """As BART's: <s> before a text and </s> behind it."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>"
    )


def bart(tokenizer: Any) -> Any:
    sizes: dict[str, Any] = {
        "d_model": 12,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "max_position_embeddings": 64,
    }
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes |= {"encoder_ffn_dim": 17, "decoder_ffn_dim": 17, "decoder_start_token_id": 2}
    ids: dict[str, Any] = {
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "forced_eos_token_id": None,
    }
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(vocab_size=len(tokenizer), **sizes, **ids)
    )


def gpt2(tokenizer: Any) -> Any:
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes: dict[str, Any] = {"n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 64}
    n_tokens = len(tokenizer) + 3  # rows that no token has
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=n_tokens, **ids, **sizes))


def llama(tokenizer: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=12,
        intermediate_size=17,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return transformers.LlamaForCausalLM(config)


def t5(tokenizer: Any) -> Any:
    sizes: dict[str, Any] = {"d_model": 12, "d_kv": 5, "d_ff": 17, "num_layers": 2, "num_heads": 2}
    sizes |= {"n_positions": 64, "decoder_start_token_id": 0}
    config = transformers.T5Config(vocab_size=len(tokenizer) + 5, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def marian_pieces() -> Any:
    """As Marian's: pieces of two languages with one numbering."""
    sentencepiece = pytest.importorskip("sentencepiece")
    with TemporaryDirectory() as name:
        folder, pieces = Path(name), set[str]()
        (folder / "corpus.txt").write_text("\n".join(CORPUS), encoding="utf-8")
        for side, size in (("source", 55), ("target", 35)):
            sentencepiece.SentencePieceTrainer.train(
                input=str(folder / "corpus.txt"),
                model_prefix=str(folder / side),
                vocab_size=size,
                hard_vocab_limit=False,
                minloglevel=2,
            )
            side_pieces: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
            pieces |= {side_pieces.id_to_piece(i) for i in range(side_pieces.get_piece_size())}
        plain = sorted(pieces - {"<unk>", "<s>", "</s>"})
        vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", *plain, "<pad>"])}
        (folder / "vocab.json").write_text(json.dumps(vocab))
        return transformers.MarianTokenizer(
            vocab=str(folder / "vocab.json"),
            source_spm=str(folder / "source.model"),
            target_spm=str(folder / "target.model"),
        )


def marian(tokenizer: Any) -> Any:
    config = transformers.MarianConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=64,
        scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    return transformers.MarianMTModel(config)


@torch.no_grad()
def saved(make_tokenizer: Any, make_model: Any, folder: Path, std: float = 0.6) -> tuple[Any, Any]:
    """A folder as transformers writes it; its tokenizer and its model."""
    tokenizer = make_tokenizer()
    torch.manual_seed(3)  # with some weights, the same is written of every text
    model = make_model(tokenizer).eval()
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):  # not sines
        parameter.normal_(0, std) if parameter.dim() > 1 else parameter.add_(
            0.3 * torch.randn_like(parameter)
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer, model


def their_tokens(tokenizer: Any, model: Any, **settings: Any) -> list[list[int]]:
    """What they write of each text, up to its end."""
    found = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        written = model.generate(**inputs, do_sample=False, max_new_tokens=12, **settings)[0].tolist()
        found.append(written[1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :])
    return found


@pytest.mark.parametrize(
    ("make_tokenizer", "make_model"), [(byte_level_bpe, gpt2), (byte_fallback_bpe, llama)]
)
def test_a_decoder_continues_as_theirs(make_tokenizer: Any, make_model: Any, tmp_path: Path) -> None:
    tokenizer, model = saved(make_tokenizer, make_model, tmp_path / "theirs")

    run = from_hf(tmp_path / "theirs")

    found = [sample.tokens for sample in generate(run, TEXTS, max_new_tokens=12, temperature=0.0)]
    assert found == their_tokens(tokenizer, model)
    assert found[0] != found[1]
    assert_same_ids(run, tokenizer)
    exported_again(run, tokenizer, model, tmp_path)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(
    ("make_tokenizer", "make_model"), [(unigram, t5), (bart_bpe, bart), (marian_pieces, marian)]
)
def test_a_given_translation_costs_what_it_costs_theirs(
    make_tokenizer: Any, make_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BART's targets begin with <s>, as its sources do; Marian's are cut by pieces of their own."""
    tokenizer, model = saved(make_tokenizer, make_model, tmp_path / "theirs")
    run = from_hf(tmp_path / "theirs")
    pairs = list(itertools.pairwise(TEXTS))
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    sums = n = 0.0
    for source, target in pairs:
        inputs = tokenizer(source, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            sums += model(**inputs, labels=labels).loss.item() * labels.numel()
        n += labels.numel()
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    assert evaluate(run, tmp_path / "pairs.tsv").loss == pytest.approx(sums / n, rel=1e-4)
    scores = run.score([source for source, _ in pairs], [target for _, target in pairs])
    assert -sum(each.logprob for each in scores) == pytest.approx(sums, rel=1e-4)
    given = lens.read(run, TEXTS[0], output=TEXTS[1]).tokens[0].tolist()
    assert given[1:] == tokenizer(text_target=TEXTS[1])["input_ids"][:-1]


@pytest.mark.parametrize(("make_tokenizer", "make_model"), [(unigram, t5), (bart_bpe, bart)])
@pytest.mark.parametrize("beams", [1, 4])
def test_an_encoder_decoder_translates_as_theirs(
    beams: int, make_tokenizer: Any, make_model: Any, tmp_path: Path
) -> None:
    tokenizer, model = saved(make_tokenizer, make_model, tmp_path / "theirs", std=1.5)

    run = from_hf(tmp_path / "theirs", "tiny")

    found = translate(run, TEXTS, beams=beams, max_new_tokens=12)
    never = [tokenizer.pad_token_id]  # by ours; theirs writes it where weights are random
    expected = their_tokens(tokenizer, model, num_beams=beams, use_cache=False, suppress_tokens=never)
    assert [best.tokens for [best] in found] == expected
    assert [best.text for [best] in found] == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert len({tuple(tokens) for tokens in expected}) > 1
    assert_same_ids(run, tokenizer)
    exported_again(run, tokenizer, model, tmp_path)


def assert_same_ids(run: Run, tokenizer: Any) -> None:
    """Of texts with characters that the vocabulary lacks, too."""
    for text in [*TEXTS, "naïve", "", "two  spaces"]:
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert run.tokenizer.encode(text).tolist() == plain
        if "unk" not in str(tokenizer.convert_ids_to_tokens(plain)):
            assert run.tokenizer.decode(plain) == tokenizer.decode(plain)


def exported_again(run: Run, tokenizer: Any, model: Any, tmp_path: Path) -> None:
    """What transformers makes of our folder is what it made of its own."""
    to_hf(run, tmp_path / "ours")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    loaded = type(model).from_pretrained(tmp_path / "ours").eval()
    for text in TEXTS:
        assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    settings = {"num_beams": 1, "use_cache": not model.config.is_encoder_decoder}
    never = [tokenizer.pad_token_id] if model.config.is_encoder_decoder else None  # as our folder says itself
    expected = their_tokens(tokenizer, model, **settings, suppress_tokens=never)
    assert their_tokens(again, loaded, **settings) == expected
