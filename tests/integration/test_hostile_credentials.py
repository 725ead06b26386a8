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
from snapshard import cli, startup_noise
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
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)

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


@pytest.mark.slow
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(planted_urls())
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


test_no_secret_of_a_url_is_shown_many = pytest.mark.slow(
    hypothesis.settings(max_examples=200, deadline=None, derandomize=True)(
        hypothesis.given(planted_urls())(test_no_secret_of_a_url_is_shown.hypothesis.inner_test)
    )
)


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


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to u:{}@host",
        "cannot connect to u:12/{}@host:5432/db",
        "bad url https:/u:{}@host/a",
        "bad url https:/host/a?sig={}",
        "GET /a;jsessionid={} failed",
        "http://host/a;jsessionid={};v=1?x=1",
        "pass={}",
        "db_pass = '{}'",
        "auth={}",
        '{{"auth": "{}"}}',
        r"{{\"password\": \"{}\", \"pass\": \"{}\"}}",
        "credential='{}'",
        "credentials: '{}'",
        "https://host/a?sig={} and more",
        "psql --password {} -h host",
        "tool --api-token '{}' x",
        "mysql -h host -p{} db",
        "ran with -p{}7Z",
        "curl -u ann:{} http://host",
        "curl --user=ann:{} http://host",
        "-----BEGIN RSA PRIVATE KEY-----\nMII{}\n{}==\n-----END RSA PRIVATE KEY-----",
        r"'-----BEGIN PRIVATE KEY-----\nMII{}\n-----END PRIVATE KEY-----\n'",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nMII{} (cut off)",
    ],
)
def test_shapes_of_secrets_are_hidden(text: str) -> None:
    said = text.replace("{}", f"{LEFT}9{RIGHT}").replace("{{", "{").replace("}}", "}")
    assert_nothing_left(storage.redact(said), of=said)
    assert_nothing_left(storage.redact_repeated(said, "https://host/a"), of=said)


@pytest.mark.parametrize(
    "text",
    [
        r"C:\data\a:b.csv and C:/data/x@1.2, D:\logs\name@1.2.txt",
        "/data/a:b@1/x.csv, data/name@1.2/t.csv",
        "at 12:30, 12:30:45.123, ann@example.com said: name@1.2",
        "mailto:ann@example.com, git@github.com:owner/name.git",
        "image repo/name:1.2@sha256:0123456789abcdef",
        "a.py:12: passed: 3, bypass=1, compass: north, author: Ann, passes=2",
        "the auth: failed; find . -print -path x; mkdir -p folder",
        "TOKENIZERS_PARALLELISM=false, tokenizer: bert",
        "expected 3 columns, found 4 in 'a.csv' line 5: 1,2,3",
    ],
)
def test_ordinary_text_is_kept(text: str) -> None:
    assert storage.redact_repeated(text, "https://host/a") == text


@pytest.mark.parametrize("saying", SAYINGS, ids=range(len(SAYINGS)))
@pytest.mark.parametrize(
    "around", ["{}", "x{}y", "wrong({})", "{}@h", "-p{}", "key {} of 'a'", "a\n{}\tb"]
)
def test_known_secrets_are_hidden_by_value(
    saying: Callable[[str], str], around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [f"{LEFT}{n}/ %é'{RIGHT}" for n in range(5)]
    storage.learn(f"https://u:{urllib.parse.quote(secrets[0], safe='')}@host/a?x={LEFT}1{RIGHT}")
    storage.learn(f"https://host/a?auth=u:{urllib.parse.quote(secrets[2], safe='')}")
    monkeypatch.setenv("SOME_SECRET", secrets[3])
    monkeypatch.setenv("DATABASE", f"postgres://u:{LEFT}4{RIGHT}@host/db")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"secret": secrets[4]})
    for secret in (*secrets[:1], f"{LEFT}1{RIGHT}", *secrets[2:], f"{LEFT}4{RIGHT}"):
        said = saying(around.format(secret))
        assert_nothing_left(storage.hide_known(said), of=said)


def test_known_values_that_are_words_are_hidden_as_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "enable")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/usr/bin/env")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "disabled")
    said = "enabled, enable, /usr/bin/env, disabled"
    assert storage.hide_known(said) == "enabled, ***, /usr/bin/env, disabled"


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


FAILING = """
import os
import snapshard as ss

def fails(record):
    known, unknown = os.environ["PLANTED_TOKEN"], os.environ["SPELLED"]
    raise ValueError("no " + known + " of " + "u:" + unknown + "@h")

recipe = ss.Recipe(
    name="q",
    source=ss.Csv("{url}"),
    prepare=[ss.records.map_python(fails, {{"c": ss.Scalar("int64")}})],
    max_rejects={budget},
)
"""


@pytest.mark.parametrize("budget", [0, 1.0])
@pytest.mark.slow
def test_what_user_functions_raise_shows_no_known_secret(
    server: str,
    budget: float,
    tmp_path: Path,
    call: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", "plantedkey")
    monkeypatch.setenv("SPELLED", "plantedenv")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(FAILING.format(url=signed(server, "t.csv"), budget=budget))
    code, text = call("build", recipe, "--out", tmp_path / "out")
    print(text)
    assert code == 3
    assert "ValueError" in text
    assert_clean(text)
    code, text = call("rejects", tmp_path / "out" / "q")
    assert "no ***" in text
    assert_clean(text)
    recipe.unlink()
    for staged in (tmp_path / "out").rglob("*.zip"):
        staged.unlink()  # the recipe's own file
    assert assert_no_file_holds_any(tmp_path) > 3


def test_tracebacks_show_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        url = f"https://{USER}:{PASSWORD}@host/a"
        raise RuntimeError(f"plantedenv of {url}")

    monkeypatch.setenv("DB_PASSWORD", "plantedenv")
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)
    monkeypatch.setattr(cli, "_command", fails)
    with pytest.raises(SystemExit):
        cli.main([])
    text = capsys.readouterr().err
    assert_clean(text)
    assert "Traceback" in text
    assert "RuntimeError: *** of https://***@host/a" in text


def test_errors_of_calls_show_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DB_PASSWORD", "plantedenv")
    recipe = ss.Recipe(name="q", source=ss.Csv(str(tmp_path / "plantedenv.csv")))
    with pytest.raises(SnapshardError) as raised:
        ss.build(recipe, tmp_path / "out")
    assert_clean(str(raised.value))
