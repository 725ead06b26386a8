"""Serving: the steps on single records, and the transform graph after them, as one SavedModel.

A server applies to a request the same graph that a build applies to a record. The inputs are raw
values, the outputs those of the reader, including masks. The label, which requests do not have, is
left out, and so are the features from which no other output is computed, and what is computed from
them.

An optional input may be left out of a request: its tensor then has length zero. Within an input,
NaN marks missing rows; for this, integers, bools and classes are passed as float64. For times it is
NaT, the smallest int64. Strings and lists have no such marker: for them, ``<name>_present``, which
may also be left out, says which rows are present.

Imports TensorFlow: import it only where it is used.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from ....schemas.features import (
    Feature,
    Features,
    Image,
    TensorForm,
    Timestamp,
    is_encoded,
    is_optional,
    mask_name,
    presence_name,
    side_columns,
    tensor_form,
)
from ....schemas.values import NOT_A_TIME
from ....schemas.wire import FLOATS
from ...analysis.graph import Reach
from ...examples.metadata import tensor_adapter_config
from ...media.image_codecs import orientation_of
from ..tables import INTEGERS
from ..values import Tables, holding_tables
from .chain import Step, apply_steps
from .resources import owners_of

_EXACT = 2.0**53
"""Below this, float64 represents every integer exactly, and no other integer rounds to one."""

Transform = Callable[[dict[str, Any]], dict[str, Any]]


def build_model(
    steps: Sequence[Step],
    features: Features,
    prepared: Features,
    *,
    label: str | None,
    final: Features,
    kept: Mapping[str, str],
    transform: Transform | None,
) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Builds the model, whose only signature takes and gives batches.

    It has no attribute that is a tf.function: saving would trace that once more, and store both.

    Args:
        steps: The steps on each record; no filters.
        features: The features of records before the steps.
        prepared: The features of records after the steps.
        label: The feature to predict, which is not an output.
        final: The output features.
        kept: Outputs of the transform graph that are an unchanged input -> the input's name.
        transform: The transform graph, a function of the tensors of prepared records, or None.

    Returns:
        A ``tf.Module`` for ``tf.saved_model.save``, and what a request may have: by raw name the
        signature's ``input``, its ``dtype``, and ``optional`` if it may be left out. An input that
        no output needs has no entry but its name: the signature lacks it.
    """
    unused = _unused(prepared, label=label, final=final, kept=kept, transform=transform)
    tables: Tables = {}
    records_of = _Records(
        steps, features, prepared=prepared, label=label, unused=unused, tables=tables
    )
    inputs = {name: f for name, f in features.items() if name not in records_of.left_out}
    outputs = {name: feature for name, feature in final.items() if name != label}
    specs = {name: part for n, f in inputs.items() for name, part in _input_specs(n, f).items()}
    arguments = argument_names(specs)
    record_outputs = {
        name: part for n, f in prepared.items() for name, part in _record_specs(n, f).items()
    }

    def one(given: dict[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for name, feature in features.items():
            record |= _given(name, feature, given) if name in inputs else _nothing(name, feature)
        record = records_of(record)
        return {name: _as(record[name], spec) for name, spec in record_outputs.items()}

    def serve(**values: Any) -> dict[str, Any]:
        given = {name: values[argument] for name, argument in arguments.items()}
        with holding_tables(tables):
            records = tf.map_fn(one, _complete(inputs, given), fn_output_signature=record_outputs)
        made, sources = records, {name: name for name in outputs}
        if transform is not None:
            made = dict(transform(_transform_inputs(prepared, records)))
            made |= {name: records[source] for name, source in kept.items()}
            sources = dict(kept)
        read: dict[str, Any] = {}
        for name, feature in outputs.items():
            source = sources.get(name, "")
            read |= _as_read(name, feature, made[name], records.get(presence_name(source)))
            sides = zip(side_columns(name, feature), side_columns(source, feature), strict=True)
            read |= {side: records[given] for side, given in sides if given in record_outputs}
        return read

    module = tf.Module()
    module.signature = tf.function(serve, autograph=False).get_concrete_function(
        **{
            arguments[name]: tf.TensorSpec(spec.shape, spec.dtype, name=arguments[name])
            for name, spec in specs.items()
        }
    )
    module.tables = list(tables.values())
    module.resources = getattr(transform, "resources", [])
    if owners := owners_of(module.signature.graph, steps, tables.values()):
        module.of_functions = owners
    served: dict[str, dict[str, Any]] = {name: {} for name in records_of.left_out}
    for name, feature in inputs.items():
        for part, spec in _input_specs(name, feature).items():
            form = tensor_form(feature) if part == name else None
            served[part] = {
                "input": arguments[part],
                "dtype": spec.dtype.name if form is None else form.dtype,
            } | ({"optional": True} if is_optional(feature) else {})
    return module, dict(sorted(served.items()))


def _unused(
    prepared: Features,
    *,
    label: str | None,
    final: Features,
    kept: Mapping[str, str],
    transform: Transform | None,
) -> set[str]:
    """The prepared features from which no output but the label is made.

    Checks in a transform graph read what they check, unless only the label is made of it.
    """
    if transform is None:
        return {*prepared} & {label}
    reads: Mapping[str, set[str]] = getattr(transform, "reads", {})
    checked: Set[str] = getattr(transform, "checked", set())
    of_column = {
        column.name: name for name, f in prepared.items() for column in f.wire_columns(name)
    }
    made_of = {
        name: {kept[name]} if name in kept else {of_column[one] for one in reads.get(name, ())}
        for name in final
    }
    for_label = made_of.pop(label or "", set())
    used = set().union(*made_of.values())
    return {*prepared} - used - ({of_column[one] for one in checked} - for_label)


class _Records:
    """The steps as a function of one record that leaves out what no output needs.

    Checks of what a request does not have would fail for a placeholder.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        features: Features,
        *,
        prepared: Features,
        label: str | None,
        unused: Set[str],
        tables: Tables,
    ) -> None:
        """Traces the steps once, to see what they compute from what.

        Args:
            steps: The steps on each record.
            features: The features before the steps.
            prepared: The features after the steps.
            label: The feature to predict.
            unused: The features after the steps from which no output is made.
            tables: Receives the lookup tables of the steps.
        """
        self._steps, self._features = steps, features
        self._unused = {name: prepared[name] for name in sorted(unused)}
        self._part: _Part | None = None
        self.left_out: Set[str] = {*features} & {label}
        """The features before the steps that requests do not have."""
        if steps:
            self._trace(prepared, unused, tables)
        else:
            self._leave_out({*features} & unused)

    def _leave_out(self, names: Set[str]) -> None:
        """Leaves out inputs, unless none would be left: the model counts records by its inputs."""
        if not self._features.keys() <= self.left_out | names:
            self.left_out |= names

    def _trace(self, prepared: Features, unused: Set[str], tables: Tables) -> None:
        specs = {
            part: s for n, f in self._features.items() for part, s in _part_specs(n, f).items()
        }
        owner = {part: n for n, f in self._features.items() for part in _part_specs(n, f)}

        made: dict[tuple[str, str], str] = {}

        def run(*values: Any) -> Any:
            given = dict(zip(specs, values, strict=True))
            record, _ = apply_steps(self._steps, given, self._features)
            for name, feature in prepared.items():
                made.update(
                    {(name, part): record[part].name for part in _record_specs(name, feature)}
                )
            # All that a function returns waits for all of its checks: it returns nothing of these.
            return tf.constant(0)

        with holding_tables(tables):
            function = tf.function(run, autograph=False)
            graph = function.get_concrete_function(*specs.values()).graph
        given = graph.inputs[: len(specs)]  # captured tensors follow
        inputs = {tensor.op.name: part for part, tensor in zip(specs, given, strict=True)}
        wanted = {part: tensor for (name, part), tensor in made.items() if name not in unused}
        stateful = [o.name for o in graph.get_operations() if o.op_def.is_stateful]
        reach = Reach(_without_order(graph.as_graph_def(), {*stateful}))

        def origins(tensors: Iterable[str]) -> set[str]:
            return {owner[inputs[node]] for node in reach.before(tensors) if node in inputs}

        self._leave_out({*self._features} - origins(wanted.values()))
        if not any(t.consumers() for t in given if owner[inputs[t.op.name]] in self.left_out):
            return
        checks = [name for name in stateful if not origins([name]) & self.left_out]
        nodes = reach.needed_to_run([*wanted.values(), *checks])
        self._part = _Part(
            graph_def=reach.part(nodes),
            given={f"{node}:0": part for node, part in inputs.items() if node in nodes},
            captured={i.name: outer for outer, i in graph.captures if i.op.name in nodes},
            wanted=wanted,
            checks=checks,
        )

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record after the steps; without what only the label needs, if that is computed."""
        if self._part is None:
            return apply_steps(self._steps, record, self._features)[0]
        found = {part: v for n, f in self._unused.items() for part, v in _nothing(n, f).items()}
        return found | self._part.applied_to(record)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a graph of steps on one record."""

    graph_def: Any
    given: dict[str, str]
    """Tensor -> its name in the record before the steps."""
    captured: dict[str, Any]
    """Tensor -> what it is outside of the graph, such as a lookup table."""
    wanted: dict[str, str]
    """Name in the record after the steps -> tensor."""
    checks: list[str]
    """Operations that must run although nothing depends on them, such as assertions."""

    def applied_to(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record after the steps, computed in the current graph."""
        known = {tensor: record[part] for tensor, part in self.given.items()}
        known |= {inner: tf.identity(outer) for inner, outer in self.captured.items()}
        computed = [tensor for tensor in self.wanted.values() if tensor not in known]
        results = tf.graph_util.import_graph_def(
            self.graph_def,
            input_map=known,
            return_elements=[*computed, *self.checks],
            name="steps",
        )
        known |= dict(zip(computed, results, strict=False))
        with tf.control_dependencies(results[len(computed) :]):
            return {part: tf.identity(known[tensor]) for part, tensor in self.wanted.items()}


def _without_order(graph_def: Any, names: Set[str]) -> Any:
    """The graph without what makes these nodes wait for others.

    A tf.function makes each operation with side effects wait for those before it.
    """
    for node in graph_def.node:
        if node.name in names:
            data = [tensor for tensor in node.input if not tensor.startswith("^")]
            del node.input[:]
            node.input.extend(data)
    return graph_def


def _part_specs(name: str, feature: Feature) -> dict[str, Any]:
    """The parts of a feature in the record that steps are given."""
    form = tensor_form(feature)
    if isinstance(feature, Image) and not is_encoded(feature):
        return {
            name: tf.TensorSpec((feature.height, feature.width, feature.channels), feature.dtype)
        }
    if form is None:  # the bytes of a file
        specs = {name: tf.TensorSpec([], tf.string)}
    else:
        dtype: Any = "float32" if feature.kind == "audio" else form.dtype
        specs = {name: tf.TensorSpec(form.shape, dtype)}
    specs |= {side: tf.TensorSpec([], tf.int64) for side in side_columns(name, feature)}
    if is_optional(feature):
        specs[presence_name(name)] = tf.TensorSpec([], tf.bool)
    return specs


def _input_specs(name: str, feature: Feature) -> dict[str, Any]:
    """The inputs of a request for a feature: batches, [None, …]."""
    form = tensor_form(feature)
    if isinstance(feature, Image) and not is_encoded(feature):
        shape = (None, feature.height, feature.width, feature.channels)
        return {name: tf.TensorSpec(shape, feature.dtype)}
    if form is None:
        return {name: tf.TensorSpec([None], tf.string)}
    dtype: Any = "float32" if feature.kind == "audio" else form.dtype
    if _comes_as_float(feature):
        dtype = tf.float64
    specs = {name: tf.TensorSpec([None, *form.shape], dtype)}
    if form.optional and (form.shape or form.dtype == "string"):
        specs[_flag(name)] = tf.TensorSpec([None], tf.bool)
    for side in side_columns(name, feature):
        specs[side] = tf.TensorSpec([None], tf.int64)
    return specs


def _flag(name: str) -> str:
    """The name of the input that says in which rows a feature is present."""
    return f"{name}/present"


def _comes_as_float(feature: Feature) -> bool:
    """Whether requests pass the feature's values as float64, which has NaN for missing ones."""
    form = tensor_form(feature)
    if form is None or not form.optional or form.shape or isinstance(feature, Timestamp):
        return False
    return form.dtype not in FLOATS and form.dtype != "string"


def _complete(inputs: Features, given: dict[str, Any]) -> dict[str, Any]:
    """Completes a request: a row per record for every input, and the presence of optional ones.

    Fails if inputs differ in their number of rows, or if a value is not an integer but should be.
    """
    rows = {name: tf.shape(given[name])[0] for name in inputs}
    flags = [tf.size(given[_flag(name)]) for name in inputs if _flag(name) in given]
    size = tf.reduce_max(tf.stack([*rows.values(), *flags, 0]))
    complete = dict(given)
    for name, feature in inputs.items():
        fits, value = rows[name] == size, given[name]
        if is_optional(feature):
            fits |= rows[name] == 0
        text = [f"input {name} must have as many rows as the others, found", rows[name], size]
        with tf.control_dependencies([tf.debugging.Assert(fits, text)]):
            value = tf.identity(value)
        if is_optional(feature):
            value, present = _optional(name, feature, value, given.get(_flag(name)), size)
            complete[_flag(name)] = present
        complete[name] = value
    return complete


def _optional(name: str, feature: Feature, value: Any, flag: Any, size: Any) -> tuple[Any, Any]:
    """An optional input with a row for each record, and in which rows it is present."""
    form = tensor_form(feature)
    assert form is not None
    is_given = tf.shape(value)[0] > 0
    blank = tf.zeros([size, *tf.unstack(tf.shape(value))[1:]], value.dtype)
    value = tf.cond(is_given, lambda: value, lambda: blank)
    present = tf.fill([size], is_given)
    if flag is not None:
        present &= tf.cond(tf.size(flag) > 0, lambda: flag, lambda: tf.fill([size], True))
    elif isinstance(feature, Timestamp):
        present &= value != NOT_A_TIME
    else:
        present &= ~tf.math.is_nan(value)
    if not _comes_as_float(feature):
        return value, present
    start, stop = (0, 2) if form.dtype == "bool" else INTEGERS[form.dtype]
    whole = tf.where(present, value, 0.0)
    fits = (whole == tf.round(whole)) & (tf.abs(whole) < _EXACT)
    fits &= (whole >= float(start)) & (whole < float(stop))
    text = [f"input {name} must be {form.dtype}, or NaN; whole, below 2**53. Found", value]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), text)]):
        return tf.cast(whole, form.dtype), present


