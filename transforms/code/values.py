"""Values as they enter a fingerprint: plain JSON, the same for equal values in any process.

What is not a plain value (a function, an object of the user's) is passed to a callback.
"""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import io
import logging
import operator
import os
import pathlib
import re
import sys
import threading
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any

from ...schemas.fingerprint import canonical_json
from ..storage.unchanged import file_digest
from .user_code import is_user_file, is_users_class

Json = Any
Refer = Callable[[Any, str], Json]
"""Returns the JSON of a value inside another; the second argument names it in messages."""

_BY_REPR: tuple[type, ...] = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    zoneinfo.ZoneInfo,
    range,
)
_NO_EFFECT: tuple[type, ...] = (
    logging.Logger,
    type(threading.Lock()),
    type(threading.RLock()),
    type(os.environ),
)
_HELD_ALREADY = (types.SimpleNamespace, threading.local, type(os.environ))
_OF_ENUM = frozenset({"_value_", "_name_", "_sort_order_", "_inverted_", "__objclass__"})
_OF_LOGGER = frozenset({*vars(logging.Logger("")), "manager"})  # which leads to all loggers
_OF_MEMMAP = frozenset({"filename", "offset", "mode"})
"""Attributes that such objects have initially."""
_SIMPLE = (str, bytes, int, float, bool, type(None))
_CALLS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


class OpaqueError(Exception):
    """A value whose content cannot be hashed; ``where`` names it in messages."""

    def __init__(self, where: str, value: Any) -> None:
        super().__init__(where)
        self.where = where
        self.value = value

    def explain(self, root: str, *, moves: bool) -> str:
        """The error message: what is wrong and how to fix it.

        Args:
            root: The function that leads to the value.
            moves: Whether the value changes when used, as a file or an iterator does.
        """
        kind = type(self.value)
        if isinstance(self.value, types.ModuleType):
            return (
                f"{root} uses {self.where}, a module that was not loaded from a .py file: a change "
                "to it would go unnoticed. Write it as a .py file beside the recipe, or name the "
                'file that it is made from: ss.Recipe(depends_on=["module.so", …]).'
            )
        shown = f"{kind.__module__}.{kind.__qualname__}"
        message = (
            f"{root} uses {self.where}, a {shown}: its content cannot be hashed, so a change to it "
            "would go unnoticed. "
        )
        if isinstance(self.value, io.IOBase):
            return message + "Read the file when the module is loaded, and use the content."
        inside = "Make it inside the function from plain values (numbers, strings, lists, arrays)"
        if moves:
            return message + f"{inside}: it changes each time it is used."
        return message + (
            f"{inside}, or name the files and values that it is made from in the recipe: "
            'ss.Recipe(depends_on=["model.bin", …]).'
        )


