"""The inventory step: lists the files, hashes their contents, and groups them into blocks.

No Beam. The hash cache knows the contents of unchanged files, so only files that changed are read.
Blocks are written to a few descriptor files; jobs carry only their paths.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

from ...schemas.blocks import Block, Selection, SourceFile, WorkUnit, packed
from ...schemas.errors import DamagedWorkError, DataError, SourceChangedError, StorageError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.recipe import CountsRows, CutsApart, HasRows, SelectsRows, Source
from ...transforms import storage
from ...transforms.activity import reading, working_on
from ...transforms.in_parts import in_batches
from ...transforms.sources.blocks import MIN_CUT_BYTES, cut_spacing, group_blocks
from ...transforms.sources.combined import (
    SourcePart,
    part_of,
    parts_of,
    with_prefix,
    without_prefix,
)
from ...transforms.storage import git_lfs
from ...transforms.storage.artifacts import put_artifact, read_artifact
from ...transforms.storage.opened_source import (
    NO_PERMISSION,
    OpenedSource,
    is_hidden,
    path_bytes,
)
from ...transforms.storage.tar import REPLACED
from ...transforms.storage.unchanged import COARSE_NS, settled_ns
from .exclusions import IdList, exclude_records, without_excluded
from .hash_cache import HashCache, Known, read_hash_cache
from .sample import lowest_files

_HELD_BYTES = 64 << 20
"""Maximum size of a file of a store that is kept in memory while it is hashed and cut."""
_holding = threading.BoundedSemaphore(4)
"""The number of files that are kept in memory at a time."""

STEP = "inventory"
EXCLUDED = "excluded by the recipe"
"""The reason why a file that is one excluded record is skipped."""

_BATCH_BYTES = 16 * 2**20
_BATCHES_AHEAD = 32
"""Batches that wait for each thread that hashes."""
_DESCRIPTORS = "blocks-2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How the work on a source is divided.

    Attributes:
        block_bytes: Of a block; by default it follows from the source's size.
        min_cut_bytes: Files up to this size are not cut.
        chunk_bytes: Files are hashed in chunks of this size: memory is bounded by this times the
            threads.
        batch_files: At most this many files are hashed between two reports of progress.
    """

    block_bytes: int | None = None
    min_cut_bytes: int = MIN_CUT_BYTES
    chunk_bytes: int = 4 << 20
    batch_files: int = 256

    def cut_spacing(self, num_bytes: int) -> int:
        """See :func:`.blocks.cut_spacing`."""
        return cut_spacing(
            num_bytes, block_bytes=self.block_bytes, min_cut_bytes=self.min_cut_bytes
        )


DEFAULT_SIZES = Sizes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inventory:
    """What a source holds.

    Attributes:
        files: The records' files, by path, each with its content's sha256 or its problem.
        num_skipped: How many files hold no records, by reason.
        num_bytes: Of all files together.
        blocks: The files as units of work.
        input_digest: Hash of all paths, contents and problems, hex.
        num_hashed: How many files had to be read to know their contents.
        selected: All records' files; those that a limit excludes, as they were listed.
        stop_key: The first key that a limit excludes; None without a limit.
    """

    files: Sequence[SourceFile]
    num_skipped: Mapping[str, int]
    num_bytes: int
    blocks: tuple[Block, ...]
    input_digest: str
    num_hashed: int
    selected: Sequence[SourceFile]
    stop_key: int | None = None


