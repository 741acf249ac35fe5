"""Refuse wrong settings at once: this needs neither torch nor the other slow imports of a command."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from config.load import load_config, merge_settings
from config.schema import get_cfg
from errors import UserError


def refuse_early(args: argparse.Namespace, *, whole: bool) -> None:
    """End the process, as `run_command` would, if the settings on the command line cannot be used.

    Args:
        args: has `config_file` and `overrides`.
        whole: they are all settings; otherwise a checkpoint will add to them, and only each by itself is
            checked.
    """
    logging.disable()  # what loading has to say is said later, once
    try:
        if whole:
            load_config(args.config_file, args.overrides)
        else:
            merge_settings(get_cfg(), args.config_file, args.overrides)
    except UserError as error:
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} ERROR {error}\n")
        sys.exit(2)
    finally:
        logging.disable(logging.NOTSET)
