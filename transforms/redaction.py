"""Hides credentials: in URLs by their structure, in what libraries say by what the URL held.

Of a URL scheme, host, path and the names of its query's parameters are shown. The user, the
password, all values of the query and what follows ``#`` are not.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fsspec
from fsspec.registry import known_implementations

_HIDDEN = "***"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_IS_URL = re.compile(rf"(?:{_SCHEME}::)*{_SCHEME}://")
_LINK = re.compile(rf"::(?={_IS_URL.pattern})")
"""Between two URLs of a chain, as fsspec cuts it."""
_IN_TEXT = re.compile(rf"{_SCHEME}://\S+")
_CLOSING = "'\")>]},.;:"
"""What follows a URL in a text, rather than ends it."""
_LOCAL = {"file", "local"}
_WITH_GLOBS = set(known_implementations) - {"http", "https", *_LOCAL}
"""Schemes in whose paths ``?`` is a wildcard and ``#`` a letter, unless a parameter follows."""
_PARAMETER = re.compile(r"\?[^=&/?]+=")
_NAME = re.compile(r"[\w.%\[\]-]+")
_SECRET_NAME = (
    r"(?:password|passwd|pwd|passphrase|secret|token|signature|connection_?string"
    r"|(?:access|account|api|private|secret|shared)[_-]?(?:access[_-]?)?key|key[_-]?secret)"
)
_VALUE = r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s;&,'"]+)"""
_ASSIGNED = re.compile(rf"""(?i)(\b\w*{_SECRET_NAME}\w*["']?\s*[=:](?!:|//)\s*){_VALUE}""")
_HEADER = re.compile(
    r"""(?i)(\b(?:authorization|(?:set-)?cookie)["']?\s*[:=]\s*["']?)[^"'\r\n]+"""
    r"""|(\bbearer\s+)[^\s'",;]+"""
)
_ENVIRONMENT = re.compile(rf"(?i){_SECRET_NAME}(?!.*_(?:file|path|url|uri)$)")
_HEX = "[0-9A-Fa-f][0-9A-Fa-f]"
_MIN_PASSWORD, _MIN_VALUE, _MIN_ANYWHERE, _MIN_ENVIRONMENT = 3, 4, 6, 8
"""Shorter ones may stand anywhere by chance; below the third length, only between other letters."""


@dataclasses.dataclass(frozen=True)
class _Parts:
    """One URL of a chain, taken apart.

    Attributes:
        shown: The URL without its secrets.
        passwords: What stands for a password.
        values: What else is a secret.
    """

    shown: str
    passwords: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def redact(text: str) -> str:
    """Hides what a URL, or URLs in a text, may carry of credentials.

    So it does with what is assigned to a name such as ``password`` or ``AccountKey``, and with
    ``Bearer …``.

    Args:
        text: A URL, which may be chained and may hold anything; a path; or a text, in which a URL
            ends at the first space.

    >>> redact("https://ann:secret@host/a.csv?sig=abc")
    'https://***@host/a.csv?sig=***'
    >>> redact("https://host/a.csv?auth=user:X&Y#Z")
    'https://host/a.csv?auth=***&***#***'
    >>> redact("host=db password='s e' AccountKey=a+b==;x=1")
    'host=db password=*** AccountKey=***;x=1'
    """
    if _IS_URL.match(text):
        return _ASSIGNED.sub(rf"\1{_HIDDEN}", "::".join(part.shown for part in _parts(text)))
    text = _IN_TEXT.sub(_shown_in_text, text)
    return _ASSIGNED.sub(rf"\1{_HIDDEN}", _HEADER.sub(_header_shown, text))


def redact_repeated(text: str, url: str) -> str:
    """Hides in what a library says the secrets of the URL that it was given, too.

    So it does with those that the environment and fsspec's configuration hold under a name such
    as ``PGPASSWORD`` or ``AWS_SECRET_ACCESS_KEY``.

    Args:
        text: What the library says.
        url: Any URL, or a database's ``key=value`` string.

    >>> redact_repeated('no bucket "ann:secret@b"', "s3://ann:secret@b/a.csv")
    'no bucket "***@b"'
    """
    text = text.replace(url, redact(url))
    for secret in sorted({*_secrets(url), *_configured()}, key=len, reverse=True):
        text = _hide(text, secret)
    return redact(f" {text}")[1:]


def passwords_in(url: str) -> list[str]:
    """The passwords in a URL or a database's ``key=value`` string, as written and decoded."""
    found = [password for part in _parts(url) for password in part.passwords]
    found += _assigned(url)
    return list(dict.fromkeys([*found, *map(urllib.parse.unquote, found)]))


def _header_shown(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}{_HIDDEN}"


def _shown_in_text(match: re.Match[str]) -> str:
    url = match[0].rstrip(_CLOSING)
    return "::".join(part.shown for part in _parts(url)) + match[0][len(url) :]


def _secrets(url: str) -> Iterator[str]:
    """What a message on a URL must not hold."""
    for part in _parts(url):
        for password in part.passwords:
            if len(password) >= _MIN_PASSWORD:
                yield password
        for value in part.values:
            if len(value) >= _MIN_VALUE:
                yield value
    yield from _assigned(url)


