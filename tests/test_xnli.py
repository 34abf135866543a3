"""XNLI: published files, scores by language, model selection on English."""

import itertools
import json
import pathlib
import random
import re

import pytest
import toy_tasks
from processes import Command
from run_outputs import metrics

from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.tasks import registry
from bertjax.tasks.sequence_classification.data import read_sets
from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import read_glue

HEADER = [
    "language", "gold_label", "sentence1_binary_parse", "sentence2_binary_parse",
    "sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "promptID", "pairID", "genre",
    "label1", "label2", "label3", "label4", "label5", "sentence1_tokenized", "sentence2_tokenized",
    "match",
]  # fmt: skip
TRANSLATED = "premise\thypo\tlabel"
WORDS = {"entailment": "ba", "neutral": "ki", "contradiction": "no"}
OTHER = ("do", "lu", "me", "ra")
EXPERIMENT = toy_tasks.EXPERIMENTS / "xnli.py"


def published(language: str, label: str, first: str, second: str) -> str:
    """Return a line of dev or test."""
    values = {
        "language": language, "gold_label": label, "sentence1": first, "sentence2": second,
        "promptID": "1", "pairID": "1", "genre": "letters", "label1": "neutral",
        "sentence1_tokenized": f"{first} .", "sentence2_tokenized": second, "match": "True",
    }  # fmt: skip
    return "\t".join(values.get(column, "") for column in HEADER)


