"""A stand-in for Dataflow's service: takes jobs as it does, and runs them on this machine.

What a job is comes out of its staged files alone, as on the service: each runs in a process of its
own, which has none of the build's memory or arguments, in an empty folder. What the service itself
would refuse, it does not know.
"""

import dataclasses
import http.server
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from google.cloud import dataflow

from .proxy import _body

_WORKER = Path(__file__).parent / "dataflow_worker.py"
ENDPOINT = "http://sandbox.invalid"
"""Its address, as jobs are told. Beam takes none with a port, and talks HTTP to a "sandbox" alone:
it is reached as the proxy for that name."""
_PATH = re.compile(ENDPOINT + r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/?]+))?(/\w+)?")
_PASSED = "\n\npassed through:\n==>\n    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1337"


@dataclasses.dataclass
class Job:
    """A job that was taken.

    Attributes:
        described: What came, as JSON.
        project: It came to.
        region: Likewise.
        state: ``JOB_STATE_RUNNING`` …
        error: What a worker raised.
    """

    described: dict[str, Any]
    project: str
    region: str
    state: str = "JOB_STATE_RUNNING"
    error: str = ""
    process: subprocess.Popen[str] | None = None

    def answer(self, job_id: str) -> dict[str, Any]:
        """What the service says of it."""
        kept = ("name", "type", "clientRequestId")
        return {
            **{name: self.described[name] for name in kept if name in self.described},
            "id": job_id,
            "projectId": self.project,
            "location": self.region,
            "currentState": self.state,
        }

    @property
    def options(self) -> dict[str, Any]:
        """The options of Beam that it was made with."""
        found: dict[str, Any] = self.described["environment"]["sdkPipelineOptions"]["options"]
        return found

    @property
    def pool(self) -> dict[str, Any]:
        """Its one pool of workers."""
        (found,) = self.described["environment"]["workerPools"]
        assert isinstance(found, dict)
        return found


class DataflowService:
    """The service; a context manager. ``hold`` keeps jobs from running."""

    def __init__(self, folder: Path) -> None:
        """Takes a folder of its own, for what workers leave."""
        self.jobs: dict[str, Job] = {}
        self.hold = False
        self._folder = folder
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                content = json.dumps(service._handle(self.command, self.path, _body(self))).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = _answer

            def log_message(self, format: str, *args: object) -> None:
                """Keeps quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._running: list[threading.Thread] = []

    @property
    def proxy(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def launch(self, described: dict[str, Any], *, project: str, region: str) -> str:
        """Takes a job; gives its id."""
        job_id = f"2026-11-21_{len(self.jobs)}"
        job = self.jobs[job_id] = Job(described, project, region)
        if not self.hold:
            thread = threading.Thread(target=self._run, args=(job_id, job))
            self._running.append(thread)
            thread.start()
        return job_id

    def wait(self, job_id: str) -> Job:
        """Waits for a job's end."""
        deadline = time.monotonic() + 300
        while self.jobs[job_id].state == "JOB_STATE_RUNNING":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self.jobs[job_id]

    def __enter__(self) -> "DataflowService":
        """Starts it."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it, and what it runs."""
        for job in self.jobs.values():
            if job.process is not None:
                job.process.kill()
        for thread in self._running:
            thread.join()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, method: str, path: str, body: bytes) -> Any:
        found = _PATH.match(path)
        assert found is not None, path
        project, region, job_id, part = found.groups()
        if method == "POST":
            assert job_id is None, path
            job_id = self.launch(json.loads(body), project=project, region=region)
        elif method == "PUT":
            assert json.loads(body)["requestedState"] == dataflow.JobState.JOB_STATE_CANCELLED
            self._cancel(self.jobs[job_id])
        job = self.jobs[job_id]
        assert (job.project, job.region) == (project, region)
        if part == "/messages":
            return {"jobMessages": self._messages(job)}
        return job.answer(job_id)

    def _messages(self, job: Job) -> list[dict[str, str]]:
        """The traceback of a worker, then the service's own word, as it gives them."""
        if not job.error:
            return []
        texts = [
            f"Error message from worker: generic::unknown: {job.error}{_PASSED}",
            "Workflow failed. Causes: S01:Work failed., The job failed because a work item has "
            "failed 4 times.",
        ]
        return [
            {
                "id": f"{number}",
                "time": f"2026-11-21T12:00:0{number}Z",
                "messageImportance": "JOB_MESSAGE_ERROR",
                "messageText": text,
            }
            for number, text in enumerate(texts)
        ]

    def _cancel(self, job: Job) -> None:
        job.state = "JOB_STATE_CANCELLED"
        if job.process is not None:
            job.process.kill()

    def _run(self, job_id: str, job: Job) -> None:
        folder = self._folder / job_id
        folder.mkdir()
        job.process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), job.options["pipelineUrl"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
        )
        said, _ = job.process.communicate()
        if job.state != "JOB_STATE_RUNNING":
            return
        if job.process.returncode:
            job.error = said.strip()
        job.state = "JOB_STATE_FAILED" if job.process.returncode else "JOB_STATE_DONE"
