"""What is wrong with the files of a data set."""

from __future__ import annotations

import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from datasets.dataset import IMAGE_FORMATS, Problem, Scan, open_image, reason_of, strip_fault
from datasets.pixels import PIXEL_FORMATS, convert_to, highest_value, is_turned, make_upright
from errors import on_one_line
from structures import ImageRecord, Modality

PROBLEM_KINDS = {
    "folder": "folders that are missing, empty or cannot be read",
    "row": "rows of a CSV file that cannot be used",
    "unparsable": "files whose name does not say identity and camera",
    "unpaired": "files without a partner in another modality",
    "mask": "masks that are missing, or belong to no image",
    "identity": "identities in training and test, or files in the folder of another identity",
    "positive": "test splits in which no query has a positive that the protocol counts",
    "unreadable": "entries that are no files, may not be read, or have a pixel format that is not supported",
    "empty": "files without content",
    "non-image": "files that are neither JPEG nor PNG",
    "truncated": "images that begin well and cannot be decoded to the end",
    "wrong-size": "images of an unusual size, smaller than a patch, unlike their triple, or not three in one",
    "duplicated": "files with the same content under two identities",
}
"""What `Problem.kind` may be, in the order of reports."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_PNG_DEPTH = 24  # where a PNG file says how many bits a channel has
_COPIES_SHOWN = 5
_MASKS = "masks"

DARK_PEAK = 1 << 14
"""16-bit images whose highest value is below this have 14 bits or fewer."""


@dataclass(frozen=True)
class CheckedFile:
    """What opening a file showed."""

    digest: bytes = b""  # of the content; empty if there is none
    # Height and width of the upright image; None if the file cannot be decoded.
    size: tuple[int, int] | None = None
    pixels: str = ""  # the pixel format in words, such as "8-bit grey"; empty if the file cannot be decoded
    turned: bool = False  # whether an EXIF flag says that the image has to be turned or mirrored
    peak: int | None = None  # the highest value of a 16-bit grey image
    # Kind and predicate of a sentence on it, if the file cannot be decoded.
    problem: tuple[str, str] | None = None


def files_of(scan: Scan) -> list[Path]:
    """The images and masks to be opened; those that do not exist are among the problems of the scan."""
    return [path for record in scan.records for path in _files_of(record) if path.is_file()]


def check_file(path: Path) -> CheckedFile:
    """Read and decode one file; what is wrong with it is returned, not raised."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return CheckedFile(problem=("unreadable", f"cannot be read ({error.strerror})"))
    if not content:
        return CheckedFile(problem=("empty", "is empty"))
    # Decode it; what a broken file raises says what is wrong.
    digest = hashlib.sha256(content).digest()
    try:
        with open_image(io.BytesIO(content)) as image:
            image.load()
            return _describe(image, content, digest)
    except Image.DecompressionBombError as error:
        problem = ("wrong-size", f"is too large to be decoded ({error})")
    except UnidentifiedImageError:
        if content.startswith((_JPEG, _PNG)):
            problem = ("truncated", "ends within its header, or that is damaged")
        else:
            problem = ("non-image", f"is no {' or '.join(IMAGE_FORMATS)} image")
    except Exception as error:  # each decoder has errors of its own
        problem = ("truncated", f"cannot be decoded to the end ({reason_of(error)})")
    return CheckedFile(digest, problem=problem)


def _describe(image: Image.Image, content: bytes, digest: bytes) -> CheckedFile:
    """What is known of an image that can be decoded."""
    upright = make_upright(image)
    try:
        convert_to(upright, "RGB")
    except ValueError as error:
        return CheckedFile(digest, problem=("unreadable", f"cannot be used: {error}"))
    pixels = PIXEL_FORMATS[image.mode]
    if content.startswith(_PNG) and content[_PNG_DEPTH] == 16:
        pixels = pixels.replace("8-bit", "16-bit")  # Pillow shortens 16-bit colour while it decodes
    peak = highest_value(image) if PIXEL_FORMATS[image.mode] == "16-bit grey" else None
    return CheckedFile(digest, (upright.height, upright.width), pixels, is_turned(image), peak)