def write(path: pathlib.Path, *lines: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def rows(seed: object, count: int) -> list[tuple[str, str, str]]:
    """Return label, premise and hypothesis, whose words determine the label."""
    draw = random.Random(str(seed))
    triples = []
    for _, label in zip(range(count), itertools.cycle(WORDS), strict=False):
        second = [*draw.choices(OTHER, k=2), WORDS[label], WORDS[label]]
        draw.shuffle(second)
        triples.append((label, " ".join(draw.choices(OTHER, k=3)), " ".join(second)))
    return triples


def translate(text: str, language: str) -> str:
    """Translate: Greek equals English, German is unknown, Urdu loses the neutral word."""
    if language == "de":
        return re.sub(r"\w+", "ไทย", text)
    return text.replace("ki", "do") if language == "ur" else text


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("xnli")
    toy_tasks.TOKENIZER.save(path)
    return write_archives(path)


def write_archives(path: pathlib.Path) -> pathlib.Path:
    """Write both archives, unpacked, and MNLI, with a few lines each."""
    for split, languages in (("dev", ("de", "en", "ur")), ("test", ("de", "el", "en", "ur"))):
        lines = [
            published(language, label, first, translate(second, language))
            for language in languages
            for label, first, second in rows(split, 30)
        ]
        write(path / "XNLI-1.0" / f"xnli.{split}.tsv", "\t".join(HEADER), *lines)
    english = [
        published(language, *row) for language in ("de", "el", "ur") for row in rows("test", 30)
    ]
    write(path / "XNLI-MT-1.0/xnli/xnli.test.en.tsv", "\t".join(HEADER), *english)
    train = rows("train", 240)
    header = ["index", "promptID", "pairID", "sentence1", "sentence2", "label1", "gold_label"]
    lines = [f"{i}\t1\t1\t{a}\t{b}\tneutral\t{label}" for i, (label, a, b) in enumerate(train)]
    write(path / "MNLI/train.tsv", "\t".join(header), *lines)
    label_aliases = {"contradiction": "contradictory"}
    lines = [
        f"{a} .\t{translate(b, 'ur')}\t{label_aliases.get(label, label)}" for label, a, b in train
    ]
    write(path / "XNLI-MT-1.0/multinli/multinli.train.ur.tsv", TRANSLATED, *lines)
    return path


FIELDS = toy_tasks.FIELDS | {"steps": 60, "log_every": 30, "eval_every": 30, "checkpoint_every": 30}


def arguments(folder: pathlib.Path, options: str, init: object = "", **fields: object) -> list[str]:
    values = {k: v for k, v in FIELDS.items() if not (init and k.startswith("model."))}
    values |= {"model.dtype": "float32"} | ({} if init else {"data.vocab": folder / "vocab.txt"})
    spec = f"{EXPERIMENT}:data={folder},{options}" + (f",init={init}" if init else "")
    return toy_tasks.config_arguments(spec, values, fields)


def configuration(folder: pathlib.Path, options: str, **fields: str) -> Config:
    spec = f"{EXPERIMENT}:data={folder},{options}"
    return toy_tasks.load_arguments(toy_tasks.config_arguments(spec, {}, fields))


def sets(folder: pathlib.Path, options: str, split: str = "eval", **fields: str) -> dict:
    return dict(read_sets(configuration(folder, options, **fields), split))


def test_read_glue_reads_xnli_files(tmp_path) -> None:
    lines = [
        published("en", "neutral", 'He said: "Mum', "''It's''"),
        published("zh", "neutral", "我", "家"),
    ]
    path = write(tmp_path / "xnli.dev.tsv", "\t".join(HEADER), *lines)
    data = read_glue("mnli", path, True, eval_set_column="language")
    assert (data.texts, data.text_pairs) == (['He said: "Mum', "我"], ["''It's''", "家"])
    assert (data.values, data.eval_set_names) == (["neutral", "neutral"], ["en", "zh"])


def test_read_glue_reads_translations(folder) -> None:
    path = folder / "XNLI-MT-1.0/multinli/multinli.train.ur.tsv"
    data = read_glue("mnli", path, True)
    assert set(data.values) == set(WORDS) and len(data) == 240
    assert data.texts[0].endswith(" .") and "ki" not in " ".join(data.text_pairs)


def test_read_glue_skips_and_counts_bad_lines(tmp_path, caplog) -> None:
    lines = ["a\tb\tneutral"] * 17 + ["", "a\tneutral", "a\t \tneutral", "\tb\tneutral"]
    path = write(tmp_path / "multinli.train.sw.tsv", TRANSLATED, *lines)
    assert len(read_glue("mnli", path, True, max_bad_fraction=0.2)) == 17
    ragged, empty = caplog.messages
    assert f"Skipped 1 bad rows of 20. The first: {path}:20: 2 fields" in ragged
    assert f"Skipped 2 bad rows of 19. The first: {path}:21: column 'hypo'" in empty
    for share, line in ((0.0, ":20: 2 fields"), (0.06, ":21: column 'hypo' is empty")):
        with pytest.raises(
            InputError, match=rf"{line}.*allow bad rows with data\.max_bad_fraction"
        ):
            read_glue("mnli", path, True, max_bad_fraction=share)


def test_read_sets_returns_a_set_per_language(folder) -> None:
    eval_sets = sets(folder, "test")
    assert [*eval_sets] == ["de", "el", "en", "ur"] and {
        len(data) for data in eval_sets.values()
    } == {30}
    assert [*sets(folder, "test,language=ur+el")] == ["ur", "el"]
    two = sets(folder, "test,language=ur", data__eval_file="XNLI-1.0/xnli.*.tsv")
    assert [*two] == ["xnli.dev.ur", "xnli.test.ur"]


def test_read_sets_divides_tables_by_eval_set_column(tmp_path) -> None:
    head, *lines = ["text,label,of", *(f"ba {i},{i % 2},{'xyz'[i % 3]}" for i in range(60))]
    for name, rows in (("train.csv", lines), ("dev.csv", lines[:9])):
        write(tmp_path / name, head, *rows)
        given = {"data.eval_set_column": "of", "data.eval_fraction": "0.5"}
        spec = f"{toy_tasks.EXPERIMENTS / 'sequence_classification.py'}:data={tmp_path}"
        config = load_config(spec, given, registry.data_fields())
        eval_sets = dict(read_sets(config, "eval"))
        assert [*eval_sets] == ["x", "y", "z"]
        ((_, train),) = read_sets(config, "train")
        assert len(train) + sum(map(len, eval_sets.values())) == (60 if name == "train.csv" else 69)


def test_modes_set_language_of_eval_and_training(folder) -> None:
    for options, language, texts in (
        ("mode=zero_shot", "en", 240),
        ("mode=translate_test", "en", 240),
        ("mode=translate_train,language=ur", "ur", 240),
    ):
        assert [*sets(folder, options)] == [language]
        assert len(sets(folder, options, "train")["train"]) == texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("mode=zero_shot,language=ur", "language='ur': dev is evaluated in English. Add test"),
        ("mode=translate_train", "trains in one language. Give language=zh"),
        ("mode=translate_test,data=tfds:xnli,test", "data='tfds:xnli': has no translations. Name"),
    ],
)
def test_options_that_would_have_no_effect_are_rejected(options: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(f"{EXPERIMENT}:{options}", {}, registry.data_fields())


def test_read_sets_reads_a_file_per_language(folder, tmp_path) -> None:
    for name in ("de", "el"):
        write(tmp_path / f"test.{name}.tsv", TRANSLATED, "a\tb\tcontradictory", "a\tb\tneutral")
    fields = {"data__eval_file": str(tmp_path / "test.*.tsv"), "data__eval_set_column": ""}
    eval_sets = sets(folder, "mode=translate_test,test", **fields)
    assert [*eval_sets] == ["test.de", "test.el"]
    assert all(data.values == ["contradiction", "neutral"] for data in eval_sets.values())


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> dict[str, pathlib.Path]:
    """Train models in English and on a translation."""
    workdirs = {name: tmp_path_factory.mktemp(name) / "run" for name in ("en", "ur")}
    modes = {"en": "mode=zero_shot", "ur": "mode=translate_train,language=ur"}
    commands = [
        Command("train", "--workdir", path, *arguments(folder, modes[name], best_metric="accuracy"))
        for name, path in workdirs.items()
    ]
    for command in commands:
        _, error = command.communicate()
        assert command.poll() == 0, error
    return workdirs


def evaluated(folder, output, options: str, checkpoint, capsys) -> tuple[str, dict]:
    capsys.readouterr()
    given = arguments(folder, options, checkpoint)
    assert main(["evaluate", "--checkpoint", str(checkpoint), "--output", str(output), *given]) == 0
    return capsys.readouterr().out, json.loads((output / "scores.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("en", "mode=zero_shot"), ("ur", "mode=translate_train,language=ur")]
)
def test_training_selects_by_its_own_language(
    name: str, options: str, folder, trained, tmp_path, capsys
) -> None:
    eval = [line for line in metrics(trained[name]) if line["split"] == "eval"]
    assert not any("/" in key for line in eval for key in line)
    out, scores = evaluated(folder, tmp_path, options, trained[name], capsys)
    assert scores["accuracy"] == pytest.approx(max(line["accuracy"] for line in eval))
    assert scores["accuracy"] > 0.9 and json.loads(out) == scores


@pytest.mark.slow
def test_evaluate_prints_and_reports_languages(folder, trained, tmp_path, capsys, caplog) -> None:
    out, scores = evaluated(folder, tmp_path, "mode=zero_shot,test", trained["en"], capsys)
    head, *lines, mean = (line.split() for line in out.splitlines())
    assert head[:3] == ["eval", "set", "accuracy"]
    assert [line[0] for line in lines] == ["de", "el", "en", "ur"] and mean[0] == "mean"
    accuracies = {line[0]: float(line[1]) for line in [*lines, mean]}
    assert accuracies["en"] == accuracies["el"] == pytest.approx(scores["en/accuracy"], abs=1e-4)
    assert accuracies["en"] > 0.9 and accuracies["de"] == pytest.approx(1 / 3, abs=1e-4)
    assert accuracies["mean"] == pytest.approx(scores["accuracy"], abs=1e-4)
    (warning,) = [line for line in caplog.messages if "poor coverage" in line]
    assert "vocabulary: de (" in warning and " ur (" not in warning
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert f"<tr><td>de</td><td>{scores['de/accuracy']:.4f}</td>" in page
    assert f"<tr><td>mean</td><td>{scores['accuracy']:.4f}</td>" in page


@pytest.mark.slow
def test_translate_test_is_scored_by_source_language(folder, trained, tmp_path, capsys) -> None:
    options = "mode=translate_test,test"
    _, scores = evaluated(folder, tmp_path, options, trained["en"], capsys)
    accuracies = {name: value for name, value in scores.items() if name.endswith("/accuracy")}
    assert [*accuracies] == ["de/accuracy", "el/accuracy", "ur/accuracy"]
    assert min(accuracies.values()) == max(accuracies.values()) > 0.9


DEV = "XNLI-1.0/xnli.dev.tsv"
CASES = {
    "a mode that is none": ({}, "mode=few_shot", "mode='few_shot': unknown. Use one of zero"),
    "a translation into nothing": (
        {}, "mode=translate_train", "mode=translate_train: trains in one language",
    ),
    "a translation into two languages": (
        {}, "mode=translate_train,language=de+ur", "mode=translate_train: trains in one language",
    ),
    "a language without a translation": (
        {}, "mode=translate_train,language=fr",
        "data.eval_sets='fr': not in DIR/XNLI-1.0/xnli.dev.tsv, which has de, en, ur",
    ),
    "no English": (
        {DEV: ["\t".join(HEADER), published("zh", "neutral", "a", "b")]}, "mode=zero_shot",
        "data.eval_sets='en': not in DIR/XNLI-1.0/xnli.dev.tsv, which has zh. Name",
    ),
    "a language that test has not": (
        {}, "test,language=en+sw", "data.eval_sets='sw': not in DIR/XNLI-1.0/xnli.test.tsv",
    ),
    "no column of languages": (
        {DEV: [TRANSLATED, "a\tb\tneutral"]}, "mode=zero_shot",
        f"DIR/{DEV}:2: no column 'language', only 'premise', 'hypo', 'label'",
    ),
    "a header in which a column is missing": (
        {DEV: ["language\tgold_label\tsentence1", "en\tneutral\ta"]}, "mode=zero_shot",
        f"DIR/{DEV}:2: no column 'sentence2'",
    ),
    "a translation's header of other names": (
        {"MNLI/train.tsv": ["premise\thypothesis\tlabel", "a\tb\tneutral"]}, "mode=zero_shot",
        "DIR/MNLI/train.tsv:2: no column 'sentence1', only 'premise', 'hypothesis'",
    ),
    "a label that is none": (
        {DEV: ["\t".join(HEADER), published("en", "-", "a", "b")]}, "mode=zero_shot",
        f"DIR/{DEV}:2: label '-' is not one of contradiction, entailment, neutral. Give the publ",
    ),
    "a ragged row": (
        {DEV: ["\t".join(HEADER), published("en", "neutral", "a", "b") + "\tc"]}, "mode=zero_shot",
        f"DIR/{DEV}:2: 20 fields instead of 19. Fix the row, or allow bad rows",
    ),
    "a row without a hypothesis": (
        {DEV: ["\t".join(HEADER), published("en", "neutral", "a", "")]}, "mode=zero_shot",
        f"DIR/{DEV}:2: column 'sentence2' is empty. Write its text, .* "
        "data.max_bad_fraction",
    ),
    "a row without a language": (
        {DEV: ["\t".join(HEADER), published("", "neutral", "a", "b")]}, "mode=zero_shot",
        f"DIR/{DEV}:2: column 'language' is empty",
    ),
    "a header alone": (
        {DEV: ["\t".join(HEADER)]}, "mode=zero_shot", f"DIR/{DEV}: no rows. Give a file with",
    ),
    "an empty file": ({DEV: []}, "mode=zero_shot", f"DIR/{DEV}: no rows. Give a file with"),
    "no such file": (
        {}, "mode=zero_shot,train_file=MNLI/no.tsv",
        "DIR/MNLI/no.tsv: no such file. Set data.dir",
    ),
    "sets that nothing names": (
        {}, "mode=zero_shot data.eval_set_column=",
        "data.eval_sets='en': no column divides the eval set. Set",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_train_rejects_bad_xnli_files(case: str, folder, tmp_path, refused) -> None:
    files, given, problem = CASES[case]
    for file in folder.rglob("*.*"):
        if file.is_file():
            write(tmp_path / file.relative_to(folder), file.read_text().removesuffix("\n"))
    for name, lines in files.items():
        write(tmp_path / name, *lines)
    options, *fields = given.split()
    flags = [f"--config.{field}" for field in fields]
    sentence = refused(
        "train", "--workdir", tmp_path / "run", *arguments(tmp_path, options), *flags
    )
    assert re.match(problem.replace("DIR", re.escape(str(tmp_path))), sentence), sentence
