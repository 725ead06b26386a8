"""Secrets planted wherever a URL may carry them: no output, error or written file has one."""

import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import hypothesis
import hypothesis.strategies as st
import pytest

import snapshard as ss
from snapshard import cli
from snapshard.pipelines import startup_noise
from snapshard.schemas.errors import SnapshardError
from snapshard.transforms import storage

USER, PASSWORD, SIGNATURE, TOKEN = "planteduser", "plantedword", "plantedsign", "plantedtoken"
ALL = (USER, PASSWORD, SIGNATURE, TOKEN, "plantedkey", "plantedenv")
ROWS = "a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(50))


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _answer(self, *, with_content: bool) -> None:
        name = self.path.partition("?")[0].strip("/")
        content = {"t.csv": ROWS, "bad.csv": f"{ROWS}1,2,3\n", "cut.csv": "a,b\n"}.get(name)
        if name == "elsewhere.csv":
            self.send_response(302)
            self.send_header("Location", f"http://{USER}:{PASSWORD}@127.0.0.1:1/x?token={TOKEN}")
        elif content is None:
            number = name.partition(".")[0]
            self.send_response(int(number) if number.isdigit() else 404)
        else:
            self.send_response(200)
            length = 100_000 if name == "cut.csv" else len(content)
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if content is not None and with_content:
            self.wfile.write(content.encode())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """``host:port`` of a server of tables, and of answers with an error of any number."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{serving.server_port}"
        serving.shutdown()


def signed(server: str, name: str) -> str:
    query = f"sig={SIGNATURE}&X-Amz-Signature={SIGNATURE}&token={TOKEN}"
    return f"http://{USER}:{PASSWORD}@{server}/{name}?{query}"


def assert_clean(text: str) -> None:
    for line in text.splitlines():
        assert not any(secret in line for secret in ALL), line


def assert_no_file_holds_any(folder: Path) -> int:
    num_files = 0
    for path in folder.rglob("*"):
        if path.is_file():
            num_files += 1
            content = path.read_bytes()
            if path.suffix == ".zip":
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    content += b"".join(map(archive.read, archive.namelist()))
            assert not any(secret.encode() in content + str(path).encode() for secret in ALL), path
    return num_files


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs the command line in this process: its code, and all that it printed."""
    monkeypatch.setattr(startup_noise, "hush_libraries", lambda: None)

    def run(*arguments: str | Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        assert "Traceback" not in written.err
        return int(ended.value.code or 0), written.out + written.err

    return run


@pytest.mark.parametrize("command", ["init", "plan"])
def test_what_is_suggested_shows_none(
    server: str, command: str, call: Callable[..., tuple[int, str]]
) -> None:
    code, text = call(command, signed(server, "t.csv"))
    assert code == 0
    assert_clean(text)
    assert f'"http://***@{server}/t.csv?sig=***' in text
    assert "Credentials are left out of the URL" in text


@pytest.mark.parametrize(
    "name", ["404.csv", "403.csv", "500.csv", "cut.csv", "elsewhere.csv", "404.zip"]
)
def test_servers_that_fail(
    server: str, name: str, tmp_path: Path, call: Callable[..., tuple[int, str]]
) -> None:
    for url in (signed(server, name), f"simplecache::{signed(server, name)}"):
        code, text = call("build", url, "--out", tmp_path / "out")
        assert code in (1, 2)
        assert_clean(text)
        assert server in text
    assert_no_file_holds_any(tmp_path)


UNREACHABLE = (
    f"http://{USER}:{PASSWORD}@127.0.0.1:1/t.csv?sig={SIGNATURE}",
    f"ftp://{USER}:{PASSWORD}@127.0.0.1:1/t.csv",
    f"sftp://{USER}:{PASSWORD}@127.0.0.1:1/t.csv",
    f"s3://{USER}:{PASSWORD}@not a bucket/t.csv",
    f"abfs://container@account.dfs.core.windows.net/t.csv?sv=1&sig={SIGNATURE}",
    f"unknown://{USER}:{PASSWORD}@host/t?token={TOKEN}",
    f"zip://*.csv::http://{USER}:{PASSWORD}@127.0.0.1:1/a.zip?sig={SIGNATURE}",
)


@pytest.mark.parametrize("url", UNREACHABLE)
def test_stores_that_cannot_be_reached(
    url: str, tmp_path: Path, call: Callable[..., tuple[int, str]]
) -> None:
    code, text = call("build", url, "--out", tmp_path / "out")
    assert code in (1, 2)
    assert_clean(text)
    (tmp_path / "t.csv").write_text(ROWS)
    with pytest.raises(SnapshardError) as raised:
        storage.put_bytes(f"{url}/written", b"x")
    assert_clean(str(raised.value))
    assert_clean(repr(raised.value.__cause__))
    assert_no_file_holds_any(tmp_path)


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://{USER}:{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://127.0.0.1:1/db?user={USER}&password={PASSWORD}",
        f"host=127.0.0.1 port=1 password={PASSWORD}",
        "$PLANTED",
    ],
)
def test_databases(
    uri: str,
    tmp_path: Path,
    call: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANTED", f"postgresql://{USER}:plantedenv@127.0.0.1:1/db?sslmode=disable")
    source = f"ss.Sql({uri!r}, query='SELECT 1 AS a ORDER BY 1')"
    recipe = tmp_path / "recipe.py"
    recipe.write_text(f"import snapshard as ss\nrecipe = ss.Recipe(name='q', source={source})\n")
    code, text = call("build", recipe, "--out", tmp_path / "out")
    assert code in (1, 2)
    assert_clean(text)
    recipe.unlink()
    assert_no_file_holds_any(tmp_path)


def test_what_libraries_say_of_a_url() -> None:
    url = f"s3://{USER}:{PASSWORD}@bucket/a.csv?sig={SIGNATURE}%2Fb"
    said = f'Invalid bucket "{USER}:{PASSWORD}@bucket"; {SIGNATURE}/b; AccountKey=plantedkey==;x'
    shown = storage.redact_repeated(said, url)
    assert_clean(shown)
    assert "Invalid bucket" in shown
    for text in (
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=plantedkey+/==;Suffix=b",
        f"SharedAccessSignature={SIGNATURE}",
        f"aws_secret_access_key = plantedkey aws_session_token={TOKEN}",
        f"user=x password='{PASSWORD} {PASSWORD}'",
    ):
        assert_clean(storage.redact(text))


LEFT, RIGHT = "zqxj", "jxqz"
"""Around each planted secret: neither may be left of it."""
SECRETS = st.text(
    st.sampled_from("aZ9_-.~!*'\"()[]{}<>;:@&=+$,/?#% |\\^`é\u4e2d"), min_size=1, max_size=8
).map(lambda text: f"{LEFT}{text}{RIGHT}")
# What ends a query's value, or begins it anew, is not part of it; none of it may be shown either.
HOSTS = ("host", "host:8080", "127.0.0.1", "[::1]:80")
CHAINS = ("", "simplecache::", "zip://*.csv::", "filecache::zip://a/*::")
SAYINGS: tuple[Callable[[str], str], ...] = (
    str,
    repr,
    json.dumps,
    urllib.parse.quote,
    urllib.parse.quote_plus,
    lambda text: urllib.parse.quote(text, safe=""),
    lambda text: urllib.parse.quote(urllib.parse.quote(text)),
    lambda text: urllib.parse.unquote(text),
    lambda text: json.dumps(repr(text)),
)


def assert_nothing_left(shown: str, *, of: str) -> None:
    assert LEFT not in shown, (shown, of)
    assert RIGHT not in shown, (shown, of)


@st.composite
def planted_urls(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A URL that holds secrets wherever one may stand, and these."""
    secrets: list[str] = []

    def secret() -> str:
        secrets.append(draw(SECRETS))
        if draw(st.booleans()):
            return urllib.parse.quote(secrets[-1], safe="")
        # What stands before "=" is a parameter's name, which is shown.
        return secrets[-1].replace("=", "%3D")

    chain, host = draw(st.sampled_from(CHAINS)), draw(st.sampled_from(HOSTS))
    user = draw(st.sampled_from(["", "u:{}@", "u:12/{}@", ":{}@", "{}@", "{}:x@"]))
    query = draw(st.sampled_from(["", "?{}", "?sig={}", "?auth=u:{}", "?a=1&{}", "?a={}&b={}"]))
    fragment = draw(st.sampled_from(["", "#{}", "#token={}"]))
    scheme = draw(st.sampled_from(["https", "http", "postgresql", "unknown"]))
    if user in ("{}@", "{}:x@"):
        # Without a colon before it nothing says that what ends a host is part of a name.
        secrets.append(draw(SECRETS))
        user = user.replace("{}", urllib.parse.quote(secrets[-1], safe=""))
    parts = [re.sub(r"\{\}", lambda _: secret(), part) for part in (user, query, fragment)]
    if user == "u:12/{}@" or "@" in parts[0][:-1]:
        # With "?" or "#" it is a valid URL of another host, with an "@" in its query or fragment.
        parts[0] = parts[0].replace("?", "%3F").replace("#", "%23")
    return f"{chain}{scheme}://{parts[0]}{host}/folder/a.csv{parts[1]}{parts[2]}", secrets


@hypothesis.given(planted_urls())
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
def test_no_secret_of_a_url_is_shown(planted: tuple[str, list[str]]) -> None:
    url, secrets = planted
    shown = storage.redact(url)
    assert_nothing_left(shown, of=url)
    assert storage.redact(shown) == shown
    for saying in SAYINGS:
        said = f"Cannot open {saying(url)}, 403, url={saying(url)}"
        assert_nothing_left(storage.redact_repeated(said, url), of=said)
        for secret in secrets:
            said = f"no such user {saying(secret)}: denied ({saying(secret)!r})"
            assert_nothing_left(storage.redact_repeated(said, url), of=said)


@hypothesis.given(SECRETS)
@hypothesis.settings(max_examples=100, deadline=None)
def test_no_secret_that_a_name_announces_is_shown(secret: str) -> None:
    word = re.sub(r"[\s;&,'\"\\]", "", secret)
    for text in (
        f"password: {word}",
        f"PGPASSWORD={word} psql",
        f"Authorization: Bearer {word}",
        f"authorization='Basic {word}'",
        f"Authorization: Token {word}",
        f"authorization: AWS4-HMAC-SHA256 Credential=k/s3, Signature={word}",
        f"Set-Cookie: session={word}; Path=/",
        f"X-Api-Key: {word}",
        f"Bearer {word}, and more",
        json.dumps({"client_secret": word, "api_key": secret}),
        repr({"sas_token": secret, "AccountKey": word}),
        f"--password={word}",
        f"conninfo host=db password='{word} {word}' user=x",
    ):
        assert_nothing_left(storage.redact(text), of=text)
        assert_nothing_left(storage.redact_repeated(text, "https://host/a"), of=text)


@pytest.mark.parametrize("name", ["PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "SOME_API_TOKEN"])
def test_secrets_of_the_environment_are_not_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"{LEFT}/{RIGHT}")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": f"{LEFT}keys", "secret": f"word{RIGHT}"})
    said = f"no {LEFT}/{RIGHT}, no {LEFT}%2F{RIGHT}, neither {LEFT}keys nor word{RIGHT}"
    assert storage.redact_repeated(said, "s3://b/a") == "no ***, no ***, neither *** nor ***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.csv?auth=user:X", "https://host/a.csv?auth=***"),
        ("https://host/a.csv?sig=a'X&v=1", "https://host/a.csv?sig=***&v=***"),
        ("https://host/a.csv?X", "https://host/a.csv?***"),
        ("https://host/a.csv?c2VjcmV0==", "https://host/a.csv?***"),
        ("https://host/a.csv#X", "https://host/a.csv#***"),
        ("postgresql://u:12/X@host/db", "postgresql://***@host/db"),
        ("https://u:p/X@host/a", "https://***@host/a"),
        ("https://host:8080/a", "https://host:8080/a"),
        ("s3://bucket/part-?/k=v/#1.csv", "s3://bucket/part-?/k=v/#1.csv"),
        ("abfs://c@a.dfs.core.windows.net/t?sig=X", "abfs://***@a.dfs.core.windows.net/t?sig=***"),
        ("file:///data/a?b=c#d", "file:///data/a?b=c#d"),
    ],
)
def test_what_is_kept(url: str, shown: str) -> None:
    assert storage.redact(url) == shown
    assert storage.redact(f"Cannot read '{url}', twice") == f"Cannot read '{shown}', twice"


HOSTILE_QUERIES = (
    f"?auth=user:{LEFT}{RIGHT}",
    f"?sig={LEFT}'{RIGHT}",
    f"?{LEFT}{RIGHT}",
    f"?a=1#{LEFT}{RIGHT}",
    f"#{LEFT}{RIGHT}",
)


@pytest.mark.parametrize("query", HOSTILE_QUERIES)
@pytest.mark.parametrize("name", ["t.csv", "bad.csv", "403.csv", "cut.csv"])
@pytest.mark.slow  # builds
def test_no_secret_reaches_a_file_or_a_message(
    server: str,
    name: str,
    query: str,
    tmp_path: Path,
    call: Callable[..., tuple[int, str]],
) -> None:
    url = f"http://{server}/{name}{query}"
    out = tmp_path / "out"
    texts = [call(command, url)[1] for command in ("plan", "init")]
    texts += [call("build", url, "--out", out)[1] for _ in range(2)]
    if name == "t.csv":
        texts.append(call("verify", out / "t")[1])
    if name in ("t.csv", "bad.csv"):
        texts.append(call("rejects", out / name.removesuffix(".csv"))[1])
    for text in texts:
        assert_nothing_left(text, of=url)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes() + str(path).encode()
            assert LEFT.encode() not in content, path
            assert RIGHT.encode() not in content, path


@pytest.mark.slow
def test_builds_keep_none(server: str, tmp_path: Path) -> None:
    """Builds in full, which loads TensorFlow: one that succeeds, one that is refused."""
    for name, code in (("t.csv", 0), ("bad.csv", 3)):
        done = subprocess.run(
            [sys.executable, "-m", "snapshard", "build", signed(server, name), "--out", "out"],
            cwd=tmp_path,
            env={**os.environ, "AWS_SECRET_ACCESS_KEY": "plantedkey"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stderr
        assert_clean(done.stdout + done.stderr)
    assert assert_no_file_holds_any(tmp_path) > 20
    shown = [ss.Snapshot.open(str(path.parent)) for path in tmp_path.rglob("manifest.json")]
    assert len(shown) == 1
    assert_clean(repr(shown))
