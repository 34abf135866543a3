"""Conversion of models between formats: every byte, label and problem type is kept."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from model_files import CONFIG, HIDDEN, LAYERS, TOKENIZER, assert_same, draw, write_hf
from random_models import draw_model
from run_outputs import answers_of

from bertjax.checkpointing.integrity import MANIFEST_FILE, mark_finished
from bertjax.cli.main import main
from bertjax.formats.detection import find_format
from bertjax.formats.loading import read_model, read_run_config
from bertjax.formats.parameter_names import parameter_mappings
from bertjax.formats.tokenizer_json import read_max_length
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import param_shapes
from bertjax.tasks.registry import infer_config
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

PARTS = ("encoder", "pooler", "mlm", "nsp", "question_answering")


@pytest.mark.slow
@pytest.mark.parametrize(
    "heads",
    [
        (),
        ("pooler",),
        ("mlm",),
        ("question_answering",),
        ("pooler", "mlm", "nsp"),
        ("pooler", "sequence_classification"),
    ],
)
@pytest.mark.parametrize(
    "way", [("bertjax", "hf", "bertjax"), ("tf1", "bertjax", "hf", "tf1"), ("hf", "tf1")], ids=str
)
def test_convert_keeps_every_byte(way: tuple, heads: tuple, tmp_path) -> None:
    model, path, before = draw(*heads), write_hf(draw(*heads), tmp_path / "start"), "hf"
    for number, format_name in enumerate(way):
        convert(path, tmp_path / str(number), before, format_name)
        path, before = tmp_path / str(number), format_name
        assert find_format(path) == format_name
    assert_same(read_model(path), model)


@pytest.mark.slow
def test_convert_keeps_a_vocabulary_with_empty_and_repeated_lines(tmp_path) -> None:
    tokens = [*TOKENIZER.tokens, "", "a", "##b"]
    model = dataclasses.replace(draw("mlm"), tokenizer=WordPieceTokenizer(tokens, cased=False))
    path, before = write_hf(model, tmp_path / "start"), "hf"
    content = (path / "vocab.txt").read_bytes()
    assert content == ("\n".join(tokens) + "\n").encode()
    for number, format_name in enumerate(("bertjax", "hf", "tf1", "bertjax")):
        convert(path, tmp_path / str(number), before, format_name)
        path, before = tmp_path / str(number), format_name
        files = [file for file in path.rglob("vocab.txt")]
        assert [file.read_bytes() for file in files] == [content]


def test_parameter_mappings_cover_every_parameter() -> None:
    mappings, shapes = parameter_mappings(LAYERS, PARTS), param_shapes(CONFIG)
    ours = {name for name, _ in named_leaves({part: shapes[part] for part in PARTS})}
    assert ours == {"/".join(mapping.path) for mapping in mappings}
    names = [mapping.name(format_name) for format_name in ("hf", "tf1") for mapping in mappings]
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "problem_type", "labels"),
    [
        ("sequence_classification", "single_label_classification", ("pos", "neg", "odd")),
        ("sequence_classification", "multi_label_classification", ("pos", "neg", "odd")),
        ("sequence_classification", "regression", ()),
        ("token_classification", "single_label_classification", ("O", "B-x", "I-x")),
        ("multiple_choice", "single_label_classification", ()),
    ],
)
def test_convert_keeps_labels_and_problem_type(head, problem_type, labels, tmp_path) -> None:
    config = dataclasses.replace(
        CONFIG, num_labels=len(labels) or int(head == "sequence_classification")
    )
    drawn = draw_model(
        config, TOKENIZER, *([] if head == "token_classification" else ["pooler"]), head
    )
    model = dataclasses.replace(drawn, problem_type=problem_type, labels=labels)
    path, before = write_hf(model, tmp_path / "start"), "hf"
    for number, format_name in enumerate(["tf1", "hf", "tf1", "bertjax", "tf1", "hf"]):
        convert(path, tmp_path / str(number), before, format_name)
        path, before = tmp_path / str(number), format_name
        found = read_model(path)
        assert found.params.keys() == model.params.keys(), format_name
        assert (found.problem_type, found.labels) == (problem_type, labels), format_name


@pytest.mark.seconds
def test_convert_keeps_the_problem_type_of_a_glue_task(tmp_path, caplog) -> None:
    model = dataclasses.replace(
        draw("pooler", "sequence_classification"), problem_type="regression", labels=()
    )
    write_hf(model, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "own", "hf", "bertjax")

    def write_metadata(path: epath.Path) -> None:
        config = json.loads((path / "config.json").read_text())
        config["data"] |= {
            "glue": "stsb",
            "problem_type": "single_label_classification",
        }  # as `experiments/glue.py` leaves it
        (path / "config.json").write_text(json.dumps(config))

    (tmp_path / "own" / MANIFEST_FILE).unlink()
    mark_finished(epath.Path(tmp_path / "own"), write_metadata)
    convert(tmp_path / "own", tmp_path / "again", "bertjax", "hf")
    assert read_model(tmp_path / "again").problem_type == "regression"
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["problem_type"] == "regression"
    identity = "torch.nn.modules.linear.Identity"  # of CrossEncoder, which else adds a sigmoid
    assert config["sentence_transformers"] == {"activation_fn": identity}
    assert config["sbert_ce_default_activation_function"] == identity
    assert "sigmoid" not in caplog.text
    del config["sentence_transformers"], config["sbert_ce_default_activation_function"]
    del config["problem_type"]
    (tmp_path / "again" / "config.json").write_text(json.dumps(config))
    read_model(tmp_path / "again")
    assert "a number is returned. Transformers' pipeline and CrossEncoder apply" in caplog.text


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (("pooler", "mlm", "nsp"), "BertForPreTraining"),
        (("pooler", "nsp"), "BertForNextSentencePrediction"),
        (("pooler", "mlm"), "BertForMaskedLM"),
        (("pooler", "question_answering"), "BertForQuestionAnswering"),
        (("pooler",), "BertModel"),
        ((), "BertModel"),
    ],
)
def test_architecture_follows_the_heads(heads, name, tmp_path) -> None:
    path = write_hf(draw(*heads), tmp_path / "hf")
    assert json.loads((path / "config.json").read_text())["architectures"] == [name]
    names = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    assert ("bert.embeddings.LayerNorm.weight" in names) == (name != "BertModel")


@pytest.mark.parametrize("decoder", ["prefix", "masked_prefix"])
@pytest.mark.parametrize("format_name", ["hf", "tf1"])
def test_convert_rejects_heads_whose_attention_would_be_bidirectional(
    format_name: str, decoder: str, tmp_path
) -> None:
    config = dataclasses.replace(CONFIG, decoder=decoder)
    for heads in (("question_answering",), ("pooler", "mlm", "nsp")):
        model = draw_model(config, TOKENIZER, *heads)
        message = f"model.decoder='{decoder}': the attention of other formats is bidirectional"
        with pytest.raises(InputError, match=message):
            model.named_arrays(format_name)
    assert draw_model(config, TOKENIZER, "pooler", "mlm").named_arrays(format_name)


@pytest.mark.seconds
def test_left_to_right_models_are_rejected_for_any_pooled_head(tmp_path) -> None:
    config = dataclasses.replace(CONFIG, direction="left_to_right", num_labels=2)
    model = draw_model(config, TOKENIZER, "pooler", "nsp", "question_answering")
    with pytest.raises(InputError, match=r"reads \[CLS\], but the head of this left-to-right"):
        write_hf(model, tmp_path / "hf")


@pytest.mark.seconds
def test_unknown_heads_are_listed_and_dropped(tmp_path) -> None:
    path = write_hf(draw("pooler"), tmp_path / "hf")
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    found |= {"species.weight": np.ones((3, HIDDEN), np.float32)}
    (path / "model.safetensors").write_bytes(safetensors.numpy.save(found))
    model = convert(path, tmp_path / "own", "hf", "bertjax")
    assert model.unexpected_keys == ("species.weight",)
    assert_same(read_model(tmp_path / "own"), draw("pooler"))


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"num_hidden_layers": 3}, "/hf: lacks bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "/hf: has bert.encoder.layer.1.*, which BERT lacks"),
        ({"intermediate_size": 128}, r"has shape \(2, 256, 64\), its configuration says"),
        ({"vocab_size": 20}, r"has shape \(40, 64\)"),
    ],
    ids=str,
)
def test_convert_rejects_other_models(changed: dict, complaint: str, tmp_path) -> None:
    path = write_hf(draw("pooler", "mlm", "nsp"), tmp_path / "hf", **changed)
    with pytest.raises(ValueError, match=complaint):
        convert(path, tmp_path / "own", "hf", "bertjax")
    assert not list(tmp_path.glob("own*"))


@pytest.mark.slow
@pytest.mark.parametrize("length", [16, 128, 512])
def test_converted_question_answering_model_predicts_at_any_length(length: int, tmp_path) -> None:
    config = dataclasses.replace(CONFIG, max_position_embeddings=length)
    path = write_hf(draw_model(config, TOKENIZER, "question_answering"), tmp_path / "hf")
    convert(path, tmp_path / "own", "hf", "bertjax")
    line = json.dumps({"question": "a b", "context": "c d " * 20})
    (answer,) = answers_of(tmp_path / "own", [line])
    assert 0 <= answer["start"] < answer["end"] <= 80


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("parts", "fields", "expected"),
    [
        (("pooler", "mlm", "nsp"), {}, (16, None)),
        (("mlm",), {"decoder": "prefix"}, (32, {"max_target_length": 16})),
        (("pooler", "sequence_classification"), {"num_labels": 2}, (16, None)),
        (("token_classification",), {"num_labels": 2}, (16, None)),
        (("question_answering",), {}, (16, {"doc_stride": 5})),
        (("pooler", "multiple_choice"), {}, (32, {"max_choice_length": 16})),
    ],
    ids=str,
)
def test_convert_keeps_the_length_at_which_texts_are_cut(parts, fields, expected, tmp_path) -> None:
    config = dataclasses.replace(CONFIG, max_position_embeddings=32, **fields)
    model = dataclasses.replace(draw_model(config, TOKENIZER, *parts), max_seq_length=16)
    path = write_hf(model, tmp_path / "hf")
    assert read_model(path).max_seq_length == read_max_length(path) == 16
    convert(path, tmp_path / "own", "hf", "bertjax")
    convert(tmp_path / "own", tmp_path / "again", "bertjax", "hf")
    assert read_max_length(tmp_path / "again") == 16
    config = read_run_config(tmp_path / "own")
    assert config["max_seq_length"] == expected[0]
    assert config["data"].items() >= (expected[1] or {}).items()


@pytest.mark.seconds
@pytest.mark.parametrize("stated", [None, 500])
@pytest.mark.parametrize(
    ("parts", "fields", "expected"),
    [
        (("pooler", "mlm", "nsp"), {}, {}),
        (("mlm",), {"decoder": "prefix"}, {}),
        (("question_answering",), {}, {"max_seq_length": 384}),
        (("answer_spans",), {}, {"max_seq_length": 384}),
        (("pooler", "multiple_choice"), {}, {}),
        (("pooler",), {}, {}),
    ],
    ids=str,
)
def test_convert_back_gives_the_length_of_the_source_or_all_positions(
    parts, fields, expected, stated, tmp_path
) -> None:
    config = dataclasses.replace(CONFIG, max_position_embeddings=512, **fields)
    path = write_hf(draw_model(config, TOKENIZER, *parts), tmp_path / "hf")
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["model_max_length"] = stated or 10**30  # as transformers writes it for none
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(path, tmp_path / "own", "hf", "bertjax")
    convert(tmp_path / "own", tmp_path / "again", "bertjax", "hf")
    assert read_max_length(tmp_path / "again") == (stated or 512)
    found = read_run_config(tmp_path / "own")
    assert found.items() >= expected.items()
    assert found == infer_config(read_model(tmp_path / "again")).to_dict() | {"mesh": {}}


@pytest.mark.seconds
def test_predict_cuts_no_text_of_a_model_of_unknown_length(tmp_path) -> None:
    config = dataclasses.replace(CONFIG, max_position_embeddings=512)
    choice = write_hf(draw_model(config, TOKENIZER, "pooler", "multiple_choice"), tmp_path / "mc")
    masked = write_hf(draw_model(config, TOKENIZER, "mlm"), tmp_path / "mlm")
    for path in (choice, masked):
        (path / "tokenizer_config.json").unlink()
    text = "a " * 200
    (answer,) = answers_of(masked, [f"{text}[MASK]"])
    assert len(answer["masks"]) == 1
    (answer,) = answers_of(choice, [json.dumps({"context": text, "choices": ["b", "c"]})])
    assert "truncated" not in answer


@pytest.mark.seconds
def test_predict_cuts_texts_at_the_length_of_the_export(tmp_path) -> None:
    config = dataclasses.replace(CONFIG, max_position_embeddings=32, num_labels=2)
    model = draw_model(config, TOKENIZER, "pooler", "sequence_classification")
    path = write_hf(dataclasses.replace(model, max_seq_length=16), tmp_path / "hf")
    lines = [" ".join("abcd"[i % 4] for i in range(n)) for n in (14, 15)]
    shorter, longer = answers_of(path, lines)
    assert "truncated" not in shorter and longer["truncated"]
    assert longer["score"] == shorter["score"]


@pytest.mark.seconds
def test_predict_rejects_an_encoder_without_head(tmp_path) -> None:
    convert(write_hf(draw("pooler"), tmp_path / "hf"), tmp_path / "own", "hf", "bertjax")
    with pytest.raises(ValueError, match="own has no MLM head, only encoder"):
        answers_of(tmp_path / "own", ["a [MASK]"])


def test_convert_overwrites_nothing(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"full: exists\. Name another DST"):
        convert(path, tmp_path / "full", "hf", "tf1")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@pytest.mark.seconds
def test_convert_all_steps_exports_each_checkpoint_once(tmp_path, capsys) -> None:
    models = {7: draw("mlm"), 19: draw("mlm"), 20: draw("mlm")}
    run, target = tmp_path / "run", tmp_path / "steps"
    (run / "checkpoints").mkdir(parents=True)
    arguments = ["convert", "--to", "hf", "--all-steps", str(run), str(target)]

    def add_checkpoint(step: int) -> None:
        models[step].params["mlm"]["bias"][0] = step
        path = write_hf(models[step], tmp_path / str(step))
        convert(path, run / "checkpoints" / f"{step:08}", "hf", "bertjax")

    add_checkpoint(7)
    add_checkpoint(19)
    assert main(arguments) == 0
    add_checkpoint(20)
    capsys.readouterr()
    assert main(arguments) == 0
    assert f"{target}/checkpoint-19: exists, and stays as it is.\n" in capsys.readouterr().out
    assert {path.name for path in target.iterdir()} == {f"checkpoint-{step}" for step in models}
    for step, model in models.items():
        assert_same(read_model(target / f"checkpoint-{step}"), model)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("hf", [], "hf is no workdir with checkpoints. Name one"),
        ("run/checkpoints/00000007", [], "00000007 is no workdir with checkpoints. Name one"),
        ("run", ["--right-to-left", "hf"], "--all-steps: --right-to-left takes one model"),
    ],
)
def test_convert_all_steps_rejects(source, options, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_hf(draw("mlm"), tmp_path / "hf")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    convert("hf", "run/checkpoints/00000007", "hf", "bertjax")
    assert main(["convert", "--to", "hf", "--all-steps", *options, source, "steps"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "steps").exists()
