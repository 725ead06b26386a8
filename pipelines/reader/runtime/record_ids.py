"""``with_id=``: adds the id of each record, which the index holds and the examples do not."""

from __future__ import annotations

import dataclasses
import importlib
import io
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .options import Options
from .pipeline import Plan
from .shards import manifest_of, read_listed

NAME = "record_id"
"""Name of the ids among the features."""


def add_ids(plan: Plan) -> Plan:
    """Adds the record's id to each example of a batch: string[batch].

    The ids of the records to read are held in memory, and looked up by each record's position.

    Raises:
        ValueError: if the index is missing or damaged, or pyarrow is not installed.
    """
    options, parse = plan.options, plan.parse_batch
    with tf.init_scope():
        ids = tf.constant(_read_ids(options), tf.string)
    num = options.selection.num_examples

    def identified(*element: Any) -> Any:
        if options.augments:
            (_, places), _ = element
            batch = parse(*element)
        else:
            records, places = element if len(element) == 2 else element[0]
            batch = parse(records)
        own = tf.gather(ids, places % num)  # with balance=, a record's turns are num apart
        if isinstance(batch, dict):
            return {**batch, NAME: own}
        return (*batch, own) if isinstance(batch, tuple) else (batch, own)

    return dataclasses.replace(plan, parse_batch=identified)


def check_ids(options: Options) -> None:
    """Raises ValueError if a feature has the name of the ids, so that both cannot be in a dict."""
    if NAME in facts.FEATURES and not options.as_supervised:
        raise ValueError(
            f"with_id=True adds {NAME!r}, but {facts.NAME} has a feature of that name: leave it "
            "out, or pass as_supervised=True, which gives (features, label, id)."
        )


def _read_ids(options: Options) -> list[str]:
    """The ids of all selected records, in stored order."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            "with_id=True reads the ids from index/*.parquet, for which pyarrow is needed: pip "
            "install pyarrow."
        ) from None
    root, ids = options.root_folder, list[str]()
    manifest = manifest_of(root)
    for section in options.selection.sections(manifest):
        name = f"index/{section.entry['file']}.parquet"
        listed = manifest["files"].get(name)
        content = listed and read_listed(f"{root}/{name}", listed["bytes"], listed["sha256"], root)
        if content is None:
            raise ValueError(
                f"There is no {root}/{name}, which holds the ids for with_id=: copy the "
                "snapshot's index again."
            )
        table = parquet.read_table(io.BytesIO(content), columns=["id"])
        ids += table.column("id").slice(section.first, section.num).to_pylist()
    return ids
