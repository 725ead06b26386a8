"""The recipe: what the user declares, and the protocols of its parts."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from .blocks import Block, RawBatch, Selection, SourceFile
from .config import check_revision, check_texts, html_of_settings, repr_of_settings
from .errors import RecipeError
from .features import Feature, Features, Struct, flatten, wire_columns
from .limits import DEFAULT_LIMITS, Limits
from .reject_budgets import Budget, allowed_rejects, check_budget
from .shards import Shards
from .splits import Splits, is_fold

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_PACKAGE = __name__.split(".")[0]


class OpenSource(Protocol):
    """Read access to a source's root; build steps pass it to a Source."""

    @property
    def filesystem(self) -> AbstractFileSystem:
        """The fsspec filesystem of the source's root."""

    @property
    def limits(self) -> Limits:
        """Limits on the data of its files."""

    def full_path(self, path: str) -> str:
        """The filesystem's path of a file, given relative to the root."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes [start, stop) of a file; to the end of the file if stop is None."""

    def hold(self, path: str) -> None:
        """Must be called before a file is read by other means: its content must be verified."""

    def open_local(self, path: str) -> io.FileIO:
        """Opens a local file registered by :meth:`hold` and verifies that it is the same file."""

    def note(self, paths: Iterable[str]) -> None:
        """Like :meth:`hold`, for parts of many files of a store, which are compared afterwards."""

    def read_side(self, url: str) -> bytes:
        """Reads a complete side file: one of the source's ``side_urls``."""

    def side_digest(self, url: str) -> str:
        """The sha256 of a side file, hex; where it is known, the file is not read."""

    def side(self, url: str) -> tuple[OpenSource, str]:
        """Opens one of the source's ``side_urls``; returns its root, and its path there."""


@runtime_checkable
class Source(Protocol):
    """Raw files of one format: which files are records, and how they become columns.

    Implementations are frozen, hold only what the user wrote, and read nothing until a method is
    called. A source that calls user functions lists them in an attribute ``functions``, a tuple:
    their code enters the fingerprint.
    """

    @property
    def url(self) -> str:
        """Location of the files: a path or any fsspec URL, or a glob if the format allows it."""

    @property
    def label(self) -> str | None:
        """Name of the feature to predict, if there is one."""

    @property
    def media(self) -> bool:
        """Whether records are media files: then 1 % may be rejected by default, otherwise none."""

    @property
    def numbered(self) -> bool:
        """Whether ids are ``path#position``: several records per file."""

    @property
    def side_urls(self) -> tuple[str, ...]:
        """URLs of files that affect the records but contain none, such as a table of labels.

        Relative ones are resolved like the source's own URL. Their contents enter the fingerprint.
        """

    def settings(self) -> dict[str, object]:
        """The settings that affect the records, as plain JSON for the fingerprint, without URLs."""

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Separates files with records from files to skip. Pure."""

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Ascending byte offsets at which a file may be cut, about ``every`` bytes apart.

        They may be farther apart, or none, and closer where the format has its own units.
        """

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """Infers the features of the records as read, from names and contents."""

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block in batches of bounded size, its ranges in the order of ``ordered``.

        A record that cannot be read or does not match ``features`` becomes a reject; no content of
        the data makes this raise.
        """


@runtime_checkable
class ExtractedSource(Protocol):
    """Records that are not in files, such as query results: a build first copies them into files.

    They are then read like any others. Implementations are frozen, hold only what the user wrote,
    and read nothing until a method is called.
    """

    @property
    def label(self) -> str | None:
        """Name of the feature to predict, if there is one."""

    @property
    def media(self) -> bool:
        """See :attr:`Source.media`."""

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Source:
        """Copies all records into files; returns the source that reads them.

        Files are named by their content: unchanged ones are not written again. The files and the
        returned source's settings enter the fingerprint; the origin of the records does not.

        Args:
            folder: The workspace's folder for all extracted files; it may not exist yet.
            base: The recipe's folder; relative paths are resolved against it.
            limits: The recipe's limits on what files may request.

        Raises:
            RecipeError: if the recipe's settings are invalid.
            DataError: if there are no records, or they cannot be distinguished.
            StorageError: if reading or writing fails.
        """


def reads_files(source: Source | ExtractedSource) -> TypeGuard[Source]:
    """Whether a source's records are in files, those of each if it is several sources."""
    parts: Iterable[Any] = getattr(source, "sources", ())
    return all(reads_files(part) for _, part in parts) if parts else isinstance(source, Source)


