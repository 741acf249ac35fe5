"""Look for broken files in a data set: `python -m tools.check_dataset --config_file F [KEY VALUE …]`.

Counts the identities, triples and cameras of each split of the data set that the configuration names, opens
every image and mask, and says what is wrong, also where training would refuse the folder; the file of --json
lists all of it. Status 0: nothing is wrong; 1: something is; 2: a user error.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import check_dataset_arguments

if __name__ == "__main__":
    answer_early(check_dataset_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from config import load_config
from config.schema import patch_size
from datasets.build import scan_data
from datasets.check import PROBLEM_KINDS, check_file, count_pixel_formats, files_of, find_dark, find_problems
from datasets.dataset import Splits
from datasets.layout import PROBLEMS_SHOWN
from datasets.sources import SOURCES
from engine.command import run_command
from engine.files import check_destination, save_json
from engine.runtime import setup_log
from errors import UserError

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Scan, open every file, report."""
    args = check_dataset_arguments(argv)
    if args.workers < 1:
        raise UserError(f"--workers must be 1 or more, not {args.workers}")
    if args.json is not None:
        check_destination(args.json, replaces=".json")
    cfg = load_config(args.config_file, args.overrides)
    setup_log()
    scan = scan_data(cfg)
    place = cfg.DATASETS.CSV if SOURCES[cfg.DATASETS.NAMES].is_list else scan.folder
    splits = Splits(scan.train, scan.query, scan.gallery)
    logger.info("data set %s in %s\n%s", cfg.DATASETS.NAMES, place, splits.describe())
    paths = files_of(scan)
    # Threads suffice: reading, hashing and decoding release the interpreter lock.
    with ThreadPoolExecutor(args.workers) as pool:
        results = tqdm(pool.map(check_file, paths), "checking", len(paths), unit="file", disable=None)
        checked = dict(zip(paths, results, strict=True))
    problems = find_problems(scan, checked, patch=patch_size(cfg.MODEL.TRANSFORMER_TYPE) or 1)

    # What is wrong: some of each kind, and how many there are.
    found = Counter(problem.kind for problem in problems)
    for kind, count in found.items():
        messages = [problem.message for problem in problems if problem.kind == kind]
        for message in messages[:PROBLEMS_SHOWN]:
            logger.warning("%s: %s", kind, message)
        if count > PROBLEMS_SHOWN:
            more = count - PROBLEMS_SHOWN
            logger.warning("%s: and %d more; %s lists all", kind, more, args.json or "--json FILE")
    for kind, count in found.items():
        logger.info("%6d %s: %s", count, kind, PROBLEM_KINDS[kind])
    # What the files are.
    formats = count_pixel_formats(scan, checked)
    for modality, counts in formats.items():
        logger.info("%6s: %s", modality, ", ".join(f"{count} {pixels}" for pixels, count in counts.items()))
    for modality, peak in find_dark(scan, checked).items():
        logger.warning(
            "the 16-bit %s images reach %d of 65535 and will be nearly black: multiply their values by %d, "
            "or save them with 8 bits (docs/data.md)",
            *(modality, peak, 65535 // max(peak, 1)),
        )
    turned = sum(file.turned for file in checked.values())
    if turned:
        logger.info("%6d file(s) with an EXIF flag, turned upright when they are read", turned)
    totals = (len(checked), len(scan.records), len(problems))
    logger.info("%d files of %d triples opened, problems: %d", *totals)
    if args.json is not None:
        content = {
            "folder": str(scan.folder),
            "files": len(checked),
            "pixel_formats": formats,
            "turned": turned,
            "counts": {kind: found[kind] for kind in PROBLEM_KINDS},
            "problems": [problem._asdict() for problem in problems],
        }
        save_json(args.json, content)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    run_command(main)