def take_inventory(
    source: Source,
    opened: OpenedSource,
    *,
    workspace: Workspace,
    progress: Progress,
    write: bool = True,
    limit: int | None = None,
    seed: int = 0,
    excluded: IdList | None = None,
    sizes: Sizes = DEFAULT_SIZES,
) -> Inventory:
    """Lists a source's files, hashes their contents and groups them into blocks.

    Args:
        source: Selects the records' files, and says where large ones may be cut.
        opened: The source's root.
        workspace: Holds the hash cache, which is rewritten only if it changed.
        progress: Receives how many files are known.
        write: False writes nothing: a dry run.
        limit: Takes this many files, those with the lowest keys, and reads no others.
        seed: The recipe's, which the keys depend on.
        excluded: Ids of the records that are left out.
        sizes: How the work is divided.

    Raises:
        DataError: if no file holds records, or some are pointers of Git LFS.
        StorageError: if the source cannot be listed, or changes while it is read.
    """
    parts = parts_of(source, opened)
    listings = [_list_part(part, excluded) for part in parts]
    selected = _joined((part, listing.files) for part, listing in zip(parts, listings, strict=True))
    wanted, stop_key = selected, None
    if limit is not None:
        alone = [file for file in selected if not file.of]
        lowest, stop_key = lowest_files(alone, limit=limit, seed=seed)
        records = {file.record_id for file in lowest}
        wanted = [file for file in selected if file.record_id in records]
    progress.start(STEP, total=len(wanted), unit="files")
    num_done = num_hashed = 0
    files_of_parts: list[tuple[SourcePart, Sequence[SourceFile]]] = []
    blocks: list[Block] = []
    for part, listing in zip(parts, listings, strict=True):
        cache = read_hash_cache(
            workspace.hash_cache,
            source=part.opened.url,
            cuts_by=_cuts_by(part.source, part.opened),
            num_kept=len(parts),
            min_cut_bytes=sizes.min_cut_bytes,
        )
        facts = _Facts()
        completed = _completed(
            part,
            without_prefix(wanted, part.prefix),
            cache=cache,
            facts=facts,
            sizes=sizes,
            advance=lambda num: progress.advance(STEP, done=num_done + num),  # noqa: B023
        )
        own = packed(SourceFile, completed)
        num_done += len(own)
        num_hashed += facts.num_hashed
        if facts.pointers:
            first = facts.pointers[0]
            raise git_lfs.refusal(part.opened.shown, num=len(facts.pointers), first=first)
        if write:
            known = own if limit is None else [*own, *_others(listing.files, own, cache, facts)]
            cache.write(known, cuts=facts.cuts, parts=facts.parts, listed_ns=listing.listed_ns)
        files_of_parts.append((part, own))
        grouped = group_blocks(
            [_provable(file, facts) for file in own] if facts.unsettled else own,
            facts.cuts,
            parts=facts.parts,
            block_bytes=sizes.block_bytes,
        )
        if listing.excluded is not None and part.source.numbered:
            grouped = exclude_records(grouped, listing.excluded, part.source)
        blocks += (part.among_all(block) for block in grouped)
    files = _joined(files_of_parts)
    skipped = collections.Counter[str]()
    for listing in listings:
        skipped.update(listing.num_skipped)
    reasons = ", ".join(f"{reason}: {number:,}" for reason, number in skipped.items())
    progress.finish(STEP, reused=not num_hashed, note=f"skips {reasons}" if reasons else "")
    if limit is not None:
        by_path = {file.path: file for file in files}
        selected = [by_path.get(file.path, file) for file in selected]
    return Inventory(
        files=files,
        num_skipped=dict(skipped),
        num_bytes=sum(file.num_bytes for file in files),
        blocks=tuple(blocks),
        input_digest=input_digest(files),
        num_hashed=num_hashed,
        selected=files if limit is None else selected,
        stop_key=stop_key,
    )


@dataclasses.dataclass(frozen=True)
class _Listing:
    """The files of one source."""

    files: Sequence[SourceFile]
    """Those with records."""
    num_skipped: Mapping[str, int]
    listed_ns: int
    """When they were listed, in ns since 1970."""
    excluded: IdList | None
    """The excluded records, by the ids that they have in this source."""


