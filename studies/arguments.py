"""The command line of `python -m studies`. Nothing slow is imported here: --help is answered at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.arguments import add_config_arguments, output_path

Parser = argparse.ArgumentParser


def _add_pattern(parser: Parser, default: int | None, what: str) -> None:
    parser.add_argument("--pattern", type=int, choices=(1, 2, 3), default=default, help=what)


def _power(parser: Parser) -> None:
    parser.add_argument("spec", metavar="SPEC", type=Path, help="the study file, see docs/results.md")
    _add_pattern(parser, None, "the return pattern to compare, in place of pattern in the study")


def _run(parser: Parser) -> None:
    _power(parser)
    parser.add_argument("--dry_run", action="store_true", help="check the study and list what would run")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once, in place of jobs in the study")


def _compare(parser: Parser) -> None:
    parser.add_argument(
        "what", metavar="NAME", nargs="+", type=Path, help="one study file, or two run folders"
    )
    _add_pattern(parser, None, "the return pattern to compare (that of the study, or the last)")
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="of two runs: also write the files there"
    )
    parser.add_argument(
        "--page", type=output_path, metavar="FILE.md", help="of a study: replace its table in this page"
    )
    parser.add_argument(
        "--cost", action="store_true", help="with columns there for the best possible choice and GFLOPs"
    )


def _gap(parser: Parser) -> None:
    parser.add_argument(
        "studies", nargs=2, type=Path, metavar="STUDY", help="folders of two studies, on other data"
    )
    parser.add_argument(
        "--variants", nargs=2, required=True, metavar="NAME", help="two variants that both have"
    )
    _add_pattern(parser, 2, "the return pattern (2)")


def _finished_study(parser: Parser) -> None:
    parser.add_argument("study", metavar="STUDY", type=Path, help="the folder of a study")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="some of its variants (all)")


def _missing(parser: Parser) -> None:
    _finished_study(parser)
    parser.add_argument(
        "--any_to_any", action="store_true", help="search each combination of modalities in each other one"
    )
    parser.add_argument(
        "--shared_space",
        action="store_true",
        help="the same, in a space that all modalities share, fitted to the training split",
    )


def _slim(parser: Parser) -> None:
    add_config_arguments(parser, "the configuration in the checkpoints", base="the checkpoints")
    parser.add_argument(
        "--weights", nargs="+", required=True, help="checkpoints, for example of several seeds"
    )
    parser.add_argument("--layers", nargs="+", default=["[0]"], help="lists such as [0] [3,6,9]")
    parser.add_argument("--keep", nargs="+", type=float, default=[0.37, 0.56, 0.75], help="keep ratios")
    parser.add_argument(
        "--controls",
        nargs="+",
        choices=("random", "fixed"),
        default=[],
        help="also drop patches at random, or the same patches of every image",
    )
    parser.add_argument(
        "--beside", nargs="+", type=Path, default=[], metavar="FILE.json", help="draw earlier sweeps too"
    )
    parser.add_argument(
        "--output", type=output_path, default=Path("slimming"), help="OUTPUT.png and OUTPUT.json"
    )


def _draw(parser: Parser) -> None:
    _finished_study(parser)
    parser.add_argument("--count", type=int, default=3, help="number of triples, evenly spread (3)")
    parser.add_argument("--width", type=float, default=7.0, help="of the picture, in inches (7)")
    parser.add_argument(
        "--output", type=output_path, metavar="FILE", default=Path("kept.png"), help="(kept.png)"
    )


def _leaderboard(parser: Parser) -> None:
    parser.add_argument(
        "studies",
        nargs="*",
        type=Path,
        metavar="STUDY",
        help="folders of finished studies, added to those on record",
    )
    parser.add_argument(
        "--records",
        type=output_path,
        metavar="FILE.json",
        default=Path("studies/measured/leaderboard.json"),
        help="the record (studies/measured/leaderboard.json)",
    )
    parser.add_argument(
        "--page",
        type=output_path,
        metavar="FILE.md",
        default=Path("docs/leaderboard.md"),
        help="(docs/leaderboard.md)",
    )


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "run": ("train the variants of a study with several seeds, or continue, and compare them", _run),
    "compare": ("make the tables from the finished runs of a study, or from two runs", _compare),
    "draw": ("draw which patches the variants of a study keep in the same triples", _draw),
    "gap": ("compare the difference between two variants in one study with that in another", _gap),
    "leaderboard": ("write the page of scores measured here, and of published ones", _leaderboard),
    "missing": ("evaluate the runs of a study without some modalities, or across them", _missing),
    "power": ("say how large a difference between variants a study can find", _power),
    "shift": ("shift the test images of a study, to see whether the kept patches follow", _finished_study),
    "slim": ("score slimmed models at several layers and keep ratios", _slim),
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command, and the arguments of that command."""
    words = sys.argv[1:] if argv is None else list(argv)
    listed = "\n".join(f"  {name:<12} {what}" for name, (what, _) in COMMANDS.items())
    parser = Parser(
        "python -m studies",
        description="Compare variants over several seeds; docs/results.md explains how.",
        epilog=f"commands (python -m studies COMMAND --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help=f"one of {', '.join(COMMANDS)}")
    args = parser.parse_args(words[:1])
    what, add_arguments = COMMANDS[args.command]
    # Overrides may follow options, which argparse does not allow below a subparser.
    own = Parser(f"python -m studies {args.command}", description=f"{what[0].upper()}{what[1:]}.")
    add_arguments(own)
    return own.parse_intermixed_args(words[1:], namespace=args)
