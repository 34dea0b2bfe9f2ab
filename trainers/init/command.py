"""`swarmflow init`: the command line that writes a RUN.toml."""

from __future__ import annotations

import click


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@click.option("--data", help="The text: a file, a folder or a quoted glob; by default the text in FOLDER.")
@click.option(
    "--model",
    default="llama-3m",
    show_default=True,
    help="A size (llama- or gpt2- with 3m, 25m, 100m, 300m or 1b parameters), or a Hugging Face folder.",
)
@click.option("--out", type=click.Path(dir_okay=False), help="The file to write; by default FOLDER/RUN.toml.")
@click.option("--name", help="The run's name; by default that of the text.")
@click.option("--steps", type=click.IntRange(min=1), help="Optimizer steps; by default chosen for the model's size.")
@click.option("--stages", type=click.IntRange(min=1), help="Parts of the model; by default few, for peers of 8 GB.")
@click.option(
    "--seq-len", type=click.IntRange(min=1), help="Tokens in a sequence; by default chosen for the model's size."
)
@click.option(
    "--tokenizer",
    help="bytes, a tokenizer.json, a folder or a hub name; by default that of the model folder, else bytes.",
)
@click.option("--text-field", default="text", show_default=True, help="The field with the text, in jsonl and parquet.")
def init(**options: object) -> int:
    """Write a RUN.toml with comments for the text in FOLDER, check it, and print the commands that start the run.

    FOLDER (default: this one) has the text, and gets RUN.toml and the results.

    For example: swarmflow init --data ~/texts --model llama-25m
    """
    from trainers.init.options import InitOptions
    from trainers.init.run import main

    return main(InitOptions.parse(options))