def _list_part(part: SourcePart, excluded: IdList | None) -> _Listing:
    """Lists the files of one source, without those that are excluded records.

    Raises:
        DataError: if none holds records.
        StorageError: if they cannot be listed.
    """
    listed_ns = time.time_ns()
    listed = part.opened.list()
    selection = _select(part.source, listed)
    if isinstance(part.source, SelectsRows):
        selection = part.source.select_listed(selection, part.opened)
    if excluded is not None:
        excluded = IdList(part.own_ids(excluded.ids))
    if excluded is not None and not part.source.numbered:
        files = without_excluded(selection.files, excluded)
        num_excluded = sum(file.record_id in excluded for file in selection.files if not file.of)
        num_skipped = {**selection.num_skipped, EXCLUDED: num_excluded}
        selection = Selection(files=files, num_skipped=num_skipped)
    if not selection.files:
        with part.naming():
            raise DataError(
                _say_none(part.source, part.opened, listed, num_skipped=selection.num_skipped)
            )
    return _Listing(selection.files, selection.num_skipped, listed_ns, excluded)


def _select(source: Source, listed: Sequence[SourceFile]) -> Selection:
    """The files that a source selects, and all that cannot be read: these are not its to skip.

    A source knows files by their names, but a broken link may stand for a folder of records.
    Members of an archive that later ones replace are only counted.
    """
    with_problems = [file for file in listed if file.problem]
    replaced = sum(file.problem == REPLACED for file in with_problems)
    if replaced:
        selection = _select(source, [file for file in listed if file.problem != REPLACED])
        num_skipped = {**selection.num_skipped, REPLACED: replaced}
        return dataclasses.replace(selection, num_skipped=num_skipped)
    selection = source.select(listed)
    unread = [file for file in with_problems if not is_hidden(file.path)]
    if unread:
        selected = {file.path for file in selection.files}
        unread = [file for file in unread if file.path not in selected]
    if not unread:
        return selection
    paths = {file.path for file in unread}
    selection = source.select([file for file in listed if file.path not in paths])
    files = sorted([*selection.files, *unread], key=lambda file: path_bytes(file.path))
    return Selection(files=tuple(files), num_skipped=selection.num_skipped)


def _joined(files: Iterable[tuple[SourcePart, Sequence[SourceFile]]]) -> Sequence[SourceFile]:
    """The files of all sources, as paths of the recipe."""
    first, *others = [with_prefix(own, part.prefix) for part, own in files]
    return packed(SourceFile, itertools.chain(first, *others)) if others else first


@dataclasses.dataclass
class _Facts:
    """What is noted of one source's files besides themselves: most have none of it."""

    cuts: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    unsettled: set[str] = dataclasses.field(default_factory=set)
    """Files that may have changed since they were hashed without another stamp."""
    pointers: list[str] = dataclasses.field(default_factory=list)
    """Pointers of Git LFS."""
    num_hashed: int = 0

    def note(self, path: str, known: Known) -> None:
        """Notes how a file may be cut."""
        if known.cuts:
            self.cuts[path] = known.cuts
        if known.parts:
            self.parts[path] = known.parts


def _completed(
    part: SourcePart,
    files: Sequence[SourceFile],
    *,
    cache: HashCache,
    facts: _Facts,
    sizes: Sizes,
    advance: Callable[[int], None],
) -> Iterator[SourceFile]:
    """The files of one source, each with its content's sha256 or its problem."""
    num_done = 0
    learned = _learn(part.source, part.opened, files, cache=cache, sizes=sizes)
    with contextlib.closing(learned) as batches:
        for batch in batches:
            for file, content in zip(batch.files, batch.contents, strict=True):
                if isinstance(content, Known):
                    facts.note(file.path, content)
                elif content == git_lfs.PROBLEM:
                    facts.pointers.append(file.path)
                if settled_ns(file.stamp) > batch.hashed_ns:
                    facts.unsettled.add(file.path)
                yield _complete(file, content)
            num_done += len(batch.files)
            facts.num_hashed += batch.num_unknown
            if facts.num_hashed:
                advance(num_done)


def _others(
    listed: Iterable[SourceFile], taken: Iterable[SourceFile], cache: HashCache, facts: _Facts
) -> Iterator[SourceFile]:
    """The other listed files whose contents are known."""
    paths = {file.path for file in taken}
    for file in listed:
        if file.path not in paths and (content := _find(cache, file)) is not None:
            facts.note(file.path, content)
            yield _complete(file, content)


def _find(cache: HashCache, file: SourceFile) -> Known | None:
    return None if file.problem else cache.find(file)


