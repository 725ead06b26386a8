"""The recipe: what the user declares, and the protocols its parts fulfil."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .analysis import check_analysis
from .blocks import Block, RawBatch, Selection, SourceFile
from .config import check_revision, check_texts
from .errors import RecipeError
from .features import Feature, Features, Struct, flatten, wire_columns
from .limits import Limits
from .reject_budgets import Budget, allowed_rejects, check_budget
from .shards import Shards
from .splits import Splits

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_PACKAGE = __name__.split(".")[0]


class OpenSource(Protocol):
    """Read access to a source's root, given to a Source by the steps."""

    @property
    def filesystem(self) -> AbstractFileSystem:
        """The fsspec filesystem that the source's root lies on."""

    @property
    def limits(self) -> Limits:
        """What its files may ask for."""

    def full_path(self, path: str) -> str:
        """The filesystem's own path of a file relative to the root."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes [start, stop) of a file; to its end without a stop."""

    def hold(self, path: str) -> None:
        """Call it before a file is read by other means than this: its content must be proven."""

    def open_local(self, path: str) -> io.FileIO:
        """Opens a file of this machine that is held, and proves that it is that one."""

    def note(self, paths: Iterable[str]) -> None:
        """As :meth:`hold`, for parts of many files of a store, which are compared afterwards."""

    def read_side(self, url: str) -> bytes:
        """Reads a file beside the source, whole: one of the source's ``side_urls``."""

    def side(self, url: str) -> tuple[OpenSource, str]:
        """Opens one of the source's ``side_urls``: its root, and its path there."""


@runtime_checkable
class Source(Protocol):
    """Raw files of one format: which files are records, and how they become columns.

    Implementations are frozen, hold only what the user wrote, and read nothing until asked.
    One that calls functions of the user's names them in an attribute ``functions``, a tuple:
    their code enters the fingerprint.
    """

    @property
    def url(self) -> str:
        """Where the files lie: a path or any fsspec URL, a glob where the format allows."""

    @property
    def label(self) -> str | None:
        """Name of the feature to predict, if there is one."""

    @property
    def media(self) -> bool:
        """Whether records are media files: then 1 % may be rejected by default, else none."""

    @property
    def numbered(self) -> bool:
        """Whether ids are ``path#position``: several records a file."""

    @property
    def side_urls(self) -> tuple[str, ...]:
        """URLs of files that shape the records and hold none, such as a table of labels.

        A relative one counts as the source's own does. Their contents enter the fingerprint.
        """

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON, for the fingerprint. Without the urls."""

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Tells records' files from the ones to skip. Pure."""

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """Offsets, ascending, at which a large file may be cut into blocks; () for none."""

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the records as they are read, from names and contents."""

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block in batches of bounded size, its ranges in the order of ``ordered``.

        A record that cannot be read or does not fit ``features`` becomes a reject; nothing
        that the data holds makes this raise.
        """


@runtime_checkable
class ExtractedSource(Protocol):
    """Records that lie in no files, such as a query's: a build copies them into files first.

    They are then read as any others are. Implementations are frozen, hold only what the user
    wrote, and read nothing until asked.
    """

    @property
    def label(self) -> str | None:
        """Name of the feature to predict, if there is one."""

    @property
    def media(self) -> bool:
        """As a Source's."""

    def extract(self, folder: str, *, base: str) -> Source:
        """Copies all records into files; gives the source that reads them.

        Files are named by their content, so that what is unchanged is not written again. They and
        that source's settings enter the fingerprint: where the records were taken from does not.

        Args:
            folder: Of the workspace, for all extracted files; it may not exist yet.
            base: The recipe's folder, which a relative path counts from.

        Raises:
            RecipeError: if the recipe asks for what cannot be had.
            DataError: if there are no records, or they cannot be told apart.
            StorageError: if reading or writing fails.
        """


@runtime_checkable
class CountsRows(Protocol):
    """A source with a table beside it, whose rows may belong to no file."""

    def num_unused_rows(self, files: Sequence[SourceFile], opened: OpenSource) -> int:
        """How many of the table's rows belong to none of the files."""


@runtime_checkable
class CutsApart(Protocol):
    """A source of which the ranges of a file stand alone: no record depends on another range.

    Ids must hold places in bytes: numbers of rows depend on all that lies before.
    """

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """Length of what stands first in a file and shapes all its records: a header, say."""


