"""Labels of models: entities in any scheme, and tags of single words."""

import json

import pytest
import toy_tasks
from data_errors import arguments, publish_token_classifier, write

from bertjax.cli.main import main
from bertjax.tasks.token_classification.evaluation import encode_tags
from data_pipelines.errors import InputError
from data_pipelines.finetuning.token_classification.sentences import TaggedSentence


def encode(tags: str, labels: str) -> list[int]:
    names = tags.split()
    return encode_tags([TaggedSentence(names, names, names)], labels.split()).tolist()


def test_encode_tags_converts_to_the_scheme_of_the_labels() -> None:
    for labels in ("O B-a I-a", "O S-a B-a E-a", "O a", "NOUN VERB"):
        tags = "VERB NOUN" if labels == "NOUN VERB" else "O B-a I-a"
        expected = {"O B-a I-a": [0, 1, 2], "O S-a B-a E-a": [0, 2, 3], "O a": [0, 1, 1]}
        assert encode(tags, labels) == expected.get(labels, [1, 0])
    with pytest.raises(InputError, match="NOUN: tag 'NOUN' is not a label of the model"):
        encode("NOUN", "O B-a I-a")
    with pytest.raises(InputError, match="B-a: tag 'B-a' is not a label of the model"):
        encode("B-a", "NOUN VERB")


@pytest.mark.slow
def test_word_tags_are_scored_by_accuracy_and_reported(tmp_path, capsys) -> None:
    toy_tasks.TOKENIZER.save(tmp_path)
    publish_token_classifier(tmp_path / "model", ("NOUN", "VERB", "O"))
    write(tmp_path, {"dev.conll": "ba\tNOUN\nki\tVERB\n\nme\tO\n"})
    scores = tmp_path / "scores"
    spec = f"token_classification:data={tmp_path}"
    command = ["--checkpoint", tmp_path / "model", "--output", scores]
    command += arguments(tmp_path, spec, init=tmp_path / "model")
    assert main(["evaluate", *map(str, command)]) == 0
    result = json.loads((scores / "scores.json").read_text())
    assert {"accuracy", "loss"} <= result.keys() and "f1" not in result
    entries = json.loads((scores / "predictions.json").read_text())
    assert [entry["gold"] for entry in entries] == [["NOUN", "VERB"], ["O"]]
    types = json.loads((scores / "types.json").read_text())
    assert sum(types[name]["gold"] for name in ("NOUN", "VERB", "O")) == 3
    assert main(["report", str(scores)]) == 0
    page = (scores / "report.html").read_text()
    assert "Word accuracy" in page and "<td>VERB</td><td>1</td>" in page
    capsys.readouterr()
    assert main(["predict", "--checkpoint", str(tmp_path / "model"), "--text", "ba ki"]) == 0
    assert len(json.loads(capsys.readouterr().out)["entities"]) == 2
