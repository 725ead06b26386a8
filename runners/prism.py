"""Prism: Beam's local engine, a Go program that runs next to this process."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version

from ..schemas.errors import RecipeError
from ..schemas.runner import Prism
from .portable import PortableRunner


class PrismRunner(PortableRunner):
    """Runs jobs on Prism, whose worker is this process."""

    name = "prism"

    def __init__(self, config: Prism) -> None:
        """Stores the configuration; starts nothing."""
        super().__init__(num_workers=config.workers, beam_options=config.beam_options)
        self._binary = config.binary

    def check(self) -> None:
        """Checks that the program exists.

        Raises:
            RecipeError: if it does not.
        """
        self._program()

    def engine_options(self) -> list[str]:
        """The Beam option that selects the runner."""
        return ["--runner=PrismRunner"]

    def server_command(self, port: int, folder: str) -> list[str]:
        """Prism's command line, without its web page."""
        return [self._program(), f"--job_port={port}", "--log_level=warn", "--serve_http=false"]

    def _program(self) -> str:
        if self._binary:
            program = shutil.which(self._binary)
        else:
            places = (os.environ.get("PATH", ""), os.path.expanduser("~/go/bin"))
            program = shutil.which("prism", path=os.pathsep.join(places))
        if program is None:
            place = f"at {self._binary}" if self._binary else "on the PATH or in ~/go/bin"
            raise RecipeError(
                f"Prism was not found {place}. Install it with: go install "
                f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{version('apache-beam')} "
                "(or from Beam's release page), and put it on the PATH or give its path in a "
                'runner file: binary = "/path/to/prism".'
            )
        return os.path.abspath(program)