@runtime_checkable
class NumbersRecords(Protocol):
    """A source whose ids hold numbers of rows, in place of offsets of bytes."""

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> int | None:
        """About where in its file a row lies, in bytes; None where nothing tells."""


@runtime_checkable
class PrepareStep(Protocol):
    """One deterministic step on single records, in TensorFlow operations.

    Steps are compiled together and run on whole batches; a batch that fails is run again
    record by record to find the culprit. A step may have further attributes, which
    :class:`~.step_traits.StepTraits` lists.
    """

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if the step cannot work on these features.
        """

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Maps one record, name -> tensor, in TensorFlow operations.

        Beside an optional feature stands ``presence_name(name)``, a bool: where it is False, the
        tensor is the feature's fill. A step that makes a feature required leaves it out.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class SortedRecords:
    """Some records of a range, in the order that a step across records asked for."""

    ids: Sequence[str]
    prefixes: Any
    """pa.LargeBinaryArray[n]: what :meth:`CrossStep.order` gave for each."""
    splits: Any
    """int16[n]: index of each record's split."""
    columns: Any
    """pa.RecordBatch of n rows: the wire columns of the features before the step."""
    numbered: bool = False
    """Whether ids are ``path#position``."""


@runtime_checkable
class CrossStep(Protocol):
    """One deterministic step that looks across records, whatever file or block they lie in.

    All records are sorted by (key, prefix, id) on disk and merged by ranges of the key; those
    whose keys share their first 12 bits always come to the same call of :meth:`merge`.
    """

    @property
    def prefix_bytes(self) -> int:
        """Length of each prefix that :meth:`order` gives."""

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if the step cannot work on these features.
        """

    def check(self, splits: Splits) -> None:
        """Refuses splits that the step would leak across, or cannot know.

        Raises:
            RecipeError: saying which splits to take.
        """

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """What records are sorted by: uint64[n] keys, and large_binary[n] prefixes."""

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """The records that come of those of a range, in batches of bounded size.

        A record's id decides its key and, in a hash split, its split: it is that of one of the
        records it is made of.
        """


PreprocessingFn = Callable[[dict[str, Any]], dict[str, Any]]
RecordFn = Callable[[dict[str, Any]], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to make a snapshot of, and how.

    Attributes:
        name: Names the snapshot's folder. ASCII letters, digits, '_', '.', '-'.
        source: Where the records come from; a relative path counts from the recipe's file.
        prepare: Steps, in order: built-in ones (``ss.images.resize``, ``ss.series.windows``) or
            functions of your own on single records, ``dict of tensors -> dict of tensors``, in
            TensorFlow.
        preprocessing_fn: A tensorflow-transform ``preprocessing_fn``; its analyzers see the
            split called ``train`` alone. With it the examples hold exactly its outputs.
        splits: Names and fractions. By default 0.8 train, 0.1 validation and 0.1 test; a build of
            so few records that one of them would be empty is refused.
        shards: Sizes, numbers, compression.
        features: The prepared records' features. None infers them; declared ones are enforced.
        seed: Enters every record's key: another seed is another order and other splits.
        revision: Another number prepares the blocks that hold rejects again: for causes outside of
            the recipe and the data, such as a service that did not answer. See docs/rejects.md.
        max_rejects: How many records may be rejected: a fraction of all (a float; 1.0 allows all
            of them) or a count (an int; 1 is one record). None means 0 for tables and 1 % for
            media. By stage: ``{"read": 0.01, "validate": 0, "total": 100}``. A stage that is not
            named shares what ``total`` allows; without a ``total``, None's meaning holds for each
            stage that is not named.
        limits: How much a single file, row or value may ask for.
        analyze_on_runner: Has the engine analyse, where one process would take too long. Means
            and quantiles may then differ in their last bits from one such build to another.
        transform_from: A snapshot whose transform graph is taken in place of an analysis; or the
            folder of a graph in a workspace. A relative path counts from the recipe's file.
        depends_on: Files and values that the recipe's functions depend on, where their code does
            not say so: what they open, what an object is made from that cannot be hashed. A text
            or Path is a file, a folder (all its files) or a glob, counting from the recipe's
            folder, or a URL; all else is a value, a text among them as ``("text",)``. Contents
            and values enter the fingerprint, and where an object cannot be hashed, all files that
            the recipe's code opens while it is loaded.
    """

    name: str
    source: Source | ExtractedSource
    prepare: Sequence[PrepareStep | CrossStep | RecordFn] = ()
    preprocessing_fn: PreprocessingFn | None = None
    splits: Splits = dataclasses.field(
        default_factory=lambda: Splits(train=0.8, validation=0.1, test=0.1)
    )
    shards: Shards = dataclasses.field(default_factory=Shards)
    features: Mapping[str, Feature | Struct] | None = None
    seed: int = 0
    revision: int = 0
    max_rejects: Budget = None
    limits: Limits = dataclasses.field(default_factory=Limits)
    analyze_on_runner: bool = False
    transform_from: str | None = None
    depends_on: Sequence[Any] = ()
    folder: str = dataclasses.field(init=False, compare=False, repr=False, default="")
    """Folder of the file that the recipe was made in; relative sources count from it."""
    structs: tuple[str, ...] = dataclasses.field(init=False, compare=False, repr=False, default=())
    """Names of declared structs; ``features`` holds their fields as ``<struct>.<field>``."""

    contents: Mapping[str, bytes] = dataclasses.field(
        init=False, compare=False, repr=False, default_factory=dict
    )
    """What was read of files that steps need (vocabularies), by the path that the step gives."""
    loaded_files: Mapping[str, tuple[int, ...] | None] | None = dataclasses.field(
        init=False, compare=False, repr=False, default=None
    )
    """Files that the recipe's code opened while it was loaded: absolute path -> its identity then.

    None where nothing saw that: the recipe was not loaded from a file."""

    def __post_init__(self) -> None:
        """Checks what can be checked without reading anything.

        Raises:
            RecipeError: naming the argument, what was found and what is expected.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RecipeError(
                f"Recipe: name={self.name!r} cannot name a folder. Use up to 100 ASCII letters, "
                "digits, '_', '.', '-', a letter or digit first."
            )
        if not isinstance(self.source, Source | ExtractedSource):
            several = (
                " One recipe has one source: for several files give a folder or a glob, as in "
                'ss.Csv("tables/*.csv").'
            )
            raise RecipeError(
                f"Recipe: source={reprlib.repr(self.source)} is not a source. Write for example "
                'ss.ImageFolder("folder") or ss.Csv("table.csv").'
                + (several if isinstance(self.source, list | tuple | set) else "")
            )
        if not isinstance(self.prepare, list | tuple):
            raise RecipeError(
                f"Recipe: prepare={self.prepare!r} is no list of steps. Write prepare=[…]."
            )
        object.__setattr__(self, "prepare", tuple(self.prepare))
        for step in self.prepare:
            if not isinstance(step, PrepareStep | CrossStep) and not callable(step):
                raise RecipeError(
                    f"Recipe: prepare holds {step!r}, expected a step such as "
                    'ss.images.decode("image"), or a function of a record.'
                )
        kinds = (("splits", Splits), ("shards", Shards), ("limits", Limits))
        for argument, kind in kinds:
            if not isinstance(getattr(self, argument), kind):
                raise RecipeError(
                    f"Recipe: {argument}={getattr(self, argument)!r} is no ss.{kind.__name__}(…)."
                )
        check_analysis(
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
        object.__setattr__(self, "folder", _calling_folder())

    def _flatten_features(self, features: object) -> None:
        """Checks declared features, and makes the fields of structs features of their own."""
        if not isinstance(features, Mapping):
            raise RecipeError(
                f"Recipe: features={features!r} is no dict. Write for example "
                '{"label": ss.ClassLabel(("no", "yes"))}.'
            )
        if not features:
            raise RecipeError(
                "Recipe: features={} leaves nothing to store. Declare at least one feature, or "
                "leave features= out to have them inferred."
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

    @property
    def files(self) -> Source:
        """The source, whose records lie in files: their own, or what they were extracted to.

        Raises:
            TypeError: if they have not been extracted; ``pipelines.inventory.extraction`` does it.
        """
        if not isinstance(self.source, Source):
            raise TypeError(f"{type(self.source).__name__} has not been extracted")
        return self.source

    def reject_budgets(self, num_records: int) -> dict[str, int]:
        """How many of so many records may be rejected, by stage and in ``total``."""
        default = 0.01 if self.source.media else 0
        return allowed_rejects(self.max_rejects, num_records, default=default)


def _calling_folder() -> str:
    """Folder of the innermost file on the stack outside this package.

    Told by the frames' module names: in an editable install the package's folder also holds
    the examples and tests.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] != _PACKAGE:
            path = frame.f_code.co_filename
            return os.path.dirname(os.path.abspath(path)) if os.path.exists(path) else os.getcwd()
        frame = frame.f_back
    return os.getcwd()
