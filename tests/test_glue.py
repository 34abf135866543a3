"""GLUE in its published files and in TensorFlow Datasets."""

import pathlib

import pytest
from tfds_datasets import register_builder

from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import GLUE, find_glue_task, read_glue, read_glue_tfds

# Task -> file -> lines as published.
PUBLISHED = {
    "cola": {
        "train": ['gj04\t1\t\tOur friends "won\'t" buy this.', "gj04\t0\t*\tThey drank the pub"],
        "test": ["index\tsentence", "0\tBill whistled past the house."],
    },
    "sst2": {
        "train": ["sentence\tlabel", "hide new secretions \t0", "' s \"wit\t1"],
        "test": ["index\tsentence", "0\tuneasy mishmash of styles ."],
    },
    "mrpc": {
        "train": [
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t702876\t702977\tHe called "the witness\tReferring to him',
            "0\t2108705\t2108831\tYucaipa owned it\tYucaipa bought it",
        ],
        "test": [
            "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String",
            "0\t1089874\t1089925\tPCCW's chief\tCurrent chief",
        ],
    },
    "stsb": {
        "train": [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000",
            "1\tmain-captions\tMSRvid\t2012test\t0004\tnone\tnone\tA man.\tA flute.\t0.6",
        ],
        "test": [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
            "0\tmain-captions\tMSRvid\t2012test\t0024\tnone\tnone\tA girl.\tA woman.",
        ],
    },
    "qqp": {
        "train": [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            '133273\t213221\t213222\tHow is "life" in law school?\tIs it hard?\t0',
            "402555\t536040\t536041\tHow do I?\tHow can I?\t1",
        ],
        "test": ["id\tquestion1\tquestion2", "0\tWould the idea win?\tWho invented it?"],
    },
    "mnli": {
        "train": [
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
            "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
            "0\t31193\t31193n\tgovernment\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tCream skimming.\t"
            "Product is.\tneutral\tneutral",
            "1\t101457\t101457e\ttelephone\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tYou know.\t"
            "You lose.\tentailment\tentailment",
        ],
        "dev_matched": [
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
            "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\t"
            "label1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
            "0\t63735\t63735n\tslate\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tThe new rights.\t"
            "Everyone.\tentailment\tneutral\tneutral\tneutral\tneutral\tneutral",
        ],
        "test_mismatched": [
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
            "sentence1_parse\tsentence2_parse\tsentence1\tsentence2",
            "0\t10000\t10000\tverbatim\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tHe was.\tHe is.",
        ],
        "diagnostic": ["index\tsentence1\tsentence2", "0\tThe cat sat.\tThe cat did not sit."],
    },
    "qnli": {
        "train": [
            "index\tquestion\tsentence\tlabel",
            "0\tWhen?\tIt began in 1970.\tentailment",
            "1\tWho?\tIt began.\tnot_entailment",
        ],
        "test": ["index\tquestion\tsentence", "0\tWhat?\tFor some decades."],
    },
    "rte": {
        "train": [
            "index\tsentence1\tsentence2\tlabel",
            "0\tNo Weapons.\tWeapons Found.\tnot_entailment",
            "1\tA place.\tPope.\tentailment",
        ],
        "test": ["index\tsentence1\tsentence2", "0\tMangla.\tMangla died."],
    },
    "wnli": {
        "train": [
            "index\tsentence1\tsentence2\tlabel",
            "0\tI stuck a pin.\tThe carrot had a hole.\t1",
            "1\tJohn couldn't see.\tJohn is short.\t0",
        ],
        "test": ["index\tsentence1\tsentence2", "0\tMaude and Dora.\tHorses ran."],
    },
}
# Task -> texts of the first training example, labels of both training examples.
EXPECTED = {
    "cola": ('Our friends "won\'t" buy this.', None, ["1", "0"]),
    "sst2": ("hide new secretions", None, ["0", "1"]),
    "mrpc": ('He called "the witness', "Referring to him", ["1", "0"]),
    "stsb": ("A plane.", "An air plane.", [5.0, 0.6]),
    "qqp": ('How is "life" in law school?', "Is it hard?", ["0", "1"]),
    "mnli": ("Cream skimming.", "Product is.", ["neutral", "entailment"]),
    "qnli": ("When?", "It began in 1970.", ["entailment", "not_entailment"]),
    "rte": ("No Weapons.", "Weapons Found.", ["not_entailment", "entailment"]),
    "wnli": ("I stuck a pin.", "The carrot had a hole.", ["1", "0"]),
}


def write(folder: pathlib.Path, lines: list[str], stem: str = "train") -> pathlib.Path:
    path = folder / f"{stem}.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", GLUE)
