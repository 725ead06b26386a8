"""Hides credentials: in URLs by their structure, in other text by value and by shape.

Of a URL, the scheme, host, path and parameter names of the query are shown; the user, the
password, all values of the query and what follows ``#`` are hidden.

Secrets known to this process are removed from every message by value, whatever surrounds them:
those of URLs that it opened (:func:`learn`), of the environment and of fsspec's configuration.
Unknown secrets are recognized by the forms in which libraries and shells write them:
``user:password@host``, ``password=…``, ``--token …``, ``Bearer …``, PEM keys.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
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
"""Between two URLs of a chain, where fsspec splits it."""
_SCHEMES = "|".join(map(re.escape, sorted({*known_implementations, "postgresql", "postgres"})))
_IN_TEXT = re.compile(rf"{_SCHEME}://\S+|\b(?i:{_SCHEMES}):/(?!/)\S+")
"""URLs in a text, including those whose two slashes were normalized to one, as in paths."""
_BEGIN = re.compile(rf"({_SCHEME})://|((?i:{_SCHEMES})):/(?!/)")
_CLOSING = "'\")>]},.;:"
"""Characters that follow a URL in a text rather than end it."""
_LOCAL = {"file", "local"}
_WITH_GLOBS = set(known_implementations) - {"http", "https", *_LOCAL}
"""Schemes whose paths treat ``?`` as a wildcard and ``#`` literally, unless a parameter follows."""
_PARAMETER = re.compile(r"\?[^=&/?]+=")
_NAME = re.compile(r"[\w.%\[\]-]+")
_SECRET_NAME = (
    r"(?:password|passwd|pwd|passphrase|secret|token(?!iz)|signature|connection_?string"
    r"|session_?id"
    r"|(?:access|account|api|private|secret|shared)[_-]?(?:access[_-]?)?key|key[_-]?secret)"
)
_SHORT_NAME = r"(?:[\w-]*[_-])?(?:pass|pw|auth|credentials?|sig|sas|jwt)"
"""Names of secrets that are also parts of other words (bypass, author), and used in prose."""
_VALUE = r"""(?:\\+"[^"]*"|\\+'[^']*'|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s;&,'"]+)"""
_ASSIGNED = re.compile(rf"""(?i)(\b\w*{_SECRET_NAME}\w*(?:\\*["'])?\s*[=:](?!:|//)\s*){_VALUE}""")
_SHORT_ASSIGNED = re.compile(
    rf"""(?i)((?<![\w-]){_SHORT_NAME}(?:\s*=\s*|\\*["']\s*[=:]\s*|:\s*(?=["'])|:(?![\s:/]))){_VALUE}"""
)
_FLAG = re.compile(
    rf"""(?i)((?<!\S)--?(?:[\w-]*{_SECRET_NAME}[\w-]*|{_SHORT_NAME})\s+){_VALUE}"""
    rf"""|((?<!\S)(?:-u|--user)[= ]['"]?[^\s:'"]+:){_VALUE}"""
)
_PASSWORD_FLAG = re.compile(
    rf"""(\b(?:mysql\w*|mariadb[\w-]*|sshpass|7z)\s[^\r\n]*?(?<=\s)-p|(?<!\S)-p(?![a-z-]+(?:[=\s]|$)))"""
    rf"""{_VALUE}"""
)
"""As in ``mysql -pX``; elsewhere a word of lowercase letters is another option (``-print``)."""
_USER_AT_HOST = re.compile(
    r"((?:(?<![\w./\\%+-])|(?<=//))(?!mailto:)[\w.%+-]{1,256}:)"
    r"(?![\\/])[^\s'\"<>]{1,256}(?=@(?!sha\d+:)[\w\[])"
)
"""``user:password@host`` without a scheme; not a mail address, not a digest of an image."""
_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----).*?"
    r"(?=-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_HEADER = re.compile(
    r"""(?i)(\b(?:authorization|(?:set-)?cookie)["']?\s*[:=]\s*["']?)[^"'\r\n]+"""
    r"""|(\bbearer\s+)[^\s'",;]+"""
)
_ENVIRONMENT = re.compile(
    rf"(?i)(?:{_SECRET_NAME}|(?:^|_)(?:pass|pw|auth|credentials?|sas|jwt)$)"
    r"(?!.*_(?:file|path|url|uri|dir|sock)s?$)"
)
_PATH_PARAMETER = re.compile(r"(;[\w.-]+=)([^/;]+)")
_LEARNED: set[str] = set()
_HEX = "[0-9A-Fa-f][0-9A-Fa-f]"
_MIN_PASSWORD, _MIN_VALUE, _MIN_ANYWHERE = 3, 4, 6
"""Shorter ones may occur anywhere by chance; below the third length, hidden only as a full word."""