@runtime_checkable
class CountsRows(Protocol):
    """A source with a side table whose rows may match no file."""

    def num_unused_rows(self, files: Sequence[SourceFile], opened: OpenSource) -> int:
        """Number of the table's rows that match none of the files."""


@runtime_checkable
class SelectsRows(Protocol):
    """A source that may skip files without a row in its side table."""

    def select_listed(self, selection: Selection, opened: OpenSource) -> Selection:
        """The selection, without files that are skipped for lack of a row."""


@runtime_checkable
class HasRows(Protocol):
    """A source whose side files, if it has any, are a table with a row for each file.

    A block is then identified by the rows of its files: a changed row changes one block.
    """

    def rows_digest(self, block: Block, *, features: Features, opened: OpenSource) -> str:
        """Hash of all that the table says of a block's files, read as ``features``.

        Empty if there is no table.
        """


@runtime_checkable
class Remarks(Protocol):
    """A source that reads some of its data in a way that users should know of."""

    def remarks(self, files: Sequence[SourceFile], opened: OpenSource) -> Sequence[str]:
        """One line for each such finding, after ``infer`` has returned."""


@runtime_checkable
class NamesNumbers(Protocol):
    """A source whose files may say which classes their numbers are."""

    def named_numbers(self, files: Sequence[SourceFile], opened: OpenSource) -> Set[str]:
        """The features of such numbers: their classes have the files' order, and no other."""


@runtime_checkable
class CutsApart(Protocol):
    """A source whose file ranges are independent: no record depends on another range.

    Ids must contain byte offsets: row numbers depend on everything before them.
    """

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """Bytes at the start of a file that affect all its records, such as a header."""


@runtime_checkable
class NumbersRecords(Protocol):
    """A source whose ids contain row numbers instead of byte offsets."""

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> int | None:
        """Approximate byte offset of a row in its file; None if unknown."""


@runtime_checkable
class PrepareStep(Protocol):
    """One deterministic step on single records, in TensorFlow operations.

    Steps are compiled together and run on complete batches; a batch that fails is run again
    record by record to find the cause. A step may have the additional attributes listed in
    :class:`StepTraits`.
    """

    def settings(self) -> dict[str, object]:
        """The settings that affect the output, as plain JSON for the fingerprint."""

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if the step cannot process these features.
        """

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Maps one record, name -> tensor, in TensorFlow operations.

        Each optional feature has an additional entry ``presence_name(name)``, a bool: where it is
        False, the tensor is the feature's fill value. A step that makes a feature required drops
        this entry.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTraits:
    """The optional attributes of a step, under these names.

    >>> StepTraits.of(object()).batched
    False
    """

    batched: bool = False
    """``apply()`` also accepts tensors with a leading batch dimension (``tf.RaggedTensor`` where
    lists vary in length), and is elementwise over records: each result is independent of all other
    records, to the bit. Complete batches are then processed at once, without a loop."""
    moves_only: bool = False
    """The step only selects and renames features and reads no values: it needs no TensorFlow, and
    ``apply()`` works on any objects."""
    on_columns: Callable[..., Any] | None = None
    """``on_columns(columns, features)`` gives the wire columns of the step's new features, by name,
    from a batch of wire columns: what ``apply()`` gives, without TensorFlow. The step passes on the
    other features as they are, or removes them."""
    sees_features: bool = False
    """``apply()`` takes the record's features as its second argument."""
    filters: bool = False
    """The step selects the records to keep; dropped ones are counted and are not rejects."""
    export_obstacle: str = ""
    """Why the step cannot be exported for serving, for example because it runs Python; empty if it
    can."""
    functions: tuple[Callable[..., Any], ...] = ()
    """The user's functions that the step calls; their code enters the fingerprint."""
    files: tuple[str, ...] = ()
    """Paths or URLs of files whose contents the step needs; relative to the recipe's folder. They
    enter the fingerprint by content and are passed to ``with_files(contents)``, as bytes in this
    order, which returns the step to run."""

    @classmethod
    def of(cls, step: object) -> StepTraits:
        """The traits of a step or function."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(step, name) for name in names if hasattr(step, name)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SortedRecords:
    """Some records of a range, in the order that a step across records requested."""

    ids: Sequence[str]
    prefixes: Any
    """pa.LargeBinaryArray[n]: each record's prefix from :meth:`CrossStep.order`."""
    splits: Any
    """int16[n]: index of each record's split."""
    columns: Any
    """pa.RecordBatch of n rows: the wire columns of the features before the step."""
    numbered: bool = False
    """Whether ids are ``path#position``."""