def _as_read(name: str, feature: Feature, value: Any, present: Any) -> dict[str, Any]:
    """A feature as the reader returns it: the fill value where it is missing, and the mask."""
    form = tensor_form(feature)
    if form is None or not form.optional:
        return {name: _ragged(value) if isinstance(value, tf.SparseTensor) else value}
    if isinstance(value, tf.SparseTensor):  # from a transform graph: at most one value per row
        rows, shape = value.indices[:, :1], value.dense_shape[:1]
        place = tf.scatter_nd(rows, tf.range(1, tf.size(rows, tf.int64) + 1), shape)
        present = place > 0
        fill = tf.constant([form.fill], value.dtype)
        value = tf.gather(tf.concat([fill, value.values], axis=0), place)
    elif not form.shape:
        value = tf.where(present, value, tf.constant(form.fill, value.dtype))
    mask = mask_name(name, feature)
    return {name: value} | ({} if mask is None else {mask: present})


def _ragged(value: Any) -> Any:
    """The rows of a sparse tensor: their values, in the order of their columns."""
    value = tf.sparse.reorder(value)
    rows, num_rows = value.indices[:, 0], value.dense_shape[0]
    return tf.RaggedTensor.from_value_rowids(value.values, rows, nrows=num_rows)


def argument_names(names: Iterable[str]) -> dict[str, str]:
    """The names of a signature's inputs: ASCII letters, digits and '_', all distinct.

    They are argument names of a Python function, so keywords are excluded. SavedModel writes them
    in lower case, so no two may differ only in case.

    >>> argument_names(["age", "age/present", "km/h", "km.h"])
    {'age': 'age', 'age/present': 'age_present', 'km/h': 'km_h', 'km.h': 'km_h_'}
    >>> argument_names(["class", "class_"])
    {'class': 'class_', 'class_': 'class__'}
    >>> argument_names(["A B", "a b"])
    {'A B': 'A_B', 'a b': 'a_b_'}
    """
    plain_names: dict[str, str] = {}
    taken = {"self"}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = plain if plain[:1].isalpha() else f"x{plain}"
        while plain.lower() in taken or keyword.iskeyword(plain):
            plain += "_"
        taken.add(plain.lower())
        plain_names[name] = plain
    return plain_names


