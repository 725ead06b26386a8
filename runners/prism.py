"""Prism: Beam's own local engine, a Go program beside this process."""

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
        """Takes where Prism lies; starts nothing."""
        super().__init__(num_workers=config.workers, beam_options=config.beam_options)
        self._binary = config.binary

    def check(self) -> None:
        """Looks for the program.

        Raises:
            RecipeError: if it is not there.
        """
        self._program()

    def engine_options(self) -> list[str]:
        """The runner."""
        return ["--runner=PrismRunner"]

    def server_command(self, port: int, folder: str) -> list[str]:
        """Prism, without its web page."""
        return [self._program(), f"--job_port={port}", "--log_level=warn", "--serve_http=false"]

    def _program(self) -> str:
        if self._binary:
            found = shutil.which(self._binary)
        else:
            places = (os.environ.get("PATH", ""), os.path.expanduser("~/go/bin"))
            found = shutil.which("prism", path=os.pathsep.join(places))
        if found is None:
            raise RecipeError(
                f"Prism is not at {self._binary or 'any folder of the PATH, nor in ~/go/bin'}. "
                "Get it with: go install "
                f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{version('apache-beam')} "
                "(or from Beam's release page), and put it on the PATH, or name it in a runner "
                'file: binary = "/path/to/prism".'
            )
        return os.path.abspath(found)
