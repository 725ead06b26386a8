"""Tables in Keras: the page's model is adapted, fitted, evaluated, saved and loaded again."""

import random
from pathlib import Path

import pytest

from .documented import run_examples

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "keras-tables.md"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saves
@pytest.mark.slow  # builds a table, and traces a model
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = ["area,rooms,town,price"]
    for n in range(400):
        area = f"{draw.uniform(30, 120):.1f}" if n % 7 else ""
        town = "" if n % 11 == 0 else ("Bern" if n % 3 == 0 else "Ulm")
        lines.append(f"{area},{'' if n % 5 == 0 else n % 4},{town},{draw.randint(100, 300)}")
    (tmp_path / "houses.csv").write_text("\n".join(lines) + "\n")
    assert run_examples(PAGE, tmp_path, num_notes=3) == 5