def _record_specs(name: str, feature: Feature) -> dict[str, Any]:
    """The TensorSpecs of a feature of one record after the steps."""
    form = tensor_form(feature)
    if isinstance(feature, Image) and not is_encoded(feature):
        shape: tuple[int | None, ...] = (feature.height, feature.width, feature.channels)
        return {name: _spec(shape, feature.dtype)}
    if form is None:
        return {name: tf.TensorSpec([], tf.string)}
    dtype = "float32" if feature.kind == "audio" else form.dtype
    specs = {name: _spec(form.shape, dtype)}
    specs |= {side: tf.TensorSpec([], tf.int64) for side in side_columns(name, feature)}
    if is_optional(feature):
        specs[presence_name(name)] = tf.TensorSpec([], tf.bool)
    return specs


def _spec(shape: tuple[int | None, ...], dtype: str) -> Any:
    if None not in shape:
        return tf.TensorSpec(shape, dtype)
    ragged_rank = _last_ragged(shape)
    return tf.RaggedTensorSpec(shape, dtype, ragged_rank=ragged_rank, row_splits_dtype=tf.int64)


def _as(value: Any, spec: Any) -> Any:
    """Converts a value of one record to its spec: ragged if inner dimensions vary."""
    ragged_rank = getattr(spec, "ragged_rank", 0)
    return tf.RaggedTensor.from_tensor(value, ragged_rank=ragged_rank) if ragged_rank else value


