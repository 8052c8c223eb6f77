"""The checks that several commands share."""

import pytest

from clearformer.cli import main
from clearformer.cli.options import check_fits
from clearformer.errors import UserError
from clearformer.model import ModelConfig
from clearformer.runs.folders import run_config


def test_the_command_for_a_run_names_it_as_a_shell_reads_it() -> None:
    config = run_config(ModelConfig(vocab_size=9))
    with pytest.raises(UserError, match=r"^my run does not translate; .*: clearformer generate 'my run'$"):
        check_fits(False, config, "my run", "does not translate")


def test_help_on_a_command_of_a_command_is_of_that_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "tokenizer", "compare"]) == 0
    helped = capsys.readouterr().out
    assert main(["tokenizer", "compare", "--help"]) == 0
    assert helped == capsys.readouterr().out