def test_read_glue_reads_training_files(name: str, tmp_path) -> None:
    data = read_glue(name, write(tmp_path, PUBLISHED[name]["train"]), True)
    text, pair, values = EXPECTED[name]
    assert (data.texts[0], data.text_pairs and data.text_pairs[0]) == (text, pair)
    assert data.values == values
    first = 1 if name == "cola" else 2
    assert data.locations == [f"{tmp_path}/train.tsv:{first + i}" for i in (0, 1)]


@pytest.mark.parametrize(
    ("name", "stem"), [(name, stem) for name, files in PUBLISHED.items() for stem in files]
)
def test_read_glue_reads_texts_of_unlabeled_files(name: str, stem: str, tmp_path) -> None:
    if stem == "train" and name == "cola":
        return  # its training file has no header
    lines = PUBLISHED[name][stem]
    data = read_glue(name, write(tmp_path, lines, stem), False)
    assert data.values is None and len(data) == len(lines) - 1
    assert all(map(str.strip, data.texts)) and (data.text_pairs is None) == (
        name in ("cola", "sst2")
    )


def test_read_glue_reads_the_gold_label_of_mnli(tmp_path) -> None:
    data = read_glue("mnli", write(tmp_path, PUBLISHED["mnli"]["dev_matched"]), True)
    assert data.values == ["neutral"]


def test_glue_tasks_cover_all_files_of_a_submission() -> None:
    names = [name for task in GLUE.values() for name in task.test]
    assert sorted(names) == sorted(
        ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
    )


def test_glue_tasks_have_the_primary_metrics_of_glue() -> None:
    primary_metrics = {name: task.metrics[0] for name, task in GLUE.items()}
    others = {"cola": "matthews_correlation", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
    assert primary_metrics == dict.fromkeys(GLUE, "accuracy") | others
    assert {name for name, task in GLUE.items() if task.problem_type == "regression"} == {"stsb"}


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("cola", "gj04\t1\t\tOne\tof too many", ":3: 5 fields instead of 4. Fix the row"),
        (
            "cola",
            "gj04\t2\t\tA sentence",
            ":3: label '2' is not one of 0, 1. Give the published files of CoLA",
        ),
        ("qqp", "1\t2\t3\tA\ttab?\tB?\t0", ":4: 7 fields instead of 6. Fix"),
        ("qqp", "1\t2\t3\tA?", ":4: 4 fields instead of 6. Fix"),
        ("mnli", None, ":4: label '-' is not one of contradiction, entailment, neutral"),
        ("stsb", None, ":4: column 'score' is '-', not a finite number"),
        ("rte", "2\tA\tB\tEntailment", ":4: label 'Entailment' is not one of entailment, not_"),
        ("qnli", "2\tA\t\tentailment", ":4: column 'sentence' is empty"),
    ],
)
def test_read_glue_rejects_lines_of_another_layout(
    name: str, line: str | None, message: str, tmp_path
) -> None:
    lines = PUBLISHED[name]["train"]
    if line is None:
        line = lines[-1].rpartition("\t")[0] + "\t-"
    path = write(tmp_path, [*lines, line])
    with pytest.raises(InputError, match=f"^{path}{message}"):
        read_glue(name, path, True)


def test_read_glue_skips_bad_rows_within_the_fraction(tmp_path) -> None:
    for name in ("cola", "qqp"):
        path = write(tmp_path, [*PUBLISHED[name]["train"], "broken"])
        assert len(read_glue(name, path, True, max_bad_fraction=0.4)) == 2
        with pytest.raises(InputError, match=r"or allow bad rows with data\.max_bad_fraction\."):
            read_glue(name, path, True, max_bad_fraction=0.3)


def test_read_glue_rejects_files_of_another_task(tmp_path) -> None:
    path = write(tmp_path, PUBLISHED["rte"]["train"])
    with pytest.raises(InputError, match=r"train\.tsv:2: no column 'question', only 'index'"):
        read_glue("qnli", path, True)
    with pytest.raises(InputError, match=r"train\.tsv:1: label 'sentence1' is not one of 0, 1"):
        read_glue("cola", path, True)
    with pytest.raises(InputError, match=r"train\.tsv: no rows\. Give"):
        read_glue("cola", write(tmp_path, [""]), True)


def test_find_glue_task_rejects_an_unknown_name() -> None:
    with pytest.raises(InputError, match=r"glue='sst': unknown task\. Choose one of cola, sst2"):
        find_glue_task("sst")