def _assigned(text: str) -> list[str]:
    return [match[0][len(match[1]) :].strip("'\"") for match in _ASSIGNED.finditer(text)]


def _parts(url: str) -> list[_Parts]:
    return [_take_apart(one) for one in _LINK.split(url)]


def _take_apart(url: str) -> _Parts:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() in _LOCAL:
        return _Parts(url)
    user, rest = _cut_user(rest)
    passwords: list[str] = []
    values: list[str] = []
    if user:
        name, _, password = user.partition(":")
        basic = base64.b64encode(urllib.parse.unquote(user).encode("utf-8", "replace")).decode()
        values += [user, name, basic]
        # A library that takes its beginning for a port repeats the rest.
        passwords += filter(None, (password, *re.split("[/?#]", password, maxsplit=1)[1:]))
    path, query, fragment = _cut_query(scheme.lower(), rest)
    shown = []
    for parameter in query.split("&") if query else []:
        name, _, value = parameter.partition("=")
        if value.strip("=") and _NAME.fullmatch(name):
            shown.append(f"{name}={_HIDDEN}")
            (passwords if re.search(_SECRET_NAME, name, re.IGNORECASE) else values).append(value)
        else:
            # A token that stands alone may end with "=".
            shown.append(_HIDDEN if parameter else "")
            values.append(parameter)
    tail = rest[len(path) + 1 :]
    values += filter(None, (query, tail, *re.split("[#&]", tail)))
    # "user:password" and "token=…" may be repeated in part.
    values += [part for value in values for part in re.split("[:=]", value, maxsplit=1)[1:]]
    return _Parts(
        f"{scheme}://{f'{_HIDDEN}@' if user else ''}{path}"
        + ("?" + "&".join(shown) if query else "")
        + (f"#{_HIDDEN}" if fragment else ""),
        tuple(passwords),
        tuple(values),
    )


def _cut_user(rest: str) -> tuple[str, str]:
    """User and password, and what follows their ``@``.

    Strictly a password holds no ``/``, ``?`` or ``#``. People write them all the same, and some
    libraries take them: a colon before them that no port follows, or a later ``@``, shows it.
    """
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    at = authority.rfind("@")
    _, colon, port = authority.rpartition(":")
    if at < 0 and colon and not re.fullmatch(r"\[[^]]*\]", authority):
        begin = 0 if port.isdecimal() else max(0, rest.find("@"))
        end = re.compile("[?#]|$").search(rest, begin)
        at = rest.rfind("@", 0, None if end is None else end.start())
    return (rest[:at], rest[at + 1 :]) if at >= 0 else ("", rest)


def _cut_query(scheme: str, rest: str) -> tuple[str, str, str]:
    """Path, query and fragment."""
    if scheme in _WITH_GLOBS:
        found = _PARAMETER.search(rest)
        at = len(rest) if found is None else found.start()
        return rest[:at], rest[at + 1 :], ""
    rest, _, fragment = rest.partition("#")
    path, _, query = rest.partition("?")
    return path, query, fragment


def _configured() -> set[str]:
    """Secrets of the environment and of fsspec's configuration, by their names."""
    return {*_named(os.environ), *_named(fsspec.config.conf)}


def _named(options: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    for key, value in options.items():
        name = str(key)
        if isinstance(value, Mapping):
            yield from _named(value, name)
        elif (
            isinstance(value, str)
            and len(value) >= _MIN_ENVIRONMENT
            # s3fs calls its credentials key and secret.
            and (_ENVIRONMENT.search(name) or (above and name == "key"))
        ):
            yield value


def _hide(text: str, secret: str) -> str:
    """Replaces a secret wherever it is repeated, however its letters are escaped."""
    written = {secret, urllib.parse.unquote(secret), urllib.parse.unquote_plus(secret)}
    for one in sorted(filter(None, written), key=len, reverse=True):
        pattern = "".join(_letter(letter) for letter in one)
        if len(one) < _MIN_ANYWHERE:
            pattern = rf"(?:(?<!\w)|(?<=%{_HEX})|(?<=%25{_HEX})){pattern}(?!\w)"
        text = re.sub(pattern, _HIDDEN, text)
    return text


def _letter(letter: str) -> str:
    """A pattern for a letter: itself, as Python or JSON escapes it, or percent-encoded."""
    encoded = "".join(f"%(?:25)*{byte:02x}" for byte in _bytes(letter))
    ways: Iterable[str] = [rf"\\*{re.escape(letter)}", f"(?i:{encoded})"]
    if not letter.isascii():
        ways = [*ways, rf"\\+(?i:u{ord(letter):04x}|x{ord(letter):02x})"]
    if letter == " ":
        ways = [*ways, r"\+", r"\s+"]
    return f"(?:{'|'.join(ways)})"


def _bytes(letter: str) -> bytes:
    is_byte = "\udc80" <= letter <= "\udcff"
    return letter.encode("utf-8", "surrogateescape" if is_byte else "replace")