def count_pixel_formats(scan: Scan, checked: dict[Path, CheckedFile]) -> dict[str, dict[str, int]]:
    """By modality and for masks, how many files have which pixel format."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kind, file in _by_kind(scan, checked):
        if file.pixels:
            counts[kind][file.pixels] += 1
    return {kind: dict(found.most_common()) for kind, found in counts.items()}


def find_dark(scan: Scan, checked: dict[Path, CheckedFile]) -> dict[str, int]:
    """By modality, the highest value of its 16-bit images, where it is far below what 16 bits can hold.

    Cameras of 12 or 14 bits write such files. Divided by 257, the values become nearly black.
    """
    peaks: defaultdict[str, int] = defaultdict(int)
    for kind, file in _by_kind(scan, checked):
        if kind != _MASKS and file.peak is not None:
            peaks[kind] = max(peaks[kind], file.peak)
    return {name: peak for name, peak in peaks.items() if peak < DARK_PEAK}


def _by_kind(scan: Scan, checked: dict[Path, CheckedFile]) -> Iterator[tuple[str, CheckedFile]]:
    """Each checked file with its modality, or `_MASKS`; one that holds a whole triple comes three times."""
    for record in scan.records:
        for kind, path in zip(
            (*(m.value for m in Modality), _MASKS), (*record.paths, record.mask_path), strict=True
        ):
            if path in checked:
                yield kind, checked[path]


def find_problems(scan: Scan, checked: dict[Path, CheckedFile], *, patch: int) -> list[Problem]:
    """All that is wrong with a data set: its names and folders, its files, and its files together.

    A size is wrong if the file cannot be cut into three images but should be; if a side is shorter than
    `patch`; if it is not the usual size, where more than half of the images share one; or if the files of a
    triple differ. A file or triple is listed for the first of these reasons that applies. Copies are looked
    for among images, not among masks.

    `checked` holds each of `files_of(scan)`. The problems have the order of `PROBLEM_KINDS`.
    """
    listing = _Listing(scan, checked)
    problems = [*scan.problems, *listing.broken(), *listing.wrong_sizes(patch), *listing.copies()]
    order = list(PROBLEM_KINDS)
    return sorted(problems, key=lambda problem: order.index(problem.kind))


def _files_of(record: ImageRecord) -> Iterator[Path]:
    yield from record.files
    if record.mask_path is not None:
        yield record.mask_path


@dataclass(frozen=True)
class _Listing:
    """See `find_problems`."""

    scan: Scan
    checked: dict[Path, CheckedFile]

    def broken(self) -> Iterator[Problem]:
        for path, file in self.checked.items():
            if file.problem is not None:
                yield self._problem(file.problem[0], path, file.problem[1])

    def wrong_sizes(self, patch: int) -> Iterator[Problem]:
        usual = self._usual_size()
        for record in self.scan.records:
            sizes = dict(self._sizes(_files_of(record)))
            listed = False
            for path, size in sizes.items():
                fault = strip_fault(*size) if record.is_strip and path in record.files else None
                if fault is not None:
                    what = f"does not hold three images side by side: {fault}"
                elif min(size) < patch:
                    what = f"has {_show(size)} pixels, less than one patch of {patch}"
                elif usual is not None and size != usual:
                    what = f"has {_show(size)} pixels, where most images have {_show(usual)}"
                else:
                    continue
                listed = True
                yield self._problem("wrong-size", path, what)
            if not listed and len(set(sizes.values())) > 1:
                each = ", ".join(f"{path.parent.name} {_show(size)}" for path, size in sizes.items())
                yield self._problem("wrong-size", record.files[0], f"and its partners differ in size: {each}")

    def copies(self) -> Iterator[Problem]:
        owners: defaultdict[bytes, list[tuple[Path, int]]] = defaultdict(list)
        for record in self.scan.records:
            for path in record.files:
                if path in self.checked and self.checked[path].digest:
                    owners[self.checked[path].digest].append((path, record.person_id))
        for (path, person), *others in owners.values():
            if any(other != person for _, other in others):
                shown = [self._name(other) for other, _ in others[:_COPIES_SHOWN]]
                more = f" and {len(others) - _COPIES_SHOWN} more" if len(others) > _COPIES_SHOWN else ""
                yield self._problem("duplicated", path, f"has the same content as {', '.join(shown)}{more}")

    def _usual_size(self) -> tuple[int, int] | None:
        """The size of more than half of the images, if there is one."""
        sizes = Counter(size for record in self.scan.records for _, size in self._sizes(record.files))
        return next((size for size, count in sizes.items() if 2 * count > sizes.total()), None)

    def _sizes(self, paths: Iterable[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
        for path in paths:
            file = self.checked.get(path)
            if file is not None and file.size is not None:
                yield path, file.size

    def _problem(self, kind: str, path: Path, what: str) -> Problem:
        return Problem(kind, self._name(path), f"{self._name(path)} {what}")

    def _name(self, path: Path) -> str:
        inside = path.is_relative_to(self.scan.folder)  # a CSV file may name others
        return on_one_line((path.relative_to(self.scan.folder) if inside else path).as_posix())


def _show(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
