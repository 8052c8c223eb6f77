"""`clearformer export`: write a run in the format of transformers or llama.cpp."""

from typing import Annotated

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import Average, Checkpoint, RunName, check_dtype, check_not_empty, open_run

app = typer.Typer(add_completion=False)


@app.command("export")
def command(
    run: RunName,
    target: Annotated[str, typer.Argument(metavar="DIR", help="New folder, or new file NAME.gguf.")],
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Type of a .gguf file's matrices: float32 or float16. Folders are in float32.",
        ),
    ] = "float32",
) -> None:
    """Write a run as a folder that transformers loads without our code: model, tokenizer and model card.

    A name that ends in .gguf makes one file for llama.cpp (GPT-2, Llama and Qwen3, with byte-level BPE). If the target
    has no such architecture, the error names the settings that differ from the nearest one.
    """
    check_not_empty("RUN", [run])
    check_not_empty("DIR", [target])
    if target.lower().endswith(".gguf"):
        with importing():
            from clearformer.interop.gguf import FILE_TYPES, to_gguf

        check_dtype(dtype, list(FILE_TYPES))
        fitted = to_gguf(open_run(run, checkpoint, "cpu", average), target, dtype=dtype)
        typer.echo(f"{target}: {fitted.architecture.title} for llama.cpp, in {dtype}")
        return
    if dtype != "float32":
        from clearformer.errors import ConfigError

        check_dtype(dtype, ["float32", "float16", "bfloat16"])
        raise ConfigError(
            f"--dtype {dtype}: a folder is written in float32, and transformers casts what it loads "
            f"(from_pretrained(..., dtype=torch.{dtype}))"
        )
    with importing():
        from clearformer.interop import to_hf
        from clearformer.interop.card import auto_class

    fitted = to_hf(open_run(run, checkpoint, "cpu", average), target)
    typer.echo(
        f"{target}: {fitted.architecture.title}; load it with transformers.{auto_class(fitted)}"
        f".from_pretrained({target!r})"
    )
