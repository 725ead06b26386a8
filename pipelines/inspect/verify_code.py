"""What of a snapshot is not data: the reader's files, which people edit, and ``build.json``."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any

from ...schemas.fingerprint import digest
from ...schemas.manifest import Manifest, json_checksum
from ...schemas.naming import BUILD, is_reader_file
from .verify_report import Findings

MAX_CODE_BYTES = 4 << 20
"""A file of a reader is a hundredth of that; what is longer is not one, however edited."""


def is_code(name: str) -> bool:
    """Whether a file is the reader's, which may be edited: that does not affect the data."""
    return is_reader_file(name)


def check_code(name: str, content: bytes, manifest: Manifest, findings: Findings) -> None:
    """Says of a reader's file that is not as it was written whether it can still be used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except SyntaxError as error:
        where = "" if error.lineno is None else f" (line {error.lineno}: {error.msg})"
        findings.damage(name, "content", f"it is no longer Python{where}")
        return
    except (ValueError, RecursionError, MemoryError) as error:
        findings.damage(name, "content", f"it is no longer Python ({error})")
        return
    told = _constant(tree, "FINGERPRINT")
    if isinstance(told, str) and told != manifest.fingerprint:
        what = f"it reads the snapshot {told}, and this is {manifest.fingerprint}"
        findings.damage(name, "foreign", what)
        return
    what = "was edited after it was written; all else is held against the manifest as ever"
    findings.warn(name, "edited", what)


def _constant(tree: ast.Module, name: str) -> object:
    """What a module sets a name to at its top level, if that is a constant."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    return node.value.value
    return None


def with_checksum(facts: Mapping[str, object]) -> dict[str, object]:
    """The facts of a build with a checksum, by which an edit of ``build.json`` shows."""
    value: dict[str, Any] = json.loads(json.dumps(facts))
    return {**value, "checksum": json_checksum(value)}


def check_build_facts(content: bytes, manifest: Manifest, findings: Findings) -> int | None:
    """Says what is odd about ``build.json``, which the manifest does not list.

    Returns:
        The limit that the snapshot was built with, if that is known.
    """
    try:
        value: Any = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        findings.warn(BUILD, "edited", f"is not JSON: {error}")
        return None
    if not isinstance(value, dict):
        findings.warn(BUILD, "edited", "holds no JSON object")
        return None
    try:
        right = value.get("checksum") == json_checksum(value)
    except RecursionError:
        right = False
    if not right:
        what = "its checksum is not that of its content" if "checksum" in value else "it has none"
        findings.warn(
            BUILD, "edited", f"was edited, or is from before there were checksums: {what}"
        )
        return None
    parts = value.get("fingerprint_parts")
    if parts is not None and _fingerprint_of(parts) != manifest.fingerprint:
        what = f"is of another snapshot: its fingerprint_parts do not give {manifest.fingerprint}"
        findings.warn(BUILD, "foreign", what)
        return None
    splits = parts.get("splits") if isinstance(parts, dict) else None
    limit = splits.get("limit") if isinstance(splits, dict) else None
    return limit if isinstance(limit, int) else None


def _fingerprint_of(parts: object) -> str | None:
    try:
        return digest(parts)[:16]
    except (TypeError, ValueError, RecursionError):
        return None