def _last_ragged(shape: tuple[int | None, ...]) -> int:
    """The number of ragged dimensions in a record: up to the last that varies."""
    return max(index for index, dim in enumerate(shape) if dim is None)


def _given(name: str, feature: Feature, given: dict[str, Any]) -> dict[str, Any]:
    """Converts a feature of one request to the form that steps expect."""
    if isinstance(feature, Image) and is_encoded(feature):
        content = given[name]
        shape = tf.shape(tf.io.decode_image(content, channels=3, expand_animations=False))
        orientation = orientation_of(content)
        turned = orientation >= 5
        height, width = (tf.cast(shape[axis], tf.int64) for axis in (0, 1))
        sides = (
            tf.where(turned, width, height),
            tf.where(turned, height, width),
            orientation,
        )
        return {name: content, **dict(zip(side_columns(name, feature), sides, strict=True))}
    record = {name: given[name]}
    if is_optional(feature):
        form = tensor_form(feature)
        present = given[_flag(name)]
        record[presence_name(name)] = present
        if form is not None and not form.shape:
            fill = tf.constant(form.fill, form.dtype)
            record[name] = tf.where(present, record[name], fill)
        else:
            record[name] = given[name][: tf.where(present, tf.shape(given[name])[0], 0)]
    return record | {side: given[side] for side in side_columns(name, feature)}


