"""The ``dlm`` command: train, sample, eval and demo."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any
from typing import NoReturn

from dlm_jax import __version__

DEMO_CONFIG = "configs/masked_demo.py"


class _Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and names the nearest flag for a mistyped one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """One line, without the whole usage before it."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def unknown(self, arguments: Sequence[str]) -> None:
        flags = [flag for action in self._actions for flag in action.option_strings]
        given = arguments[0].partition("=")[0]
        close = [flag for flag in flags if flag.startswith(given)]
        close = close or difflib.get_close_matches(given, flags, n=1)
        advice = f"; did you mean {close[0]}?" if close else ""
        self.error(f"unknown argument {_shortened(arguments[0])}{advice}")


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = _Parser(prog="dlm", description="Diffusion language models in JAX.")
    parser.add_argument("--version", action="version", version=f"dlm_jax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    train = commands.add_parser(
        "train",
        help="train a model from a config file, or go on with a run",
        formatter_class=defaults,
    )
    train.add_argument("--config", default=DEMO_CONFIG, help="Python file with get_config()")
    train.add_argument("--workdir", required=True, help="folder of the run")
    _add_restart(train)

    sample = commands.add_parser(
        "sample", help="write text with a trained run", formatter_class=defaults
    )
    _add_run(sample)
    sample.add_argument("--prompt", default="", help="text at the left end of the canvas")
    sample.add_argument("--suffix", default="", help="text at the right end of the canvas")
    of_run = "the run's config decides if not given"
    sample.add_argument("--length", type=int, help=f"tokens of the whole canvas; {of_run}")
    sample.add_argument("--steps", type=int, help=f"denoising steps; {of_run}")
    sample.add_argument("--order", help=f"unmasking order; {of_run}")
    sample.add_argument("--temperature", type=float, help=f"0 for the likeliest token; {of_run}")
    sample.add_argument("--top_k", type=int, help=f"tokens kept, 0 for all; {of_run}")
    sample.add_argument("--top_p", type=float, help=f"mass kept; {of_run}")
    sample.add_argument("--min_p", type=float, help=f"relative floor; {of_run}")
    sample.add_argument("--seed", type=int, default=0, help="same seed, same text")
    sample.add_argument("--num", type=int, default=1, help="number of texts")
    sample.add_argument("--show", action="store_true", help="show the first canvas being denoised")

    evaluate = commands.add_parser(
        "eval", help="score a trained run on its validation split", formatter_class=defaults
    )
    _add_run(evaluate)
    evaluate.add_argument("--samples", type=int, default=8, help="draws of each row")
    evaluate.add_argument("--seed", type=int, default=0, help="seed of the draws")
    evaluate.add_argument("--json", action="store_true", help="also print one JSON line")

    demo = commands.add_parser(
        "demo", help="from nothing to generated text in minutes", formatter_class=defaults
    )
    demo.add_argument("--config", default=DEMO_CONFIG, help="Python file with get_config()")
    demo.add_argument("--workdir", default="runs/demo", help="folder of the run")
    _add_restart(demo)
    return parser, {"train": train, "sample": sample, "eval": evaluate, "demo": demo}


def _add_restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--restart",
        action="store_true",
        help="throw away the run in the folder and start anew; without it a run is resumed, and "
        "a finished one is left alone",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of a trained run")
    parser.add_argument("--checkpoint", default="latest", help="latest, best or a step number")
    parser.add_argument(
        "--no_ema", action="store_true", help="use the raw parameters, not their average"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:120]} ... {text[-60:]}"


def _print_help(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Flags, then every key of the chosen config with its value.

    Raises:
      ValueError: if ``--config`` names no config.
    """
    from dlm_jax.cli.overrides import PREFIX
    from dlm_jax.cli.overrides import default_config
    from dlm_jax.cli.overrides import flatten
    from dlm_jax.cli.overrides import load_config

    reader = _Parser(add_help=False)
    reader.add_argument("--config", default=DEMO_CONFIG)
    path = reader.parse_known_args(given)[0].config
    if path == DEMO_CONFIG and not os.path.exists(path):  # outside a checkout
        path, config = "the defaults", default_config()
    else:
        config = load_config(path)
    parser.print_help()
    print(f"\nkeys of {path}, each set by {PREFIX}KEY=VALUE (None means None):")
    for key, value in flatten(config).items():
        print(f"  {PREFIX}{key}={value}")


def _dispatch(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from rich.console import Console

    console = Console()
    if arguments.command in ("train", "demo"):
        from dlm_jax.cli.overrides import apply_overrides
        from dlm_jax.cli.overrides import load_config

        config = apply_overrides(load_config(arguments.config), overrides)
        if arguments.command == "train":
            from dlm_jax.cli.train import run_training

            return run_training(config, arguments.workdir, restart=arguments.restart)
        from dlm_jax.cli.demo import run_demo

        return run_demo(config, arguments.workdir, console, restart=arguments.restart)
    if arguments.command == "sample":
        from dlm_jax.cli.sample import run_sample

        return run_sample(arguments, console)
    from dlm_jax.cli.evaluate import run_evaluation

    return run_evaluation(arguments, console)


def _run(given: Sequence[str]) -> int:
    from dlm_jax.cli.overrides import split_overrides

    parser, commands = _parser()
    if given[:1] in (["train"], ["demo"]) and {"-h", "--help"} & set(given):
        _print_help(commands[given[0]], given)
        return 0
    others, overrides = split_overrides(given)
    arguments, unknown = parser.parse_known_args(others)
    command = commands[arguments.command]
    if unknown:
        command.unknown(unknown)
    if overrides and arguments.command not in ("train", "demo"):
        command.error(f"--config.{overrides[0]}: {arguments.command} reads the run's own config")
    return _dispatch(arguments, overrides)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``dlm``; returns the exit code.

    A mistake of the user is one line on standard error and code 2; set ``DLM_TRACEBACK=1`` for the
    whole traceback.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(given)
        sys.stdout.flush()  # a reader that has left is noticed here, not while Python exits
        return code
    except KeyboardInterrupt:
        print("dlm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, as in "dlm sample | head", has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if os.environ.get("DLM_TRACEBACK"):
            raise
        text = error.strerror if isinstance(error, OSError) and not error.filename else error
        print(f"dlm: error: {text}", file=sys.stderr)
        return 2
