"""Completes rejects: what their records held, where the stage that rejected them did not keep it.

No reject is left without: bytes or values, or else the place of the bytes in the source and their
sha256. Nothing is there to be kept of a file that could not be opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator

from ...schemas.blocks import Block, RawBatch, WorkUnit
from ...schemas.errors import PayloadPlace, Reject, StorageError
from ...schemas.features import Features
from ...schemas.recipe import OpenSource
from ...transforms.prepare.engine.compile import with_record


class RejectPayloads:
    """Completes the rejects of one unit of work."""

    def __init__(
        self, unit: WorkUnit, *, features: Features, numbered: bool, opened: OpenSource | None
    ) -> None:
        """Takes where the records come from.

        Args:
            unit: A block, or a range of the stage before.
            features: Of the records before the stage's steps.
            numbered: Whether ids are ``path#position``.
            opened: The source; None in a later stage, which reads runs.
        """
        self._features, self._numbered, self._opened = features, numbered, opened
        ranges = unit.ranges if isinstance(unit, Block) else ()
        self._files = {part.path: part for part in ranges}

    def complete(self, rejects: Iterable[Reject], batch: RawBatch) -> Iterator[Reject]:
        """The rejects with what their records held.

        Args:
            rejects: Of the batch, at any point of the stage.
            batch: The records as they came, before the steps.
        """
        rows: dict[str, int] | None = None
        for reject in rejects:
            if reject.payload is None and reject.place is None:
                if rows is None:
                    rows = {record_id: row for row, record_id in enumerate(batch.ids)}
                yield self._filled(reject, batch, rows.get(reject.record_id))
            elif reject.place is not None and reject.payload_kind == "bytes":
                yield self._placed(reject, reject.place)
            else:
                yield reject

    def _filled(self, reject: Reject, batch: RawBatch, row: int | None) -> Reject:
        if row is not None:
            filled = with_record(
                reject,
                batch.columns,
                row,
                features=self._features,
                numbered=self._numbered,
            )
            place = filled.place
            return filled if place is None else self._placed(filled, place)
        part = self._files.get(reject.source)
        if part is None or not part.sha256:
            return reject
        # What was damaged, and how much of it there is, is not known: the file is told.
        place = PayloadPlace(sha256=part.sha256, start=0)
        return dataclasses.replace(reject, place=place)

    def _placed(self, reject: Reject, place: PayloadPlace) -> Reject:
        """Finds out whether long bytes stand in the file as they are, at the reject's position.

        In compressed or recoded text they do not.
        """
        part = self._files.get(reject.source)
        if place.start is not None or place.num_bytes is None or part is None:
            return reject
        start = reject.position or 0
        stop = start + place.num_bytes
        if self._opened is not None and not part.problem:
            try:
                content = self._opened.read(reject.source, start, stop)
            except StorageError:
                return reject
            if hashlib.sha256(content).hexdigest() == place.sha256:
                return dataclasses.replace(
                    reject, place=dataclasses.replace(place, start=start, stop=stop)
                )
        return reject