def input_digest(files: Sequence[SourceFile]) -> str:
    """Hash of the paths, contents and problems of files, hex."""
    quoted = json.encoder.encode_basestring_ascii
    lines = (
        f"[{quoted(file.path)}, {quoted(file.sha256)}, {quoted(file.problem)}]\n" for file in files
    )
    hasher = hashlib.sha256()
    for line in lines:
        hasher.update(line.encode("ascii"))
    return hasher.hexdigest()


def count_unused_rows(inventory: Inventory, source: Source, opened: OpenedSource) -> Inventory:
    """The inventory, with the number of rows of a side table that belong to none of its files.

    Raises:
        DataError: if the table cannot be parsed.
        StorageError: if it cannot be read.
    """
    if not isinstance(source, CountsRows):
        return inventory
    num_unused = source.num_unused_rows(inventory.files, opened)
    if not num_unused:
        return inventory
    num_skipped = {**inventory.num_skipped, "row of the table without a file": num_unused}
    return dataclasses.replace(inventory, num_skipped=num_skipped)


def with_rows(
    inventory: Inventory,
    source: Source,
    opened: OpenedSource,
    *,
    features: Features,
    missing: Mapping[str, Sequence[str]],
) -> Inventory:
    """The inventory, with blocks identified by all that shapes them, besides their files.

    Args:
        inventory: The inventory.
        source: Says for each block what a side table has for its files.
        opened: The source's root.
        features: The features of the records as read.
        missing: Those that each of several sources lacks, by the source's name.

    Raises:
        SchemaError: if the table does not have these features.
        StorageError: if it cannot be read.
    """
    if not isinstance(source, HasRows):
        return inventory
    parts = parts_of(source, opened)
    blocks = []
    for block in inventory.blocks:
        lacks = missing.get(part_of(parts, block.ranges[0].path).name, ())
        known = dataclasses.replace(block, missing=tuple(n for n in lacks if n in features))
        rows = source.rows_digest(known, features=features, opened=opened)
        blocks.append(dataclasses.replace(known, rows=rows))
    return dataclasses.replace(inventory, blocks=tuple(blocks))


def write_descriptors(
    blocks: Sequence[WorkUnit],
    workspace: Workspace,
    *,
    max_blocks: int = 1_000,
    max_ranges: int = 50_000,
) -> list[str]:
    """Writes blocks to descriptor files, JSON Lines, unless they exist.

    They are named by their blocks, and so by the content of the source's files. Their stamps are
    those of the last build.

    Args:
        blocks: The blocks.
        workspace: Where the files are written.
        max_blocks: Of a file.
        max_ranges: A file ends after the block that reaches this number of ranges.

    Returns:
        The files' URLs, in the order of the blocks.

    Raises:
        StorageError: if one cannot be written.
    """
    urls = []
    for group in _descriptor_groups(blocks, max_blocks, max_ranges):
        ids = "\n".join(block.block_id for block in group)
        url = workspace.blocks(hashlib.sha256(ids.encode()).hexdigest()[:32])
        content = b"".join(block.to_line() + b"\n" for block in group)
        if read_artifact(url, what=_DESCRIPTORS) != content:
            put_artifact(url, content, what=_DESCRIPTORS)
        urls.append(url)
    return urls


def read_descriptors(url: str) -> list[bytes]:
    """Reads a descriptor file: a line for each block, for ``Block.from_line``.

    Raises:
        DamagedWorkError: if it differs from what was written.
        StorageError: if it cannot be read.
    """
    content = read_artifact(url, what=_DESCRIPTORS)
    if content is None:
        storage.read_bytes(url)  # raises the reason if it is missing
        raise DamagedWorkError(f"{storage.redact(url)} is damaged. Run the same command again.")
    return content.splitlines()


def _descriptor_groups(
    blocks: Sequence[WorkUnit], max_blocks: int, max_ranges: int
) -> Iterator[list[WorkUnit]]:
    def num_ranges(block: WorkUnit) -> int:
        return len(block.ranges) if isinstance(block, Block) else 1

    return in_batches(blocks, num_ranges, max_size=max_ranges, max_items=max_blocks)


