"""Tests of searches: the points that a sampler proposes, and how a search resumes."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

import pytest
import toy_tasks
from hypothesis import given
from hypothesis import strategies as st
from killable_commands import kill_sweep

from bertjax.cli.sweep import SAMPLERS
from bertjax.config.config import Config
from bertjax.config.optimizer_config import OptimizerSection
from bertjax.reports.sweep import read_sweep, render_sweep
from bertjax.sweeps.grid import Trial
from bertjax.sweeps.search import MedianPruning, Range, Search, parse_range
from bertjax.sweeps.sweep import sweep
from data_pipelines.errors import InputError

RATE, SIZE = "optimizer.learning_rate=1e-5..1e-2:log", "batch_size=8..64"


def load(fields: Mapping[str, str]) -> Config:
    rate = float(fields.get("optimizer.learning_rate", "1e-3"))
    size = int(fields.get("batch_size", "8"))
    return Config(batch_size=size, optimizer=OptimizerSection(learning_rate=rate))


def make_search(
    sampler: str = "tpe", points: int = 6, seeds: int = 1, ranges=(RATE, SIZE), grid=()
) -> Search:
    return Search(load, sampler, ranges, grid, points, seeds)


def score_of(trial: Trial) -> float:
    """Return a score with its best at a rate of 1e-3."""
    return -abs(math.log10(trial.config.optimizer.learning_rate) + 3)


def run_search(search: Search, num_runs: int = 1, trials: list[Trial] | None = None) -> list[Trial]:
    trials = trials or []
    while proposed := search.propose(trials, {t.name: score_of(t) for t in trials}, num_runs):
        trials += proposed
    return trials


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_search_proposes_distinct_points_in_their_ranges(sampler) -> None:
    trials = run_search(make_search(sampler, points=8, seeds=2))
    assert len(trials) == 16 and len({trial.name for trial in trials}) == 16
    for first, second in zip(trials[::2], trials[1::2], strict=True):
        assert first.point == second.point and (first.config.seed, second.config.seed) == (0, 1)
        assert 1e-5 <= first.config.optimizer.learning_rate <= 1e-2
        assert 8 <= first.config.batch_size <= 64
        assert first.name == (
            f"learning_rate={first.point['learning_rate']},"
            f"batch_size={first.config.batch_size},seed=0"
        )


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("num_runs", [1, 3])
def test_search_that_is_restored_proposes_the_same_points(sampler, num_runs: int) -> None:
    expected = run_search(make_search(sampler), num_runs)
    for ended in (3, 6):
        search = make_search(sampler)
        restored = search.restore([trial.name for trial in expected[:ended]])
        assert restored == expected[:ended]
        assert run_search(search, num_runs, restored) == expected


def test_restored_search_completes_points_of_which_a_seed_is_missing() -> None:
    trials = run_search(make_search(points=2, seeds=3))
    assert make_search(points=2, seeds=3).restore([trials[0].name, trials[4].name]) == trials


@pytest.mark.seconds
def test_tpe_proposes_better_points_than_chance() -> None:
    means = {}
    for sampler in SAMPLERS:
        trials = run_search(make_search(sampler, points=40, ranges=(RATE,)))[20:]
        means[sampler] = sum(map(score_of, trials)) / len(trials)
    assert means["tpe"] > means["random"] + 0.2


def test_search_continues_after_failed_runs() -> None:
    search = make_search(points=4, seeds=2)
    trials = search.propose([], {}, 1)
    failed = {trial.name: -math.inf for trial in trials}
    assert len(search.propose(trials, failed, 1)) == 2


def test_pruned_points_are_ranked_behind_complete_ones() -> None:
    search, asked = make_search(points=40, ranges=(RATE,)), []
    trials: list[Trial] = []

    def scores(pruned_score: float) -> dict[str, float]:
        return {t.name: pruned_score if t.name in pruned else score_of(t) for t in trials}

    pruned: dict[str, float] = {}
    for _ in range(12):
        (trial,) = search.propose(trials, scores(0.0), 1, pruned)
        trials.append(trial)
        if score_of(trial) < -1:  # far from the best rate
            pruned[trial.name] = 0.25
    assert pruned and len(pruned) < len(trials)
    for value in (-5.0, 5.0):  # an early score says little
        asked.append([t.name for t in search.propose(trials, scores(value), 1, pruned)])
    assert asked[0] == asked[1]
    assert asked[1] != [t.name for t in search.propose(trials, scores(5.0), 1)]


def failing_share(best_rate: float, highest_rate: float) -> float:
    """Return the fraction of points after the tenth whose runs fail: those above a rate."""
    search = make_search(points=30, ranges=("optimizer.learning_rate=1e-6..1e-2:log",))
    trials: list[Trial] = []

    def fails(trial: Trial) -> bool:
        return trial.config.optimizer.learning_rate > highest_rate

    def score(trial: Trial) -> float:
        distance = abs(math.log10(trial.config.optimizer.learning_rate / best_rate))
        return -math.inf if fails(trial) else -distance

    while proposed := search.propose(trials, {t.name: score(t) for t in trials}, 1):
        trials += proposed
    return sum(map(fails, trials[10:])) / len(trials[10:])


@pytest.mark.seconds
def test_tpe_avoids_points_that_fail() -> None:
    assert failing_share(3e-4, 1e-3) < 0.3 and failing_share(1e-5, 1e-4) < 0.3


def test_first_failed_points_are_no_better_than_chance() -> None:
    """With all points failed Optuna has no good ones, and TPE would take the first for them."""
    proposals = {}
    for sampler in SAMPLERS:
        search = make_search(sampler, points=20, ranges=(RATE,))
        trials: list[Trial] = []
        while proposed := search.propose(trials, {t.name: -math.inf for t in trials}, 1):
            trials += proposed
        proposals[sampler] = trials
    assert proposals["tpe"] == proposals["random"]


@pytest.mark.parametrize(
    ("unstable", "pruned", "counted"),
    [
        ((0.9, 0.3, 0.3), (1, 2), 0.5),  # a pruned run counts with its last score
        ((0.9, 0.9, -math.inf), (), 0.8),  # a failed one with the worst score of all
        ((0.9, -math.inf, -math.inf), (), -math.inf),
    ],
)
def test_unstable_point_is_not_the_best(unstable, pruned, counted: float) -> None:
    """TPE proposes what follows a point whose runs all have the score that counts."""
    search = make_search(points=14, seeds=3)
    trials = run_search(search)[:30]  # of ten points one is a good one

    def proposed(first: tuple[float, ...], pruned: Iterable[int] = ()) -> list[Trial]:
        scores = [*first, *[0.85 - 0.01 * (i // 3) for i in range(24)], 0.6, 0.6, 0.6]
        named = dict(zip((trial.name for trial in trials), scores, strict=True))
        return search.propose(trials, named, 12, {trials[i].name: 0.25 for i in pruned})

    assert proposed(unstable, pruned) == proposed((counted,) * 3) != proposed((0.9,) * 3)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_search_ends_when_a_small_space_is_exhausted(sampler, caplog) -> None:
    trials = run_search(make_search(sampler, points=50, ranges=("batch_size=8..47",)))
    assert sorted(trial.config.batch_size for trial in trials) == [*range(8, 48)]
    assert caplog.messages == ["--trials=50: the space has only 40 points."]


def test_values_are_in_their_range_however_they_are_rounded() -> None:
    search = make_search("random", points=30, ranges=("optimizer.learning_rate=0.9991..0.9999",))
    trials = run_search(search)
    rates = [float(trial.point["learning_rate"]) for trial in trials]
    assert len({*rates}) == 30 and all(0.9991 <= rate <= 0.9999 for rate in rates)
    assert search.restore([trial.name for trial in trials]) == trials


@pytest.mark.parametrize(
    ("interval", "digits"),
    [("0.9..0.91", 5), ("100..100.5", 6), ("0.9..0.91:log", 5), ("1e-5..1e-2:log", 3)],
)
def test_values_are_rounded_to_the_width_of_their_range(interval: str, digits: int) -> None:
    search = make_search("random", points=50, ranges=(f"optimizer.learning_rate={interval}",))
    trials = run_search(search)
    texts = [trial.point["learning_rate"] for trial in trials]
    assert len({*map(float, texts)}) == 50
    assert (
        max(len(f"{float(text):e}".partition("e")[0].strip("0.")) for text in texts) <= digits + 1
    )
    assert search.restore([trial.name for trial in trials]) == trials


def test_restore_rejects_runs_of_another_search() -> None:
    for run in ("learning_rate=1e-3,seed=0", "learning_rate=1,batch_size=8,seed=0", "seed=0", "x"):
        with pytest.raises(InputError, match=f"holds the run '{run}', which is none of this"):
            make_search().restore([run])


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.booleans())
def test_parse_range_reads_what_python_writes(first: float, second: float, is_log: bool) -> None:
    low, high = sorted([first, second])
    if low == high:
        return
    suffix = ":log" if is_log else ""
    assert parse_range(f"a.b={low}..{high}{suffix}") == ("a.b", Range(low, high, False, is_log))


def test_range_of_integers_has_integers() -> None:
    assert parse_range("batch_size=8..64") == ("batch_size", Range(8, 64, True, False))
    assert not parse_range("a=8..64.")[1].is_int


@pytest.mark.parametrize(
    "entry",
    [
        *("", "a", "a=", "a=1", "a=1..", "a=1..x", "a=2..1", "a=1..1", "a=0..1:log"),
        *("a=-1..1:log", "a=1..2:exp", "a=1...2..3", "=1..2", "a=nan..1", "a=1..inf"),
    ],
)
def test_parse_range_rejects_other_texts(entry: str) -> None:
    with pytest.raises(InputError, match=r"^--range="):
        parse_range(entry)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranges": (RATE, RATE)}, "names a field that is given twice"),
        ({"ranges": ("seed=1..5",)}, "or seed or task"),
        ({"ranges": (SIZE,), "grid": ["batch_size=8,16"]}, "names a field that is given twice"),
        ({"ranges": ()}, "--search=tpe: nothing to choose. Add --range or --grid"),
        ({"points": 0}, "--trials=0: no point"),
        ({"seeds": 0}, "--seeds=0: must be at least 1"),
        ({"points": 10_001}, "--seeds=1: 10,001 runs. Use at most"),
    ],
)
def test_search_rejects_invalid_options(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_search(**options)


def test_median_pruning_ends_runs_below_the_median_of_five() -> None:
    curves = [{0.2: score, 0.4: score} for score in (0.1, 0.2, 0.3, 0.4, 0.5)]
    assert not MedianPruning(curves[:4]).is_pruned({0.2: 0.0})  # too few to compare with
    pruning = MedianPruning([*curves, {0.2: -math.inf}, {}])
    assert pruning.is_pruned({0.2: 0.29}) and not pruning.is_pruned({0.2: 0.31})
    assert not pruning.is_pruned({0.2: 0.31, 0.4: 0.1})  # its best score counts
    assert pruning.is_pruned({0.2: -math.inf})
    assert not pruning.is_pruned({0.3: 0.0})  # no other run was evaluated at this stage


def test_median_pruning_compares_the_same_stage_of_runs_of_other_lengths() -> None:
    """Eight evaluations of 1,000 steps and of 125 steps, whose interval is rounded up to 16."""
    earlier = [{step / 1000: step / 1000 for step in range(125, 1001, 125)} for _ in range(5)]
    pruning, curve = MedianPruning(earlier), dict[float, float]()
    for step in (16, 32, 48, 64, 80, 96, 112, 125):
        curve[step / 125] = step / 125
        assert not pruning.is_pruned(curve)
    assert pruning.is_pruned({p: 0.9 * score for p, score in curve.items()})


def test_median_pruning_needs_five_runs_at_each_evaluation() -> None:
    curves = [{0.2: 0.5, 0.4: 0.5}, *[{0.2: 0.5} for _ in range(4)]]
    pruning = MedianPruning(curves)
    assert pruning.is_pruned({0.2: 0.1}) and not pruning.is_pruned({0.2: 0.1, 0.4: 0.1})


@pytest.mark.minutes
def test_pruned_runs_end_early_and_are_never_the_best(toys, tmp_path) -> None:
    fields: dict[str, object] = {"steps": 8, "log_every": 2, "eval_every": 2}
    fields["checkpoint_every"] = 2
    fields |= {"optimizer.warmup": 1, "best_metric": "loss"}

    def load_toy(point: Mapping[str, str]) -> Config:
        return toy_tasks.configuration("single_label", toys, **{**fields, **point})

    def search() -> Search:
        rates = ["optimizer.learning_rate=1e-5..1e-2:log"]
        return Search(load_toy, "random", rates, [], 9, 8, prunes=True)

    results = sweep(search(), load_toy({}), tmp_path / "search")
    pruned = {run["point"]: run["pruned_at"] for run in results["runs"] if "pruned_at" in run}
    assert pruned and all(step < 8 for step in pruned.values())
    assert not any(results["best"].startswith(label) for label in pruned)
    for point in results["points"]:
        assert (point["mean"] is None) == (point["label"] in pruned or point["num_failed"] == 8)
    again = sweep(search(), load_toy({}), tmp_path / "search")
    assert again == results
    assert "learning_rate" in render_sweep("search", read_sweep(tmp_path / "search" / "sweep.json"))


@pytest.mark.slow
def test_search_trains_its_points_and_resumes(toys, tmp_path) -> None:
    fields = {"steps": 8, "log_every": 4, "eval_every": 8, "checkpoint_every": 8}
    fields["optimizer.warmup"] = 2

    def load_toy(point: Mapping[str, str]) -> Config:
        return toy_tasks.configuration("single_label", toys, **{**fields, **point})

    def search(points: int) -> Search:
        return Search(load_toy, "tpe", ["optimizer.learning_rate=1e-4..1e-2:log"], [], points, 8)

    base = load_toy({})
    before = sweep(search(1), base, tmp_path / "grown")
    after = sweep(search(3), base, tmp_path / "grown")
    assert after["runs"][:8] == before["runs"] and len(after["points"]) == 3
    assert sweep(search(3), base, tmp_path / "direct") == after
    with pytest.raises(InputError, match="none of this search"):
        sweep(Search(load_toy, "tpe", ["batch_size=8..16"], [], 1, 8), base, tmp_path / "grown")
    other = dataclasses.replace(base, tensorboard="examples")
    with pytest.raises(InputError, match="tensorboard="):
        sweep(search(1), other, tmp_path / "other")


@pytest.mark.minutes
def test_search_that_is_killed_twice_has_the_same_result(toys, tmp_path) -> None:
    fields = {"steps": 8, "log_every": 2, "eval_every": 8, "checkpoint_every": 2}
    fields["optimizer.warmup"] = 2
    command = ["sweep", *toy_tasks.arguments("single_label", toys, **fields), "--search", "tpe"]
    command += ["--range", "optimizer.learning_rate=1e-4..1e-2:log", "--trials", "3"]
    command += ["--range", "batch_size=8..12", "--seeds", "8"]  # each size is another program
    killed, undisturbed = kill_sweep(command, tmp_path, ("step 4/8", "8 of 24 runs done"))
    assert killed == undisturbed