@dataclasses.dataclass(frozen=True)
class _Parts:
    """One URL of a chain, parsed.

    Attributes:
        shown: The URL without its secrets.
        passwords: Its passwords.
        values: Other parts to hide where a library repeats them.
        known: What is hidden everywhere: all of these except a user name that has a password.
    """

    shown: str
    passwords: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def redact(text: str) -> str:
    """Hides credentials in a URL, or in the URLs in a text.

    Also hides what is assigned to a name such as ``password`` or ``AccountKey``, and what follows
    ``Bearer``.

    Args:
        text: A URL, which may be chained and may contain anything; a path; or a text, in which a
            URL ends at the first space.

    >>> redact("https://ann:secret@host/a.csv?sig=abc")
    'https://***@host/a.csv?sig=***'
    >>> redact("https://host/a.csv?auth=user:X&Y#Z")
    'https://host/a.csv?auth=***&***#***'
    >>> redact("host=db password='s e' AccountKey=a+b==;x=1")
    'host=db password=*** AccountKey=***;x=1'
    """
    if _IS_URL.match(text):
        return _ASSIGNED.sub(rf"\1{_HIDDEN}", "::".join(part.shown for part in _parts(text)))
    text = _HEADER.sub(_name_shown, _IN_TEXT.sub(_shown_in_text, _PEM.sub(rf"\1{_HIDDEN}", text)))
    for shape in (_ASSIGNED, _SHORT_ASSIGNED, _FLAG, _PASSWORD_FLAG, _USER_AT_HOST):
        text = shape.sub(_name_shown, text)
    return text


def redact_repeated(text: str, url: str = "") -> str:
    """Hides secrets in the message of a library or a user's function, by value and by shape.

    Args:
        text: The message.
        url: The URL that the library was given, whose secrets are hidden even if they are short;
            or a database's ``key=value`` string.

    >>> redact_repeated('no bucket "ann:secret@b"', "s3://ann:secret@b/a.csv")
    'no bucket "***@b"'
    """
    if url:
        text = text.replace(url, redact(url))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = _hide(text, secret)
    return redact(f" {hide_known(text)}")[1:]


def learn(url: str) -> None:
    """Records the secrets of a URL that this process uses, for :func:`hide_known`."""
    found = [*(one for part in _parts(url) for one in part.known), *_assigned(url)]
    found += map(urllib.parse.unquote, list(found))
    _LEARNED.update(one for one in found if len(one) >= _MIN_ANYWHERE)


def known_secrets() -> tuple[str, ...]:
    """What :func:`hide_known` hides: secrets learned, of the environment, and of fsspec's config.

    Values of fewer than six characters are left out: they may occur anywhere by chance.
    """
    known = {*_LEARNED, *_of_environment(tuple(os.environ.items())), *_named(fsspec.config.conf)}
    return tuple(sorted(known, key=len, reverse=True))


def hide_known(text: str, known: Iterable[str] | None = None) -> str:
    """Hides all secrets that this process knows, wherever they occur and however they are escaped.

    Secrets made only of lowercase letters or only of digits are hidden as full words only.

    Args:
        text: Any text.
        known: The result of :func:`known_secrets`, to reuse it for many texts.

    >>> learn("https://host/a?token=plantedtoken")
    >>> hide_known("403 for plantedtoken")
    '403 for ***'
    """
    flat = _flat(text)
    for secret in known_secrets() if known is None else known:
        if not secret.isascii() or _flat_secret(secret) in flat:
            text = _hide(text, secret, alone=_is_word(secret))
    return text


@contextlib.contextmanager
def hiding_known_in_errors() -> Iterator[None]:
    """Hides secrets that this process knows in the messages of errors that pass through."""
    try:
        yield
    except Exception as error:
        one: BaseException | None = error
        while one is not None:
            one.args = tuple(hide_known(a) if isinstance(a, str) else a for a in one.args)
            one = one.__cause__ or one.__context__
        raise


def passwords_in(url: str) -> list[str]:
    """The passwords in a URL or a database's ``key=value`` string, as written and decoded."""
    found = [password for part in _parts(url) for password in part.passwords]
    found += _assigned(url)
    return list(dict.fromkeys([*found, *map(urllib.parse.unquote, found)]))


def _name_shown(match: re.Match[str]) -> str:
    """What precedes a secret, followed by the mark that hides it."""
    return f"{next(filter(None, match.groups()), '')}{_HIDDEN}"


def _shown_in_text(match: re.Match[str]) -> str:
    url = match[0].rstrip(_CLOSING)
    return "::".join(part.shown for part in _parts(url)) + match[0][len(url) :]


