"""A gallery in Milvus: Milvus Lite in a local folder, or a cluster by its address."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from errors import UserError, on_one_line
from inference.gallery import CameraFilter, Entries, check_model, lock_gallery
from reporting.extra import import_extra

COLLECTION = "gallery"
UNFINISHED = "gallery_is_being_filled"
"""A collection that is there as long as the other is being filled."""
MODEL, NEXT_ROW = "gallery.model", "gallery.next_row"
"""Properties of the collection: what entries that were removed can no longer tell."""
FIELDS = ("row", "person", "camera", "file", "features")
LONGEST_NAME = 4096  # bytes of a file name
ROWS_AT_ONCE = 1000  # in one answer
MESSAGE = 2**24  # bytes of vectors in one message; a cluster refuses 64 MB


class MilvusEngine:
    """Vectors in a collection `gallery`, compared one by one (index FLAT).

    Milvus Lite runs in this process and listens on a port of 127.0.0.1, for every user of the machine.
    """

    exact = True

    def __init__(self, address: str, model: str) -> None:
        """Connect, and make the collection's place if it is a local one.

        Args:
            address: a name that ends in .db, or http://host:19530.
            model: as for `Gallery.open`.
        """
        # Errors are raised here; their stack traces need not be in the log as well.
        for name in ("milvus_lite", "faiss", "grpc._server"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._milvus = import_extra("pymilvus", "search")
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # the import has set another level
        self._address, self._model = address, model
        self._is_local = "://" not in address
        self._client: Any = None
        self._lock: IO[bytes] | None = None
        if self._is_local:
            import_extra("milvus_lite", "search")
            self._check_folder(Path(address))
            self._lock = lock_gallery(Path(address))
        try:
            with self._errors("opened"):
                self._client = self._milvus.MilvusClient(address)
            self._open_collection()
        except BaseException:
            self.close()
            raise

    def _check_folder(self, path: Path) -> None:
        if not path.absolute().parent.is_dir():
            raise UserError(f"the gallery {path} cannot be made: there is no folder {path.absolute().parent}")
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is not a database of Milvus Lite 3, which is a folder; name another one")

    def _open_collection(self) -> None:
        self.dim: int | None = None
        self._next_row = 0
        with self._errors("read"):
            if not self._client.has_collection(COLLECTION):
                return
            about = self._client.describe_collection(COLLECTION)
            dims = {field["name"]: field["params"].get("dim") for field in about["fields"]}
            if not {*FIELDS, "model"} <= set(dims):
                raise UserError(
                    f"the collection {COLLECTION} of {self._address} is not a gallery; name another"
                )
            self.dim = int(dims["features"])
            self._client.load_collection(COLLECTION)
            self._next_row = max(self._find_next_row(), int(about["properties"].get(NEXT_ROW, 0)))
            found = about["properties"].get(MODEL)
            if found is None:  # a collection of an earlier version
                some = self._client.query(COLLECTION, filter="row >= 0", limit=1, output_fields=["model"])
                found = some[0]["model"] if some else self._model
        check_model(self._model, found, self._address)
        self._model = found

    def _find_next_row(self) -> int:
        """One more than the largest row that is there, by bisection: Milvus has no maximum."""

        def is_beyond(row: int) -> bool:
            return not self._client.query(COLLECTION, filter=f"row >= {row}", limit=1, output_fields=["row"])

        high = 1
        while not is_beyond(high):
            high *= 2
        low = high // 2
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_beyond(middle) else (middle + 1, high)
        return low

    def __len__(self) -> int:
        if self.dim is None:
            return 0
        with self._errors("read"):
            return int(self._client.query(COLLECTION, filter="", output_fields=["count(*)"])[0]["count(*)"])

    @property
    def next_row(self) -> int:
        """The row of the next entry."""
        return self._next_row

    @property
    def unfinished(self) -> bool:
        """Whether filling was interrupted."""
        with self._errors("read"):
            return bool(self._client.has_collection(UNFINISHED))

    def mark_unfinished(self, unfinished: bool) -> None:
        """Set or remove the mark of a gallery that is being filled."""
        with self._errors("written"):
            if unfinished:
                self._client.create_collection(UNFINISHED, dimension=2)
            else:
                self._client.drop_collection(UNFINISHED)

    def add(self, entries: Entries) -> None:
        """Send entries, some at a time; those that were sent are durable, also if a later part fails."""
        too_long = [file for file in entries.files if len(file.encode(errors="replace")) > LONGEST_NAME]
        if too_long:
            raise UserError(f"Milvus takes file names of {LONGEST_NAME} bytes; {too_long[0][:40]}… has more")
        with self._errors("written"):
            if self.dim is None:
                self._make_collection(entries.features.shape[1])
            step = max(1, MESSAGE // entries.features[0].nbytes)
            for start in range(0, len(entries), step):
                part = slice(start, start + step)
                columns = (entries.rows, entries.ids, entries.cameras, entries.files, entries.features)
                rows = zip(*(column[part] for column in columns), strict=True)
                self._client.insert(
                    COLLECTION,
                    [
                        {
                            "row": int(row),
                            "person": int(person),
                            "camera": int(camera),
                            "file": file.encode(errors="replace").decode(),
                            "features": features,
                            "model": self._model,
                        }
                        for row, person, camera, file, features in rows
                    ],
                )
                self._next_row = int(entries.rows[part][-1]) + 1

    def _make_collection(self, dim: int) -> None:
        kinds = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False)
        schema.add_field("row", kinds.INT64, is_primary=True)
        schema.add_field("features", kinds.FLOAT_VECTOR, dim=dim)
        for name in ("person", "camera"):
            schema.add_field(name, kinds.INT64)
        for name in ("file", "model"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST_NAME)
        index = self._client.prepare_index_params()
        index.add_index("features", index_type="FLAT", metric_type="IP")
        self._client.create_collection(
            COLLECTION,
            schema=schema,
            index_params=index,
            consistency_level="Strong",
            properties={MODEL: self._model},
        )
        self.dim = dim

    def remove(self, rows: np.ndarray) -> int:
        """Forget rows."""
        if self.dim is None:
            return 0
        there = self._get(rows, ["row"])
        with self._errors("written"):
            if there:
                # First, so that their rows are not given again if the process is killed in between.
                kept = {MODEL: self._model, NEXT_ROW: str(self._next_row)}
                self._client.alter_collection_properties(COLLECTION, properties=kept)
                self._client.delete(COLLECTION, ids=[entry["row"] for entry in there])
        return len(there)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The rows of the entries with one of these identities."""
        rows: list[int] = []
        if self.dim is not None:
            with self._errors("read"):
                pages = self._client.query_iterator(
                    COLLECTION,
                    batch_size=ROWS_AT_ONCE,
                    filter=f"person in {ids.tolist()}",
                    output_fields=["row"],
                )
                while page := pages.next():
                    rows.extend(entry["row"] for entry in page)
                pages.close()
        return np.array(sorted(rows), dtype=np.int64)

    def candidates(
        self, queries: np.ndarray, count: int, cameras: CameraFilter
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest entries."""
        similarities = np.full((len(queries), count), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), count), -1, dtype=np.int64)
        conditions = [] if cameras.only is None else [f"camera in {sorted(cameras.only)}"]
        conditions += [f"camera not in {sorted(cameras.without)}"] if cameras.without else []
        with self._errors("searched"):
            found = self._client.search(
                COLLECTION,
                data=list(queries),
                limit=count,
                filter=" and ".join(conditions),
                output_fields=["row"],
                search_params={"metric_type": "IP"},
            )
        for query, hits in enumerate(found):
            similarities[query, : len(hits)] = [hit["distance"] for hit in hits]
            rows[query, : len(hits)] = [hit["row"] for hit in hits]
        return similarities, rows

    def fetch(self, rows: np.ndarray) -> Entries:
        """The entries of these rows."""
        found = sorted(self._get(rows, FIELDS), key=lambda entry: int(entry["row"]))
        return Entries(
            np.array([entry["features"] for entry in found], dtype=np.float32).reshape(
                len(found), self.dim or 0
            ),
            np.array([entry["person"] for entry in found], dtype=np.int64),
            np.array([entry["camera"] for entry in found], dtype=np.int64),
            [entry["file"] for entry in found],
            np.array([entry["row"] for entry in found], dtype=np.int64),
        )

    def save(self, path: Path | None) -> None:
        """Let Milvus put what was added last into its segments, which are searched faster."""
        if path is not None:
            raise UserError(
                f"the gallery {self._address} is in Milvus, which stores it; call save without a path"
            )
        if self.dim is not None:
            with self._errors("written"):
                self._client.flush(COLLECTION)

    def close(self) -> None:
        """Disconnect; Milvus Lite stops, and another process may open the folder."""
        if self._client is not None:
            self._client.close()
        if self._lock is not None:
            manager = import_extra("milvus_lite.server_manager", "search")
            manager.server_manager_instance.release_server(self._address)
            self._lock.close()

    def _get(self, rows: np.ndarray, fields: Sequence[str]) -> list[dict[str, Any]]:
        """The entries of those rows that are there."""
        found: list[dict[str, Any]] = []
        with self._errors("read"):
            for start in range(0, len(rows), ROWS_AT_ONCE):
                part = rows[start : start + ROWS_AT_ONCE].tolist()
                found.extend(self._client.get(COLLECTION, ids=part, output_fields=list(fields)))
        return found

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn an error of Milvus into a sentence."""
        try:
            yield
        except self._milvus.MilvusException as error:
            reason = on_one_line(error.message)
            raise UserError(f"the gallery {self._address} cannot be {what}: {reason}") from None