@dataclasses.dataclass
class _Batch:
    """Files that are hashed together."""

    files: list[SourceFile]
    contents: list[Known | str | None]
    """Of each file, or its problem; None if it is unknown."""
    num_unknown: int
    hashed_ns: int
    """When they were hashed, at the earliest, in ns since 1970."""


def _learn(
    source: Source,
    opened: OpenedSource,
    files: Iterable[SourceFile],
    *,
    cache: HashCache,
    sizes: Sizes,
) -> Generator[_Batch]:
    """The files with their contents, in order; reads those that the cache lacks, in threads."""
    # A store is slow but answers many requests at once; files on a disk cost processor time; an
    # archive is one file, read at one position at a time.
    num_threads = min(8, os.cpu_count() or 1) if opened.local else 1 if opened.archived else 16
    stopped = threading.Event()

    def learn(batch: _Batch) -> _Batch:
        with working_on(f"hashing {len(batch.files):,} files from {batch.files[0].path} on"):
            for number, file in enumerate(batch.files):
                if batch.contents[number] is None and not file.problem:
                    batch.contents[number] = _learn_small_file(
                        opened, file, max_bytes=sizes.min_cut_bytes
                    ) or _learn_file(source, opened, file, sizes=sizes, stopped=stopped)
        return batch

    with concurrent.futures.ThreadPoolExecutor(num_threads, "inventory") as pool:
        pending: collections.deque[concurrent.futures.Future[_Batch]] = collections.deque()
        try:
            batches = in_batches(
                files,
                lambda file: file.num_bytes,
                max_size=_BATCH_BYTES,
                max_items=sizes.batch_files,
            )
            for batch in batches:
                contents: list[Known | str | None] = [_find(cache, file) for file in batch]
                unknown = [
                    file
                    for file, content in zip(batch, contents, strict=True)
                    if content is None and not file.problem
                ]
                hashed_ns = _settle(unknown)
                pending.append(pool.submit(learn, _Batch(batch, contents, len(unknown), hashed_ns)))
                if len(pending) > _BATCHES_AHEAD * num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _settle(files: Sequence[SourceFile]) -> int:
    """Waits until any further change of files just written would change their stamps.

    Returns:
        When that was, in ns since 1970.
    """
    now = time.time_ns()
    wait_ns = max((settled_ns(file.stamp) for file in files), default=0) - now
    if 0 < wait_ns <= COARSE_NS:
        time.sleep(wait_ns / 1e9)
        now += wait_ns
    return now


def _provable(file: SourceFile, facts: _Facts) -> SourceFile:
    """The file, without its stamp if a change since it was hashed might not have changed it."""
    return dataclasses.replace(file, stamp="") if file.path in facts.unsettled else file


def _learn_small_file(
    opened: OpenedSource, file: SourceFile, *, max_bytes: int
) -> Known | str | None:
    """The content of a small local file; None if it is not as it was listed, or large."""
    if not opened.local or file.num_bytes > max_bytes:
        return None
    reading(file.path)
    content = storage.read_expected(opened.full_path(file.path), file.num_bytes, file.stamp)
    if content is None:
        return None
    if git_lfs.is_pointer(content):
        return git_lfs.PROBLEM
    sha256 = hashlib.sha256(content).hexdigest()
    return Known(num_bytes=file.num_bytes, stamp=file.stamp, sha256=sha256)