def _secrets(url: str) -> Iterator[str]:
    """Secrets that a message about a URL must not contain."""
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
    begin = _BEGIN.match(url)
    if begin is None or (scheme := begin[1] or begin[2]).lower() in _LOCAL:
        return _Parts(url)
    rest = url[begin.end() :]
    user, rest = _cut_user(rest)
    passwords: list[str] = []
    values: list[str] = []
    if user:
        name, _, password = user.partition(":")
        basic = base64.b64encode(urllib.parse.unquote(user).encode("utf-8", "replace")).decode()
        values += [user, name, basic]
        # A library that parses its beginning as a port repeats the rest.
        passwords += filter(None, (password, *re.split("[/?#]", password, maxsplit=1)[1:]))
    path, query, fragment = _cut_query(scheme.lower(), rest)
    path_shown = path
    if scheme.lower() in ("http", "https"):
        values += [found[2] for found in _PATH_PARAMETER.finditer(path)]
        path_shown = _PATH_PARAMETER.sub(rf"\1{_HIDDEN}", path)
    shown = []
    for parameter in query.split("&") if query else []:
        name, _, value = parameter.partition("=")
        if value.strip("=") and _NAME.fullmatch(name):
            shown.append(f"{name}={_HIDDEN}")
            (passwords if re.search(_SECRET_NAME, name, re.IGNORECASE) else values).append(value)
        else:
            # A token without a name may end with "=".
            shown.append(_HIDDEN if parameter else "")
            values.append(parameter)
    tail = rest[len(path) + 1 :]
    values += filter(None, (query, tail, *re.split("[#&]", tail)))
    # "user:password" and "token=…" may be repeated in part.
    values += [part for value in values for part in re.split("[:=]", value, maxsplit=1)[1:]]
    return _Parts(
        f"{begin[0]}{f'{_HIDDEN}@' if user else ''}{path_shown}"
        + ("?" + "&".join(shown) if query else "")
        + (f"#{_HIDDEN}" if fragment else ""),
        tuple(passwords),
        tuple(values),
        # A user name that has a password is hidden only in messages about this URL.
        tuple(one for one in (*passwords, *values) if not user.startswith(f"{one}:")),
    )


def _cut_user(rest: str) -> tuple[str, str]:
    """User and password, and what follows their ``@``.

    Strictly, a password contains no ``/``, ``?`` or ``#``. People write them anyway, and some
    libraries accept them: a colon before them that no port follows, or a later ``@``, shows this.
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


def _named(options: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    for key, value in options.items():
        name = str(key)
        if isinstance(value, Mapping):
            yield from _named(value, name)
        elif not isinstance(value, str) or len(value) < _MIN_ANYWHERE:
            continue
        elif _IS_URL.match(value):
            for part in _parts(value):
                yield from (one for one in part.passwords if len(one) >= _MIN_ANYWHERE)
        # s3fs names its credentials key and secret.
        elif (_ENVIRONMENT.search(name) or (above and name == "key")) and not (
            os.path.isabs(value) and os.path.exists(value)
        ):
            yield value


def _hide(text: str, secret: str, *, alone: bool = False) -> str:
    """Replaces a secret wherever it occurs, however its characters are escaped.

    Args:
        text: Any text.
        secret: What to hide.
        alone: Only where it is a full word; always so for a short secret.
    """
    written = {secret, urllib.parse.unquote(secret), urllib.parse.unquote_plus(secret)}
    for one in sorted(filter(None, written), key=len, reverse=True):
        pattern = "".join(_letter(letter) for letter in one)
        if alone or len(one) < _MIN_ANYWHERE:
            before = rf"(?<!\w)|(?<=%{_HEX})|(?<=%25{_HEX})|(?<=\\[nrt])|(?<=-p)"
            pattern = rf"(?:{before}){pattern}(?!\w)"
        text = re.sub(pattern, _HIDDEN, text)
    return text


def _is_word(secret: str) -> bool:
    return re.fullmatch("[a-z]+|[0-9]+", secret) is not None


def _flat(text: str) -> str:
    """Text without percent-encoding, backslashes, spaces and their substitutes."""
    return re.sub(r"[\\\s+]+", "", urllib.parse.unquote(urllib.parse.unquote(text)))


_flat_secret = functools.lru_cache(maxsize=1024)(_flat)


@functools.lru_cache(maxsize=1)
def _of_environment(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(_named(dict(variables)))


def _letter(letter: str) -> str:
    """A pattern for one character: literal, as Python or JSON escapes it, or percent-encoded."""
    encoded = "".join(f"%(?:25)*{byte:02x}" for byte in _bytes(letter))
    forms: Iterable[str] = [rf"\\*{re.escape(letter)}", f"(?i:{encoded})"]
    if not letter.isascii():
        forms = [*forms, rf"\\+(?i:u{ord(letter):04x}|x{ord(letter):02x})"]
    if letter == " ":
        forms = [*forms, r"\+", r"\s+"]
    return f"(?:{'|'.join(forms)})"


def _bytes(letter: str) -> bytes:
    is_byte = "\udc80" <= letter <= "\udcff"
    return letter.encode("utf-8", "surrogateescape" if is_byte else "replace")
