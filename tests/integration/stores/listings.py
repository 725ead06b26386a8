"""Listings of S3 and GCS, from which some objects are kept back: as of a store that lags behind."""

import json
import re
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Set

_S3 = "http://s3.amazonaws.com/doc/2006-03-01/"
ET.register_namespace("", _S3)


def asked_to_put(method: str, path: str, body: bytes) -> str | None:
    """The ``bucket/name`` of the object that a request puts whole, by the request itself."""
    where, _, query = path.partition("?")
    parts = where.strip("/").split("/")
    if method == "PUT" and not where.startswith("/upload/") and len(parts) > 1:
        return None if "uploadId=" in query else urllib.parse.unquote("/".join(parts))
    if method == "POST" and where.startswith("/upload/") and "uploadType=multipart" in query:
        # What the object is to be called lies before its bytes.
        named = re.search(rb'"name": ?("[^"\n]*")', body)
        return f"{parts[4]}/{json.loads(named[1])}" if named else None
    return None


def named_by_put(method: str, path: str, content: bytes) -> str | None:
    """The ``bucket/name`` of the object that a request has put, by the store's answer to it."""
    where, _, query = path.partition("?")
    parts = where.strip("/").split("/")
    if method == "PUT" and not where.startswith("/upload/") and len(parts) > 1:
        # A part of a large object has the number of its upload.
        return None if "uploadId=" in query else urllib.parse.unquote("/".join(parts))
    if method == "POST" and "uploadId=" in query:
        return urllib.parse.unquote("/".join(parts))
    if method in ("POST", "PUT") and where.startswith("/upload/"):
        try:
            told = json.loads(content)
            return f"{told['bucket']}/{told['name']}"
        except (ValueError, KeyError, TypeError):
            return None
    return None


def hidden_from(content: bytes, hidden: Set[str], shown: Set[str], *, path: str) -> bytes:
    """A listing without some objects, and without folders that hold nothing else.

    Args:
        content: The store's answer to a GET; other answers than listings come back as they are.
        hidden: ``bucket/name`` of the objects that are kept back …
        shown: … and of all others.
        path: What was asked for.
    """
    if b"ListBucketResult" in content[:400]:
        bucket = path.strip("/").partition("?")[0].strip("/")
        return _without_s3(content, hidden, shown, bucket=bucket)
    where, _, _ = path.partition("?")
    parts = where.strip("/").split("/")
    if parts[:2] == ["storage", "v1"] and parts[-1] == "o":
        return _without_gcs(content, hidden, shown, bucket=parts[-2])
    return content


def _without_s3(content: bytes, hidden: Set[str], shown: Set[str], *, bucket: str) -> bytes:
    root = ET.fromstring(content)
    num_listed = 0
    for kind, tag in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
        for entry in root.findall(f"{{{_S3}}}{kind}"):
            name = f"{bucket}/{entry.findtext(f'{{{_S3}}}{tag}')}"
            if _is_hidden(name, hidden, shown):
                root.remove(entry)
            else:
                num_listed += 1
    count = root.find(f"{{{_S3}}}KeyCount")
    if count is not None:
        count.text = str(num_listed)
    return ET.tostring(root, xml_declaration=True, encoding="UTF-8")


def _without_gcs(content: bytes, hidden: Set[str], shown: Set[str], *, bucket: str) -> bytes:
    told = json.loads(content)
    told["items"] = [
        item
        for item in told.get("items") or []
        if not _is_hidden(f"{bucket}/{item['name']}", hidden, shown)
    ]
    told["prefixes"] = [
        prefix
        for prefix in told.get("prefixes") or []
        if not _is_hidden(f"{bucket}/{prefix}", hidden, shown)
    ]
    return json.dumps({name: value for name, value in told.items() if value}).encode()


def _is_hidden(name: str, hidden: Set[str], shown: Set[str]) -> bool:
    if not name.endswith("/"):
        return name in hidden
    inside = any(one.startswith(name) for one in hidden)
    return inside and not any(one.startswith(name) for one in shown)