def _learn_file(
    source: Source,
    opened: OpenedSource,
    file: SourceFile,
    *,
    sizes: Sizes,
    stopped: threading.Event,
) -> Known | str:
    if not opened.archived:  # an archive is compared once, by the reader of a block of its members
        opened = opened.proving([dataclasses.replace(file, sha256="")])
    # Where to cut it, and what is in the parts, is found by reading it two more times.
    large = file.num_bytes > sizes.min_cut_bytes
    holds = large and not opened.local and file.num_bytes <= _HELD_BYTES
    with _holding if holds else contextlib.nullcontext():
        digest, held = hashlib.sha256(), bytearray()
        num_bytes = 0
        try:
            if file.num_bytes <= sizes.chunk_bytes:
                # In one request.
                chunks: Iterable[bytes] = [opened.read(file.path)]
            else:
                chunks = opened.chunks(file.path, chunk_bytes=sizes.chunk_bytes)
            for chunk in chunks:
                if stopped.is_set():
                    return "not read"
                if file.num_bytes <= git_lfs.MAX_BYTES and git_lfs.is_pointer(chunk):
                    return git_lfs.PROBLEM
                digest.update(chunk)
                num_bytes += len(chunk)
                if holds:
                    held += chunk
        except SourceChangedError:
            raise
        except StorageError as error:
            # A store refuses credentials, which may have expired, and not a file.
            if opened.local and isinstance(error.__context__, PermissionError):
                return NO_PERMISSION
            if not opened.archived:
                raise
            return "damaged or encrypted in its archive"
        if num_bytes != file.num_bytes:
            opened.check()
            look = opened.look(file.path)
            if opened.archive_changed() or look is None or look.num_bytes != file.num_bytes:
                raise SourceChangedError.of(opened.place(file.path))
            raise DataError(
                f"{opened.place(file.path)} cannot be read: its listing states {file.num_bytes:,} "
                f"bytes, and reading it gave {num_bytes:,}. Copy the file, and read the copy."
            )
        content = _HeldFile(**opened.__getstate__(), content=held) if holds else opened
        every = sizes.cut_spacing(file.num_bytes)
        cuts = source.cuts(file, content, every=every) if large else ()
        parts: tuple[str, ...] = ()
        if cuts and isinstance(source, CutsApart):
            head = content.read(file.path, 0, source.head_bytes(file, content))
            ends = itertools.pairwise([0, *cuts, file.num_bytes])
            parts = tuple(
                _hash_part(content, file.path, *span, head=head, chunk_bytes=sizes.chunk_bytes)
                for span in ends
            )
        opened.check()
    return Known(
        num_bytes=file.num_bytes,
        stamp=file.stamp,
        sha256=digest.hexdigest(),
        cuts=tuple(cuts),
        parts=parts,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _HeldFile(OpenedSource):
    """A source of which one file is read from memory."""

    content: bytearray = dataclasses.field(repr=False)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """See :meth:`OpenedSource.read`."""
        reading(path)
        return bytes(self.content[start:stop])


def _hash_part(
    opened: OpenedSource, path: str, start: int, stop: int, *, head: bytes, chunk_bytes: int
) -> str:
    """Hash of a range of a file, and of the head that its records depend on."""
    digest = hashlib.sha256(hashlib.sha256(head).digest())
    for place in range(start, stop, chunk_bytes):
        digest.update(opened.read(path, place, min(stop, place + chunk_bytes)))
    return digest.hexdigest()


def _complete(file: SourceFile, content: Known | str | None) -> SourceFile:
    if isinstance(content, Known):
        return dataclasses.replace(file, sha256=content.sha256, problem="")
    problem = file.problem or content or "not read"
    return dataclasses.replace(file, num_bytes=0, problem=problem)


def _cuts_by(source: Source, opened: OpenedSource) -> str:
    """A digest of what decides where files are cut."""
    parts: list[object] = [type(source).__qualname__, source.settings()]
    if changed := opened.limits.changed():
        parts.append(changed)
    described = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:32]


def _say_none(
    source: Source,
    opened: OpenedSource,
    listed: Sequence[SourceFile],
    *,
    num_skipped: Mapping[str, int],
) -> str:
    kind = type(source).__name__
    if not listed:
        return (
            f"{kind}: {opened.shown} holds no files. Put the data there, or correct the source "
            "in the recipe."
        )
    reasons = collections.Counter(dict(num_skipped)).most_common()
    skipped = "; ".join(f"{reason}: {number:,}" for reason, number in reasons)
    return (
        f"{kind}: none of the {len(listed):,} files in {opened.shown} holds records "
        f"(first: {listed[0].path!r}). Skipped by reason: {skipped or 'none'}. Correct the "
        "source in the recipe, or lay the files out as it expects."
    )
