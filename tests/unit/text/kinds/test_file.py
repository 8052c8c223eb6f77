"""A tokenizer that exists already, as the tokenizer of a run."""

from pathlib import Path

import pytest

import clearformer as cf
from clearformer.config import resolve, sections_of
from clearformer.errors import TokenizerError
from clearformer.resolving import resolve_settings
from clearformer.study import Study, Training
from clearformer.study.trials import trials
from clearformer.text import BPETokenizerSpec, FileTokenizerSpec, load_tokenizer, specials_of
from clearformer.training.planning.run_plan import vocabulary_of

TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
SMALL = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.attention.n_heads": 2,
    "model.max_seq_len": 16,
    "train.max_steps": 2,
    "train.compile": False,
    "train.device": "cpu",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    path = tmp_path / "made" / "tokenizer.json"
    BPETokenizerSpec(vocab_size=270).train([TEXT]).save(path)
    return path


def of_file(path: Path) -> FileTokenizerSpec:
    return FileTokenizerSpec(path=str(path))


def tokens_of(path: Path) -> dict[str, str]:
    return {"tokenizer.kind": "file", "tokenizer.path": str(path)}


def test_it_is_read_from_a_file_or_its_folder(file: Path) -> None:
    whole = load_tokenizer(str(file))
    for path in (file, file.parent):
        read = of_file(path).train(["other text"], specials=specials_of("encoder"))
        assert read.fingerprint() == whole.fingerprint()
        assert vocabulary_of(of_file(path)) == read.vocab_size


def test_runs_of_one_file_have_the_same_tokens_and_so_has_one_of_a_run(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(TEXT[::-1])
    found = []
    made = [("a", "text.txt", file), ("b", "other.txt", file), ("c", "text.txt", tmp_path / "runs" / "a")]
    for name, data, tokens in made:
        settings = SMALL | {"data.path": str(tmp_path / data), **tokens_of(tokens)}
        run = cf.train("nanogpt-cpu", run=name, quiet=True, **sections_of(settings))
        found.append(run.tokenizer.fingerprint())
    assert set(found) == {of_file(file).train().fingerprint()}


def test_a_missing_file_is_named_and_so_is_the_setting() -> None:
    with pytest.raises(TokenizerError, match=r"set tokenizer\.path to a tokenizer\.json"):
        FileTokenizerSpec().train()
    with pytest.raises(TokenizerError, match=r"^nowhere/tokenizer\.json: there is no such file"):
        FileTokenizerSpec(path="nowhere/tokenizer.json").train()


def test_a_tokenizer_without_an_encoder_s_tokens_is_refused_for_one(file: Path, tmp_path: Path) -> None:
    labelled = tmp_path / "l.tsv"
    labelled.write_text("text\tlabel\n" + "".join(f"cat {n}\tup\ndog {n}\tdown\n" for n in range(30)))
    settings = SMALL | {"data.path": str(labelled), **tokens_of(file)}
    with pytest.raises(
        TokenizerError, match=r"lacks \[PAD\], \[CLS\], \[SEP\], \[MASK\], which an encoder needs"
    ):
        cf.train("classify", quiet=True, **sections_of(settings))


def test_a_study_tells_results_apart_by_the_contents_of_the_file(file: Path, tmp_path: Path) -> None:
    def key(path: Path) -> str:
        settings = {
            "tokenizer.kind": "file",
            "tokenizer.path": str(path),
            "data.path": str(tmp_path / "text.txt"),
        }
        (trial,) = trials(Study("s", "?", "", (Training("a", "quick", settings),), "", seeds=1))
        return trial.settings_key

    before, copy = key(file), tmp_path / "copy.json"
    copy.write_bytes(file.read_bytes())
    assert key(copy) == key(file.parent) == before
    BPETokenizerSpec(vocab_size=265).train([TEXT]).save(file)
    assert key(file) != before


def test_a_study_tells_results_apart_by_the_special_tokens_that_a_file_beside_names(file: Path) -> None:
    assert of_file(file).files == (file,)
    (file.parent / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    assert of_file(file.parent).files == (file, file.parent / "tokenizer_config.json")
    assert of_file(file).train().eos_id == load_tokenizer(file).id_of("a")


def test_it_is_a_kind_of_the_command_line() -> None:
    config = resolve_settings("quick", [{"tokenizer": {"kind": "file", "path": "a.json"}}])
    assert config.tokenizer == resolve(FileTokenizerSpec, {"path": "a.json"})
