"""Train variants with several seeds and compare them: `python -m studies COMMAND`; docs/results.md."""

from __future__ import annotations

from engine.arguments import answer_early
from studies.arguments import parse_arguments

if __name__ == "__main__":
    answer_early(parse_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

from collections.abc import Sequence

from engine.command import run_command
from engine.runtime import setup_log
from studies import compare, draw, gap, leaderboard, missing, power, run, shift, slim

COMMANDS = {
    "run": run.main,
    "compare": compare.main,
    "draw": draw.main,
    "gap": gap.main,
    "leaderboard": leaderboard.main,
    "missing": missing.main,
    "power": power.main,
    "shift": shift.main,
    "slim": slim.main,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    args = parse_arguments(argv)
    setup_log()
    COMMANDS[args.command](args)


if __name__ == "__main__":
    run_command(main)