@runtime_checkable
class CrossStep(Protocol):
    """One deterministic step across records, independent of their files and blocks.

    All records are sorted by (key, prefix, id) on disk and merged by ranges of the key; those
    whose keys share their first 12 bits always reach the same call of :meth:`merge`.
    """

    @property
    def prefix_bytes(self) -> int:
        """Length in bytes of each prefix that :meth:`order` returns."""

    def settings(self) -> dict[str, object]:
        """The settings that affect the output, as plain JSON for the fingerprint."""

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if the step cannot process these features.
        """

    def check(self, splits: Splits) -> None:
        """Refuses splits that the step would leak across, or that it cannot know.

        Raises:
            RecipeError: for such splits; the message says which to use instead.
        """

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """The sort order of records: uint64[n] keys, and large_binary[n] prefixes."""

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Makes new records from those of a range, in batches of bounded size.

        A record's id determines its key and, in a hash split, its split; it must be the id of one
        of the records that it is made from.
        """


PreprocessingFn = Callable[[dict[str, Any]], dict[str, Any]]
RecordFn = Callable[[dict[str, Any]], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to build a snapshot from, and how.

    Attributes:
        name: Name of the snapshot's folder. ASCII letters, digits, '_', '.', '-'.
        source: The source of the records, or several as ``ss.Sources``; relative paths are resolved
            against the recipe's folder.
        prepare: Steps, in order: built-in ones (``ss.images.resize``, ``ss.series.windows``) or
            your own TensorFlow functions on single records, ``dict of tensors -> dict of
            tensors``.
        preprocessing_fn: A tensorflow-transform ``preprocessing_fn``; its analyzers see only the
            split called ``train``. The examples then contain exactly its outputs.
        label: The feature to predict: the name of any feature of the examples, however it was made.
            None means the label of the source (or of the last step that makes one, such as
            ``ss.series.windows``), under the name that ``ss.records.rename`` gave it.
        splits: Names and fractions. By default 0.8 train, 0.1 validation and 0.1 test; a build
            with so few records that one of them would be empty fails.
        shards: Sizes, numbers, compression.
        features: The features of the prepared records. None infers them; declared ones are
            enforced.
        seed: Part of every record's key: another seed gives another order and other splits.
        revision: Another number prepares the blocks that hold rejects again: for causes outside of
            the recipe and the data, such as a service that did not answer. See docs/rejects.md.
        max_rejects: How many records may be rejected: a fraction of all (a float; 1.0 allows all
            of them) or a count (an int; 1 is one record). None means 0 for tables and 1 % for
            media. By stage: ``{"read": 0.01, "validate": 0, "total": 100}``. Stages that are not
            named share the ``total``; without a ``total``, each of them has the budget that None
            means.
        limits: Limits on the size of single files, rows and values.
        analyze_on_runner: Runs the analysis on the engine, for data that takes one process too
            long. Means and quantiles may then differ in their last bits between such builds.
        exclude: A text file of record ids, one per line, whose records are left out for good, such
            as those of takedown requests; lines that begin with ``# `` are comments. Relative to
            the recipe's folder, or a URL. See docs/takedown.md.
        near_duplicates: Whether a build counts images and texts that resemble one in another split:
            None counts them in data of up to 50,000 prepared records and 128 MiB. Changes no file
            of the snapshot but ``build.json``. See docs/duplicates.md.
        transform_from: A snapshot whose transform graph is used instead of an analysis, or the
            folder of a graph in a workspace. Relative paths are resolved against the recipe's
            folder.
        depends_on: Files and values that the recipe's functions depend on without their code
            showing it: files that they open, or inputs of an object that cannot be hashed. A str
            or Path is a file, a folder (all its files) or a glob, relative to the recipe's folder,
            or a URL; everything else is a value (write a string value as ``("text",)``). Contents
            and values enter the fingerprint. If an object cannot be hashed, so do all files that
            the recipe's code opens while it is loaded.
        description: What the data is, for people. This and the following are kept in ``build.json``
            and shown by ``inspect`` and ``list``; the fingerprint does not depend on them, and
            building again with others changes nothing else.
        version: A version of the data, such as ``"2026.1"``.
        license: The licence of the data, such as ``"CC-BY-4.0"``.
        citation: How to cite it.
        tags: Short texts to find it by.
    """

    name: str
    source: Source | ExtractedSource
    prepare: Sequence[PrepareStep | CrossStep | RecordFn] = ()
    preprocessing_fn: PreprocessingFn | None = None
    label: str | None = None
    splits: Splits = dataclasses.field(
        default_factory=lambda: Splits(train=0.8, validation=0.1, test=0.1)
    )
    shards: Shards = dataclasses.field(default_factory=Shards)
    features: Mapping[str, Feature | Struct] | None = None
    seed: int = 0
    revision: int = 0
    max_rejects: Budget = None
    exclude: str | os.PathLike[str] | None = None
    near_duplicates: bool | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)
    analyze_on_runner: bool = False
    transform_from: str | None = None
    depends_on: Sequence[Any] = ()
    description: str = ""
    version: str = ""
    license: str = ""
    citation: str = ""
    tags: Sequence[str] = ()
    folder: str = dataclasses.field(init=False, compare=False, repr=False, default="")
    """Folder of the file that created the recipe; relative sources are resolved against it."""
    file: str = dataclasses.field(init=False, compare=False, repr=False, default="")
    """That file; its lock is beside it. Empty if there is none, as in a notebook."""
    structs: tuple[str, ...] = dataclasses.field(init=False, compare=False, repr=False, default=())
    """Names of declared structs; ``features`` contains their fields as ``<struct>.<field>``."""

    contents: Mapping[str, bytes] = dataclasses.field(
        init=False, compare=False, repr=False, default_factory=dict
    )
    """Contents of files that steps need (vocabularies), by the path that the step gives."""
    loaded_files: Mapping[str, tuple[int, ...] | None] | None = dataclasses.field(
        init=False, compare=False, repr=False, default=None
    )
    """Files that the recipe's code opened while it was loaded: absolute path -> its identity then.

    None if this was not observed: the recipe was not loaded from a file."""

    __repr__ = repr_of_settings
    _repr_html_ = html_of_settings

    def __post_init__(self) -> None:
        """Validates the recipe, and flattens its features.

        Raises:
            RecipeError: if a setting is invalid; the message names it and what is expected.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RecipeError(
                f"Recipe: name={self.name!r} is not a valid folder name. Use up to 100 ASCII "
                "letters, digits, '_', '.' and '-', starting with a letter or digit."
            )
        if not isinstance(self.source, Source | ExtractedSource):
            several = (
                " For several files of one format, give a folder or a glob, as in "
                'ss.Csv("tables/*.csv"); for several sources, name them: '
                'ss.Sources(old=ss.Csv("a.csv"), new=ss.Parquet("b")).'
            )
            raise RecipeError(
                f"Recipe: source={reprlib.repr(self.source)} is not a source. Write for example "
                'ss.ImageFolder("folder") or ss.Csv("table.csv").'
                + (several if isinstance(self.source, list | tuple | set | Mapping) else "")
            )
        if not isinstance(self.prepare, list | tuple):
            raise RecipeError(
                f"Recipe: prepare={self.prepare!r} is not a list of steps. Write prepare=[…]."
            )
        object.__setattr__(self, "prepare", tuple(self.prepare))
        for step in self.prepare:
            # An object that answers every attribute has none in its class.
            has_settings = hasattr(type(step), "settings")
            is_step = (has_settings and isinstance(step, PrepareStep | CrossStep)) or callable(step)
            if isinstance(step, type) or not is_step:  # a class has its instances' methods
                raise RecipeError(
                    f"Recipe: prepare contains {step!r}, expected a step such as "
                    'ss.images.decode("image"), or a function of a record.'
                )
        if self.label is not None:
            if not isinstance(self.label, str) or not self.label:
                raise RecipeError(
                    f"Recipe: label={self.label!r} is not the name of a feature. Write for example "
                    'label="diagnosis".'
                )
            check_texts("Recipe", {"label": self.label})
        if self.exclude is not None:
            if not isinstance(self.exclude, str | os.PathLike) or not os.fspath(self.exclude):
                raise RecipeError(
                    f"Recipe: exclude={self.exclude!r} is not the path of a text file with one "
                    'record id per line. Write for example exclude="ids.txt".'
                )
            object.__setattr__(self, "exclude", os.fspath(self.exclude))
            check_texts("Recipe", {"exclude": self.exclude})
        if self.near_duplicates is not None and not isinstance(self.near_duplicates, bool):
            raise RecipeError(
                f"Recipe: near_duplicates={self.near_duplicates!r}, expected True, False or None."
            )
        kinds = (("splits", Splits), ("shards", Shards), ("limits", Limits))
        for argument, kind in kinds:
            if not isinstance(getattr(self, argument), kind):
                raise RecipeError(
                    f"Recipe: {argument}={getattr(self, argument)!r}, expected "
                    f"ss.{kind.__name__}(…)."
                )
        _check_analysis(
            self.preprocessing_fn,
            analyze_on_runner=self.analyze_on_runner,
            transform_from=self.transform_from,
            split_names=self.splits.names,
        )
        if self.features is not None:
            self._flatten_features(self.features)
        if isinstance(self.depends_on, str) or not isinstance(self.depends_on, list | tuple):
            raise RecipeError(
                f"Recipe: depends_on={self.depends_on!r} is not a list of files and values. Write "
                'for example depends_on=["masks/*.png"].'
            )
        object.__setattr__(self, "depends_on", tuple(self.depends_on))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise RecipeError(f"Recipe: seed={self.seed!r} is not an integer.")
        check_revision(self.revision)
        object.__setattr__(self, "max_rejects", check_budget(self.max_rejects))
        self._check_metadata()
        file = _calling_file()
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "folder", os.path.dirname(file) or os.getcwd())

    def _flatten_features(self, features: object) -> None:
        """Checks declared features and flattens structs into separate features."""
        if not isinstance(features, Mapping):
            raise RecipeError(
                f"Recipe: features={features!r} is not a dict. Write for example "
                '{"label": ss.ClassLabel(("no", "yes"))}.'
            )
        if not features:
            raise RecipeError(
                "Recipe: features={} is empty: nothing would be stored. Declare at least one "
                "feature, or leave features= out to infer them."
            )
        for name, feature in features.items():
            if not isinstance(name, str) or not isinstance(feature, Feature | Struct):
                raise RecipeError(
                    f"Recipe: features declares {name!r} as {feature!r}, expected a name and a "
                    "feature such as ss.Image(…), ss.ClassLabel(…) or ss.Scalar(…)."
                )
        check_texts("Recipe", {"features": list(features)})
        flat, structs = flatten(features)
        wire_columns(flat)
        object.__setattr__(self, "features", flat)
        object.__setattr__(self, "structs", structs)

    def _check_metadata(self) -> None:
        for name in ("description", "version", "license", "citation"):
            if not isinstance(getattr(self, name), str):
                raise RecipeError(f"Recipe: {name}={getattr(self, name)!r} is not a string.")
        are_texts = isinstance(self.tags, list | tuple) and all(
            isinstance(tag, str) for tag in self.tags
        )
        if not are_texts:
            raise RecipeError(
                f"Recipe: tags={self.tags!r} is not a list of strings. Write for example "
                'tags=["images", "medical"].'
            )
        object.__setattr__(self, "tags", tuple(self.tags))
        check_texts("Recipe", self.metadata)

    @property
    def metadata(self) -> dict[str, str | list[str]]:
        """What describes the data for people, by name; only what is given."""
        texts = {
            "description": self.description,
            "version": self.version,
            "license": self.license,
            "citation": self.citation,
        }
        given: dict[str, str | list[str]] = {name: text for name, text in texts.items() if text}
        return {**given, "tags": list(self.tags)} if self.tags else given

    @property
    def files(self) -> Source:
        """The source, whose records are in files: its own, or those they were extracted to.

        Raises:
            TypeError: if they have not been extracted (by ``pipelines.inventory.survey``).
        """
        if not reads_files(self.source):
            raise TypeError(f"{type(self.source).__name__} has not been extracted")
        return self.source

    def reject_budgets(self, num_records: int) -> dict[str, int]:
        """How many of ``num_records`` may be rejected, by stage and in ``total``."""
        default = 0.01 if self.source.media else 0
        return allowed_rejects(self.max_rejects, num_records, default=default)


