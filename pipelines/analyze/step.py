"""The analyze step: makes a recipe's transform graph in the workspace, or copies a given one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...schemas.fingerprint import digest
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.runner import JobRunner
from ...transforms import storage
from ...transforms.analysis.graph import checked_graph
from ..plan.step import plan_with
from ..prepare.step import Prepared
from ..recipe.shipping import StagedRecipe
from ..survey.survey import Survey
from ..survey.texts import explaining_strings
from .process import AnalysisProcess, AnalysisSpec, AnalysisTask, analyze
from .train_records import train_records


def make_graph(
    survey: Survey,
    staged: StagedRecipe,
    prepared: Prepared,
    *,
    workspace: Workspace,
    runner: JobRunner,
    progress: Progress,
    process: AnalysisProcess | None = None,
) -> str | None:
    """Makes sure that the workspace has the transform graph of a recipe.

    Args:
        survey: The survey of the recipe.
        staged: The recipe's handle.
        prepared: The prepared records.
        workspace: Destination of the graph.
        runner: The engine, on which the analysis runs if the recipe says so.
        progress: Receives that the step begins and ends.
        process: A child process that was started early.

    Returns:
        The graph's folder; None for a recipe without ``preprocessing_fn`` and ``transform_from``.

    Raises:
        RecipeError: if ``preprocessing_fn`` fails; with its message.
        DataError: if the train split is empty.
        StorageError: if the graph cannot be read or written.
        RunnerError: if a process or the engine ended too early.
    """
    if survey.graph is None and survey.recipe.preprocessing_fn is None:
        return None
    progress.start("analyze", total=None, unit="graph")
    with _explaining(survey):
        url, reused = _ensure_graph(
            survey, staged, prepared, workspace=workspace, runner=runner, process=process
        )
    progress.finish("analyze", reused=reused)
    return url


def check_function(survey: Survey) -> tuple[str, ...]:
    """Calls a recipe's ``preprocessing_fn`` without data, so that its errors need no records.

    Returns:
        The names of the features that it returns.

    Raises:
        RecipeError: if it fails, or returns something that cannot be stored.
    """
    function = survey.recipe.preprocessing_fn
    if function is None or survey.graph is not None:
        return ()
    from ...transforms.analysis.analyze import trace

    with _explaining(survey):
        return tuple(trace(function, survey.features.prepared).outputs)


@contextlib.contextmanager
def failing_early(survey: Survey, process: AnalysisProcess | None) -> Iterator[None]:
    """Ends the body as soon as the process finds an error in the ``preprocessing_fn``.

    Raises:
        RecipeError: if it fails without data, or returns something that cannot be stored.
    """
    if process is None:
        yield
        return
    with _explaining(survey), process.failing_early():
        yield


def _explaining(survey: Survey) -> contextlib.AbstractContextManager[None]:
    return explaining_strings(
        survey.recipe.files, survey.inventory.selected, survey.opened, survey.inferred.features
    )


def _ensure_graph(
    survey: Survey,
    staged: StagedRecipe,
    prepared: Prepared,
    *,
    workspace: Workspace,
    runner: JobRunner,
    process: AnalysisProcess | None,
) -> tuple[str, bool]:
    """The graph's folder, and whether there was nothing to analyze."""
    if survey.graph is not None:
        return survey.graph.put(workspace), True

    parts, features = survey.parts, survey.features.prepared
    url = _analyzed_url(survey, prepared, workspace)
    if checked_graph(url) is not None:
        return url, True
    plans = plan_with(
        survey.recipe,
        prepared.summary,
        features=features,
        workspace=workspace,
        size_ratio=1.0,
        limit=survey.limit,
    )
    records = train_records(
        next(plan for plan in plans if plan.name == "train"),
        workspace=workspace,
        summary_name=prepared.summary_name,
        prepared=features,
        stratify_by=survey.recipe.splits.key_strata,
    )
    code = str(parts.preprocessing)
    if survey.recipe.analyze_on_runner:
        from .job import analyze_on_runner

        analyze_on_runner(
            AnalysisTask(staged=staged, prepared=features, dependencies=survey.dependencies),
            url,
            records=records,
            num_runs=len(prepared.summary.entries),
            runner=runner,
            workspace=workspace,
            code=code,
        )
    else:
        spec = AnalysisSpec(
            staged=staged,
            prepared=features,
            dependencies=survey.dependencies,
            read_batches=records,
        )
        with storage.scratch_folder(workspace.root) as scratch:
            analyze(spec, url, scratch=scratch, process=process, code=code)
    return url, False


def graph_url(survey: Survey, prepared: Prepared, workspace: Workspace) -> str | None:
    """The folder of a recipe's transform graph, whether it is there or not.

    None for a recipe without one.
    """
    if survey.graph is not None:
        return workspace.graph(survey.graph.digest)
    if survey.recipe.preprocessing_fn is None:
        return None
    return _analyzed_url(survey, prepared, workspace)


def _analyzed_url(survey: Survey, prepared: Prepared, workspace: Workspace) -> str:
    parts = survey.parts
    made_of = [prepared.summary.contents, parts.analysis, parts.preprocessing, parts.splits]
    return workspace.graph(digest([*made_of, dict(parts.versions)]))
