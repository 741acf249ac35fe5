"""The folder of a report: written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from structures import UserError

PAGE = Path(__file__).parent / "page"
JPEG_QUALITY = 85


class ReportFolder:
    """Collects the files of a report in a scratch folder beside the final one; `publish` renames it.

    Args:
        path: where the report will be. An earlier report there is replaced, anything else is refused.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not _may_be_replaced(path):
            raise UserError(
                f"{path} exists and is not a report; name another folder for --report, or remove it"
            )
        self.path = path
        self._target = path.resolve()
        self.scratch = self._target.parent / f".{self._target.name}.tmp"
        with self._clear_errors():
            shutil.rmtree(self.scratch, ignore_errors=True)
            for place in ("images", "data/triples"):
                (self.scratch / place).mkdir(parents=True)

    def write_image(self, row: int, strip: Image.Image) -> None:
        """The picture of the test triple with this row."""
        with self._clear_errors():
            strip.save(self.scratch / "images" / f"{row}.jpg", quality=JPEG_QUALITY)

    def write_triple(self, row: int, content: Mapping[str, Any]) -> None:
        """What was selected in the test triple with this row."""
        self._write_script(f"triples/{row}", f"triple_{row}", content)

    def write_data(self, name: str, content: Mapping[str, Any]) -> None:
        """Any other data of the page."""
        self._write_script(name, name, content)

    def publish(self) -> Path:
        """Add the page, and put the folder into place of an earlier one.

        Returns:
            The page.
        """
        with self._clear_errors():
            shutil.copytree(PAGE, self.scratch, dirs_exist_ok=True)
            if self._target.exists():
                shutil.rmtree(self._target)
            os.replace(self.scratch, self._target)
        return self.path / "index.html"

    def _write_script(self, path: str, name: str, content: Mapping[str, Any]) -> None:
        """A script that hands `content` to the page: a page from disk may load nothing else."""
        text = json.dumps(_without_nan(content), separators=(",", ":"), ensure_ascii=True)
        with self._clear_errors():
            file = self.scratch / "data" / f"{path}.js"
            file.write_text(f'REPORT.receive("{name}",{text});\n', encoding="ascii")

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise UserError(f"the report {self.path} cannot be written: {error.strerror}") from None


def _may_be_replaced(path: Path) -> bool:
    return path.is_dir() and ((path / "data" / "summary.js").is_file() or not any(path.iterdir()))


def _without_nan(value: Any) -> Any:
    """The value with None in place of NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