def _calling_file() -> str:
    """The innermost file on the stack outside this package; empty if it is none.

    Determined by the frames' module names: in an editable install the package's folder also
    contains the examples and tests.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] != _PACKAGE:
            path = frame.f_code.co_filename
            return os.path.abspath(path) if os.path.exists(path) else ""
        frame = frame.f_back
    return ""


def _check_analysis(
    preprocessing_fn: object,
    *,
    analyze_on_runner: object,
    transform_from: object,
    split_names: Sequence[str],
) -> None:
    """Checks the arguments; reads nothing.

    Raises:
        RecipeError: if one is invalid; the message names it, its value and what is expected.
    """
    if preprocessing_fn is not None and not callable(preprocessing_fn):
        raise RecipeError(f"Recipe: preprocessing_fn={preprocessing_fn!r} is not a function.")
    if not isinstance(analyze_on_runner, bool):
        raise RecipeError(f"Recipe: analyze_on_runner={analyze_on_runner!r}, expected a bool.")
    if transform_from is not None:
        if not isinstance(transform_from, str) or not transform_from:
            raise RecipeError(
                f"Recipe: transform_from={transform_from!r}, expected the path or URL of a "
                "snapshot, or of a transform graph in a workspace."
            )
        if analyze_on_runner:
            raise RecipeError(
                "Recipe: transform_from= reuses a graph that was already analysed, so "
                "analyze_on_runner= has nothing to run. Leave one of them out."
            )
        return
    if analyze_on_runner and preprocessing_fn is None:
        raise RecipeError(
            "Recipe: analyze_on_runner= needs a preprocessing_fn, and the recipe has none. Leave "
            "it out."
        )
    if preprocessing_fn is not None and any(map(is_fold, split_names)):
        raise RecipeError(
            "Recipe: preprocessing_fn is analysed once, on records that each round of a "
            "cross-validation but one validates on. Leave it out, and adapt a layer such as "
            "Normalization in each round."
        )
    if preprocessing_fn is not None and "train" not in split_names:
        raise RecipeError(
            "Recipe: preprocessing_fn is analysed on the split called 'train', which is not among "
            f"the splits {', '.join(split_names)}. Name one split train."
        )
