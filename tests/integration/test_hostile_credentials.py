"""Secrets planted wherever a URL may carry them: no output, error or written file has one."""

import http.server
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

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