def _nothing(name: str, feature: Feature) -> dict[str, Any]:
    """Placeholder values of a feature that no output is computed from."""
    if isinstance(feature, Image) and not is_encoded(feature):
        shape = (feature.height or 0, feature.width or 0, feature.channels)
        return {name: tf.zeros(shape, feature.dtype)}
    form = tensor_form(feature) or TensorForm(dtype="string")
    value = tf.zeros([dim or 0 for dim in form.shape], form.dtype)
    presence = {presence_name(name): tf.constant(False)} if is_optional(feature) else {}
    sides = {side: tf.constant(1, tf.int64) for side in side_columns(name, feature)}
    return {name: value, **presence, **sides}


def _transform_inputs(prepared: Features, records: dict[str, Any]) -> dict[str, Any]:
    """Converts prepared records to the types of tensorflow-transform."""
    from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

    specs = TensorAdapter(tensor_adapter_config(prepared)).TypeSpecs()
    given: dict[str, Any] = {}
    for name, feature in prepared.items():
        value = records[name]
        form = tensor_form(feature)
        if isinstance(feature, Image) and not is_encoded(feature):
            given[name] = _as_bytes(value)
            shape = tf.shape(value, tf.int64)
            sizes = {"height": shape[1], "width": shape[2]}
            for side, size in sizes.items():
                if f"{name}/{side}" in specs:
                    given[f"{name}/{side}"] = tf.fill([shape[0]], size)
            continue
        if form is None:
            given[name] = value
            for side in side_columns(name, feature):
                if side in specs:
                    given[side] = tf.ones([tf.shape(value)[0]], tf.int64)
            continue
        spec = specs[name]
        value = tf.cast(value, spec.dtype) if spec.dtype != tf.string else value
        if isinstance(spec, tf.SparseTensorSpec) and isinstance(value, tf.Tensor):
            present = tf.where(records[presence_name(name)])
            value = tf.SparseTensor(
                tf.pad(present, [[0, 0], [0, 1]]),
                tf.gather(value, present[:, 0]),
                tf.cast(tf.stack([tf.shape(value)[0], 1]), tf.int64),
            )
        given[name] = value
        given |= {side: records[side] for side in side_columns(name, feature)}
    return {name: value for name, value in given.items() if name in specs}


def _as_bytes(pixels: Any) -> Any:
    """Converts ``uint8[batch, …]``, or ``uint16``, to one string per record."""
    alphabet = tf.constant([bytes([value]) for value in range(256)])
    octets = pixels if pixels.dtype == tf.uint8 else tf.bitcast(pixels, tf.uint8)
    flat = tf.reshape(octets, [tf.shape(pixels)[0], -1])
    return tf.strings.reduce_join(tf.gather(alphabet, tf.cast(flat, tf.int32)), axis=1)
