"""The fingerprint: canonical JSON, what changes it, which parts differ."""

import dataclasses
import json
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from snapshard.schemas.fingerprint import (
    FingerprintParts,
    canonical_json,
    differences,
    digest,
    fingerprint,
    library_versions,
)

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def _parts(**changes: Any) -> FingerprintParts:
    base: dict[str, Any] = {
        "name": "digits",
        "inputs": "ab" * 32,
        "prepare": {"seed": 0, "steps": ["cd" * 32]},
        "splits": {"fractions": {"train": 0.8, "test": 0.2}},
        "shards": {"target_bytes": 150},
        "versions": {"numpy": "2.4.0", "python": "3.11"},
    }
    return FingerprintParts(**{**base, **changes})


def _reversed(value: Any) -> Any:
    """The same value, every mapping's keys in the reverse order."""
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(list(value))}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


@given(_JSON)
def test_canonical_json_reads_back_and_ignores_the_order_of_keys(value: Any) -> None:
    content = canonical_json(value)
    assert json.loads(content) == value
    assert canonical_json(_reversed(value)) == content
    assert len(digest(value)) == 64


@given(_JSON, _JSON)
def test_other_values_have_other_digests(a: Any, b: Any) -> None:
    assert (digest(a) == digest(b)) == (canonical_json(a) == canonical_json(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, 1.0), (1, True), (0, None), ("1", 1), ([], {}), ([1, 2], [2, 1]), ("\xe9", "e\u0301")],
)
def test_what_only_looks_the_same_differs(a: object, b: object) -> None:
    assert digest(a) != digest(b)


@pytest.mark.parametrize("value", [{1: 2}, [{"a": {None: 1}}], {"a": object()}, {"a": {1, 2}}])
def test_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        digest(value)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")]])
def test_numbers_that_json_cannot_say_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(value)


def test_undecodable_file_names_have_a_digest() -> None:
    assert digest("caf\udce9.jpg") != digest("caf?.jpg")


def test_a_fingerprint_is_16_hex_digits_and_stays() -> None:
    assert fingerprint(_parts(format_version=1)) == "bd6851afc00fc53b"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(FingerprintParts)])
def test_every_part_counts(field: str) -> None:
    changed = dataclasses.replace(_parts(), **{field: {"another": "value"}})
    assert fingerprint(changed) != fingerprint(_parts())
    named = differences(_parts().to_json(), changed.to_json())
    assert {name.partition(".")[0] for name in named} == {field}


def test_differences_names_what_differs() -> None:
    assert differences(_parts().to_json(), _parts().to_json()) == []
    changed = _parts(
        prepare={"seed": 1, "steps": ["cd" * 32], "source": {}},
        versions={"numpy": "2.4.1", "pillow": "12", "python": "3.11"},
    )
    assert differences(_parts().to_json(), changed.to_json()) == [
        "prepare.seed",
        "prepare.source",
        "versions.numpy",
        "versions.pillow",
    ]
    assert differences({"seed": 1}, {"seed": True}) == ["seed"]


def test_library_versions_names_what_shapes_bytes() -> None:
    versions = library_versions()
    assert list(versions) == sorted(versions)
    assert set(versions) == {
        "apache-beam",
        "numpy",
        "pillow",
        "protobuf",
        "pyarrow",
        "simplejpeg",
        "python",
        "snapshard",
        "tensorflow",
        "tensorflow-metadata",
        "tensorflow-transform",
        "tfx-bsl",
    }
    assert versions["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert "absent" not in versions.values()


@pytest.mark.parametrize("name", ["TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"])
def test_settings_that_change_sums_count_where_they_are_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    assert name not in library_versions()
    monkeypatch.setenv(name, "0")
    assert library_versions()[name] == "0"


def test_library_versions_imports_no_library() -> None:
    script = (
        "import sys; from snapshard.schemas.fingerprint import library_versions; "
        "library_versions(); "
        "sys.exit(bool({'tensorflow', 'apache_beam', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