COUNTS = {
    ("stsb", "STS-B/train.tsv"): 5749,
    ("stsb", "STS-B/dev.tsv"): 1500,
    ("qnli", "QNLI/train_derived.tsv"): 11380,
    ("qnli", "QNLI/dev.tsv"): 5463,
    ("qnli", "QNLI/test.tsv"): 5463,
    ("wnli", "WNLI/train.tsv"): 635,
    ("wnli", "WNLI/dev.tsv"): 71,
    ("wnli", "WNLI/test.tsv"): 146,
    ("mrpc", "MRPC/train.tsv"): 3668,
    ("mrpc", "MRPC/dev.tsv"): 408,
    ("mrpc", "MRPC/msr_paraphrase_train.txt"): 4076,
}


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "file"), COUNTS)
def test_read_glue_reads_all_examples_of_published_files(name: str, file: str, data_dir) -> None:
    is_test = "test" in file
    data = read_glue(name, data_dir / "glue" / file, not is_test)
    assert len(data) == COUNTS[name, file]
    if name == "stsb":
        assert min(data.values) == 0 and max(data.values) == 5
    elif not is_test:
        assert set(data.values) == set(GLUE[name].labels)


# Class names in TensorFlow Datasets; None for regression.
CLASSES = {
    "cola": ["unacceptable", "acceptable"],
    "sst2": ["negative", "positive"],
    "mrpc": ["not_equivalent", "equivalent"],
    "qqp": ["not_duplicate", "duplicate"],
    "mnli": ["entailment", "neutral", "contradiction"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
    "wnli": ["not_entailment", "entailment"],
    "stsb": None,
}


@pytest.fixture(scope="module")
def tfds_builders(tmp_path_factory) -> None:
    """TensorFlow Datasets builders with the training examples."""
    import numpy as np

    tfds = pytest.importorskip("tensorflow_datasets")

    directory = tmp_path_factory.mktemp("tfds")
    for name, classes in CLASSES.items():
        task, (text, pair, values) = GLUE[name], EXPECTED[name]
        kind = tfds.features.ClassLabel(names=classes) if classes else np.float32
        features = dict.fromkeys(task.tfds_columns, tfds.features.Text()) | {
            "label": kind,
            "idx": np.int32,
        }
        text_column = task.tfds_columns[0]
        texts = dict(zip(task.tfds_columns, filter(None, (text, pair)), strict=True))
        # A digit in the files is the class id.
        train = [
            texts | {"label": int(v) if str(v).isdigit() else v, "idx": i}
            for i, v in enumerate(values)
        ]
        # Not sorted, like the records of TensorFlow Datasets.
        test = [texts | {text_column: f"the {i}.", "label": -1, "idx": i} for i in (2, 0, 1)]
        register_builder(directory, f"Tiny{name}", features, {"train": train, "test": test})


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_builders")
@pytest.mark.parametrize("name", GLUE)
def test_read_glue_tfds_returns_the_examples_of_the_files(name: str) -> None:
    source, (text, pair, values) = f"tfds:tiny{name}", EXPECTED[name]
    data = read_glue_tfds(name, source, "train", True)
    assert data.texts == [text, text] and data.text_pairs == (pair and [pair, pair])
    assert data.values == pytest.approx(values)
    tests = read_glue_tfds(name, source, "test", False)
    assert tests.values is None and tests.texts == ["the 0.", "the 1.", "the 2."]
    with pytest.raises(InputError, match='values of "idx" are not 0, 1, 2'):
        read_glue_tfds(name, source, "train[1:]", False)
    if name != "stsb":
        with pytest.raises(InputError, match=f"{source} test record 1: "):
            read_glue_tfds(name, source, "test", True)


@pytest.mark.slow
def test_read_glue_tfds_reads_every_language_of_xnli(tmp_path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")

    languages = ["de", "en"]
    features = {
        "premise": tfds.features.Translation(languages),
        "hypothesis": tfds.features.TranslationVariableLanguages(languages),
        "label": tfds.features.ClassLabel(names=CLASSES["mnli"]),
    }
    premise, hypothesis = {"de": "ja", "en": "yes"}, {"de": "nein", "en": "no"}
    whole = {"premise": premise, "hypothesis": hypothesis, "label": 2}
    records = {"test": [whole], "train": [whole, whole | {"hypothesis": {"de": "nein"}}]}
    register_builder(tmp_path, "Tinyxnli", features, records)
    data = read_glue_tfds("mnli", "tfds:tinyxnli", "test", True, "language")
    assert (data.eval_set_names, data.texts, data.text_pairs) == (
        languages,
        ["ja", "yes"],
        ["nein", "no"],
    )
    assert data.values == ["contradiction"] * 2
    assert data.locations[1] == "tfds:tinyxnli test record 1 (en)"
    with pytest.raises(InputError, match=r"train record .: a text in 'en' is missing. Remove"):
        read_glue_tfds("mnli", "tfds:tinyxnli", "train", True, "language")