class Values:
    """Turns plain values into JSON.

    ``folder`` is the recipe's: a path inside it counts relative to it. A path to a file counts
    with the file's content. ``alone`` refers to a value by its content alone, as no other.

    Attributes:
        files: Those files: absolute path -> sha256, hex.
    """

    def __init__(self, folder: str, *, alone: Refer) -> None:
        self._alone = alone
        self._folders = {os.path.abspath(folder), os.path.realpath(folder)} if folder else set()
        self.files: dict[str, str] = {}

    def files_named(self, texts: Iterable[str]) -> list[Json]:
        """The files that absolute paths in some code lead to, with their hashes."""
        found = ((text, self._content(text)) for text in sorted(texts))
        return [[text, content] for text, content in found if content is not None]

    def plain(self, value: Any, refer: Refer, where: str) -> Json | None:
        """The JSON of a plain value; None for anything else."""
        found = self._plain(value, refer, where)
        added = [] if found is None else _added(value)
        if not added:
            return found
        return ["with", found, [[n, refer(item, f"{where}.{n}")] for n, item in added]]

    def _plain(self, value: Any, refer: Refer, where: str) -> Json | None:
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented:
            return [repr(value)]
        if kind in (bool, int):
            return [kind.__name__, repr(value)]
        if kind is float:
            return ["float", "nan" if value != value else value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if kind is str:
            return self._text(value)
        if kind in (bytes, bytearray, memoryview):
            return [kind.__name__, hashlib.sha256(value).hexdigest()]
        if kind is collections.deque:
            return ["deque", value.maxlen, *self._sequence(value, refer, where)]
        if kind in (list, tuple):
            return [kind.__name__, *self._sequence(value, refer, where)]
        if kind in (set, frozenset):
            return [kind.__name__, self._set(value, refer, where)]
        if kind in (dict, types.MappingProxyType, collections.OrderedDict, collections.Counter):
            return [kind.__name__, *self._mapping(value, refer, where)]
        if kind is collections.defaultdict:
            factory = refer(value.default_factory, f"{where}.default_factory")
            return ["defaultdict", factory, *self._mapping(value, refer, where)]
        if kind in (types.SimpleNamespace, threading.local):
            return ["namespace", *self._mapping(vars(value), refer, where)]
        if kind is slice:
            return ["slice", repr(value)]
        if kind is array.array:
            return ["array", value.typecode, hashlib.sha256(value.tobytes()).hexdigest()]
        if kind is re.Pattern:
            return ["pattern", refer(value.pattern, where), value.flags]
        if kind in _BY_REPR or kind in (datetime.datetime,):
            zone = getattr(value, "tzinfo", None)
            if zone is None or type(zone) in _BY_REPR:
                return [kind.__name__, repr(value)]
            bare = repr(value.replace(tzinfo=None))
            return [kind.__name__, bare, repr(value.utcoffset()), refer(zone, f"{where}.tzinfo")]
        if isinstance(value, pathlib.PurePath):
            text = self._text(os.fspath(value))
            return ["path", text, refer(kind, where)] if is_users_class(kind) else ["path", text]
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return ["partial", *(refer(part, where) for part in parts)]
        if kind in _CALLS:
            return [kind.__name__, refer(value.__reduce__()[1:], where)]
        if isinstance(value, enum.Enum):
            return ["enum", refer(kind, where), value.name]
        if isinstance(value, _NO_EFFECT):
            own = [refer(kind, where)] if is_users_class(kind) else []
            return ["no effect", kind.__name__, *own]
        return self._of_library(value, refer, where)

    def _text(self, value: str) -> Json:
        for folder in self._folders:
            if value == folder or value.startswith(folder + os.sep):
                inner = ["recipe's folder", value[len(folder) :]]
                # Only the names that are used from a module are hashed.
                content = None if value.endswith(".py") else self._content(value)
                return inner if content is None else [*inner, content]
        content = self._content(value)
        return ["str", value] if content is None else ["str", value, content]

    def _content(self, path: str) -> str | None:
        """The hash of the file that an absolute path leads to; None if there is none."""
        if not path.startswith((os.sep, "~")):
            return None
        full = os.path.expanduser(path)
        if not os.path.isabs(full) or not os.path.isfile(full):
            return None
        self.files[full] = file_digest(full)
        return self.files[full]

    def _sequence(self, items: Iterable[Any], refer: Refer, where: str) -> Json:
        total, count = hashlib.sha256(), 0
        for count, item in enumerate(items, 1):
            total.update(canonical_json(refer(item, f"{where}[{count - 1}]")) + b"\n")
        return count, total.hexdigest()

    def _mapping(self, items: Any, refer: Refer, where: str) -> Json:
        """In order, because code can see the order."""
        total = hashlib.sha256()
        for key, item in items.items():
            pair = [refer(key, f"a key of {where}"), refer(item, f"{where}[{key!r}]")]
            total.update(canonical_json(pair) + b"\n")
        return len(items), total.hexdigest()

    def _set(self, items: Iterable[Any], refer: Refer, where: str) -> Json:
        """Each member by itself: its hash must not depend on the order of the set."""
        hashed = (
            refer(item, where) if type(item) in _SIMPLE else self._alone(item, where)
            for item in items
        )
        return hashlib.sha256(b"\n".join(sorted(map(canonical_json, hashed)))).hexdigest()

    def _of_library(self, value: Any, refer: Refer, where: str) -> Json | None:
        """Values of NumPy, Arrow, pandas and TensorFlow, none of which is imported here."""
        kind = type(value)
        library = kind.__module__.partition(".")[0]
        if library not in sys.modules or is_users_class(kind):
            return None
        if library == "numpy":
            return _numpy(value, refer, where)
        if library == "pyarrow":
            return _pyarrow(value)
        if library == "pandas":
            return _pandas(value, refer, where)
        if library == "tensorflow":
            return _tensorflow(value, refer, where)
        if library in ("keras", "tf_keras"):
            return _keras(value, refer, where)
        if library == "tokenizers" and kind.__name__ == "Tokenizer":
            return ["tokenizer", hashlib.sha256(value.to_str().encode()).hexdigest()]
        return None


def _added(value: Any) -> list[tuple[str, Any]]:
    """Attributes that were set on a plain value in addition to its initial ones, sorted."""
    kind = type(value)
    held = getattr(value, "__dict__", None)
    if not held or isinstance(value, type) or kind in _HELD_ALREADY:
        return []
    if isinstance(value, enum.Enum):
        names = held.keys() - _OF_ENUM
    elif isinstance(value, logging.Logger):
        names = held.keys() - _OF_LOGGER
    elif kind.__module__.partition(".")[0] in ("keras", "tf_keras"):
        # Weights are hashed separately.
        names = {n for n in held.keys() - _of_layer(value) if not hasattr(held[n], "assign")}
        names = {name for name in names if not name.startswith("_")}
    elif kind.__module__.partition(".")[0] in sys.stdlib_module_names or is_users_class(kind):
        names = set(held)
    else:
        # What libraries keep there themselves, including caches, has private names.
        names = {name for name in held.keys() - _OF_MEMMAP if not name.startswith("_")}
    return [(name, held[name]) for name in sorted(names)]


def _of_layer(value: Any) -> set[str]:
    """Names of the attributes that a Keras layer has initially."""
    kind = type(value)
    try:
        return set(vars(kind.from_config(value.get_config())))
    except Exception:
        # A layer with a function cannot be made from its settings alone.
        return set(vars(next(base for base in kind.__mro__ if base.__name__ == "Layer")()))


def _numpy(value: Any, refer: Refer, where: str) -> Json | None:
    import numpy as np

    if isinstance(value, np.dtype):
        shown = ["dtype", repr(value.descr) if value.names else value.str]
        return [*shown, held] if (held := _metadata(value, refer, where)) else shown
    if isinstance(value, np.ufunc):
        name = str(getattr(value, "__name__", ""))
        if getattr(np, name, None) is not value:
            # Made by np.frompyfunc, say: it hides a function.
            raise OpaqueError(where, value)
        return ["ufunc", name]
    if isinstance(value, np.ma.MaskedArray):
        parts = (np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value)
        return ["masked", *(refer(part, where) for part in parts)]
    if isinstance(value, np.generic | np.ndarray):
        as_array = np.asarray(value)
        shape = [len(as_array.shape), *as_array.shape]
        if as_array.dtype.hasobject:
            found = ["ndarray", "object", shape, refer(as_array.ravel().tolist(), where)]
        else:
            content = np.ascontiguousarray(as_array).tobytes()
            dtype = repr(as_array.dtype.descr)
            found = [type(value).__name__, dtype, shape, hashlib.sha256(content).hexdigest()]
        held = _metadata(as_array.dtype, refer, where)
        return [*found, held] if held else found
    return None


def _metadata(dtype: Any, refer: Refer, where: str) -> list[Json]:
    """What is attached to a dtype and to those of its fields."""
    parts = [dtype, *(field[0] for field in (dtype.fields or {}).values())]
    return [refer(dict(p.metadata), f"{where}.metadata") for p in parts if p.metadata]


def _pyarrow(value: Any) -> Json | None:
    import pyarrow as pa

    if isinstance(value, pa.DataType | pa.Schema | pa.Field):
        if isinstance(value, pa.Schema):
            return ["Schema", _schema_text(value)]
        as_field = value if isinstance(value, pa.Field) else pa.field("", value)
        return [type(value).__name__, _schema_text(pa.schema([as_field]))]
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = pa.table({"": value})
    if isinstance(value, pa.Table | pa.RecordBatch):
        table = pa.table(value).combine_chunks()
        return [
            "table",
            _schema_text(table.schema),
            hashlib.sha256(repr(table.to_pydict()).encode()).hexdigest(),
        ]
    return None


def _schema_text(schema: Any) -> str:
    # str() truncates long metadata.
    return str(schema.to_string(truncate_metadata=False))


def _pandas(value: Any, refer: Refer, where: str) -> Json | None:
    name = type(value).__name__
    if name in ("Timestamp", "Timedelta"):
        return [name, repr(value)]
    if name not in ("DataFrame", "Series", "Index"):
        return None
    if name == "Index":
        return [name, _pandas_values(value, refer, where)]
    held = refer(value.attrs, f"{where}.attrs") if value.attrs else None
    index = _pandas_values(value.index, refer, where)
    if name == "Series":
        label = refer(value.name, where)
        return [name, label, _pandas_values(value, refer, where), index, held]
    columns = [_pandas_values(value.iloc[:, i], refer, where) for i in range(value.shape[1])]
    return [name, _pandas_values(value.columns, refer, where), columns, index, held]


def _pandas_values(value: Any, refer: Refer, where: str) -> Json:
    """An index, or a series without its index: its type, names, values, and categories."""
    names = list(getattr(value, "names", ()))
    found = [str(value.dtype), refer(names, where), refer(value.to_numpy(), where)]
    categories = getattr(value.dtype, "categories", None)
    if categories is None:
        return found
    return [*found, bool(value.dtype.ordered), _pandas_values(categories, refer, where)]


def _tensorflow(value: Any, refer: Refer, where: str) -> Json | None:
    name = type(value).__name__
    if name in ("DType", "TensorShape", "TensorSpec", "RaggedTensorSpec", "SparseTensorSpec"):
        return [name, repr(value)]
    if name == "EagerTensor":
        if value.dtype.name in ("resource", "variant"):
            raise OpaqueError(where, value)
        return [name, refer(value.numpy(), where)]
    if name == "RaggedTensor":
        return [
            name,
            [refer(part, where) for part in (value.flat_values, *value.nested_row_splits)],
        ]
    if name == "SparseTensor":
        parts = (value.indices, value.values, value.dense_shape)
        return [name, [refer(part, where) for part in parts]]
    if name == "ResourceVariable":
        return [name, refer(value.numpy(), where)]
    if name in ("StaticHashTable", "StaticHashTableV1", "HashTable", "MutableHashTable"):
        keys, values = (part.numpy().tolist() for part in value.export())
        rows = sorted(zip(keys, values, strict=True))
        return [name, refer(rows, where), refer(value._default_value, where)]
    python_function = getattr(value, "python_function", None)
    if python_function is not None:
        settings = [repr(getattr(value, key, None)) for key in ("_jit_compile", "_input_signature")]
        return ["tf.function", refer(python_function, where), settings]
    return None


def _keras(value: Any, refer: Refer, where: str) -> Json | None:
    """A layer: its settings, weights and vocabulary."""
    is_layer = all(hasattr(value, name) for name in ("get_config", "get_weights", "trainable"))
    if not is_layer or hasattr(value, "layers"):
        return None
    # Layers without an explicit name are numbered in order of creation.
    settings = {key: item for key, item in value.get_config().items() if key != "name"}
    words = value.get_vocabulary() if hasattr(value, "get_vocabulary") else None
    # Settings only name the user's functions.
    functions = {
        name: item
        for name, item in sorted(vars(value).items())
        if isinstance(item, types.FunctionType) and is_user_file(item.__code__.co_filename)
    }
    parts = (settings, value.get_weights(), words, functions)
    return ["layer", type(value).__name__, [refer(part, where) for part in parts]]
