"""The table of the settings of published models: what is honored, rejected and warned of."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from goldens import make_model_settings as made
from model_files import CONFIG, write_hf
from random_models import draw_model

from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.model.bert import BertWithHeads
from data_pipelines import log
from data_pipelines.errors import InputError
from data_pipelines.model_settings import SETTINGS, check_settings
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

GOLDEN = json.loads((pathlib.Path(__file__).parent / "goldens" / "model_settings.json").read_text())
TOKENIZER = WordPieceTokenizer([*dict.fromkeys(filter(None, made.TOKENS))], cased=False)
NAMES = {f"{name}_token": token for name, token in made.NAMES.items()}
ADDITIONAL = {name: ["<s>"] for name in ("additional_special_tokens", "extra_special_tokens")}
LABELS = {"0": "good", "1": "bad"}
# A value of each honored setting that changes the model; other settings that it needs follow.
HONORED: dict[str, dict[str, Any]] = {
    "tokenizer_config.json": {
        **NAMES,
        "do_lower_case": False,
        "strip_accents": False,
        "do_basic_tokenize": False,
        "max_input_chars_per_word": 7,
        "model_max_length": 9,
        "max_len": 9,
        **ADDITIONAL,
        "added_tokens_decoder": {"5": {"content": "<s>"}},
    },
    "special_tokens_map.json": NAMES | ADDITIONAL,
    "tokenizer.json": {
        "model/type": "BPE",
        "model/vocab": {"a": 0},
        "model/unk_token": "<unk>",
        "model/max_input_chars_per_word": 7,
        "model/continuing_subword_prefix": "@@",
        "normalizer/type": "NFC",
        "normalizer/lowercase": False,
        "normalizer/strip_accents": False,
        "pre_tokenizer/type": "Whitespace",
        "added_tokens": [{"id": 5, "content": "<s>"}],
        "post_processor/single": [{"Sequence": {"id": "A", "type_id": 0}}],
    },
    "config.json": {
        "model_type": "roberta",
        "architectures": ["BertForMultipleChoice"],
        "hidden_act": "relu",
        "is_decoder": True,
        "problem_type": "multi_label_classification",
        "id2label": LABELS,
        "num_labels": 3,
        "tie_word_embeddings": False,
        "label2id": {"good": 1, "bad": 0},
        "bertjax_decoder": "prefix",
        "bertjax_label_sets": {"sequence_classification": ["c", "d"]},
        "bertjax_inference": {"task": "sequence_classification", "data": {"truncation": "tail"}},
        **{
            field.name: 0.25 if isinstance(getattr(CONFIG, field.name), float) else 1
            for field in dataclasses.fields(CONFIG)
            if field.name in huggingface.FIELDS and field.name != "num_attention_heads"
        },
        "num_attention_heads": 2,
    },
    "modules.json": {"path": "0_Transformer", "type": "models.CLIPModel"},
    "sentence_bert_config.json": {"max_seq_length": 11, "do_lower_case": True},
    "config_sentence_transformers.json": {"prompts": {"a": "b "}, "default_prompt_name": "query"},
    "1_Pooling/config.json": {
        "pooling_mode": "cls",
        **{
            f"pooling_mode_{name}": True
            for name in (
                *("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"),
                "lasttoken",
            )
        },
        "pooling_mode_mean_tokens": False,
        "include_prompt": False,
    },
    "2_Dense/config.json": {"out_features": 9},
}
_PROMPTS = "config_sentence_transformers.json"
WITH = {
    "label2id": ("config.json", {"id2label": LABELS}),
    "default_prompt_name": (_PROMPTS, {"prompts": {"query": "q: "}}),
    "include_prompt": (_PROMPTS, {"prompts": {"q": "q: "}, "default_prompt_name": "q"}),
}


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> pathlib.Path:
    """A directory of sentence-transformers with a classifier and no optional setting."""
    config = dataclasses.replace(CONFIG, vocab_size=40, num_labels=2)
    model = draw_model(config, TOKENIZER, "pooler", "mlm", "sequence_classification")
    path = write_hf(model, tmp_path_factory.mktemp("models") / "base")
    fields = json.loads((path / "config.json").read_text())
    for name in ("id2label", "label2id", "problem_type"):
        fields.pop(name, None)
    (path / "config.json").write_text(json.dumps(fields))
    (path / "vocab.txt").unlink()  # leaves tokenizer.json
    (path / "1_Pooling").mkdir()
    (path / "2_Dense").mkdir()
    identity = "torch.nn.modules.linear.Identity"
    for name, content in (
        ("tokenizer_config.json", {}),
        ("sentence_bert_config.json", {}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
        ("2_Dense/config.json", {"out_features": 8, "activation_function": identity}),
        (
            "modules.json",
            [
                {"path": "", "type": "models.Transformer"},
                {"path": "1_Pooling", "type": "models.Pooling"},
                {"path": "2_Dense", "type": "models.Dense"},
            ],
        ),
    ):
        (path / name).write_text(json.dumps(content))
    return path


Outcome = Callable[..., str]


@pytest.fixture
def outcome(base, caplog) -> Iterator[Outcome]:
    """Function that changes settings of a file; returns what is read, the warnings or the error."""
    changed: list[tuple[pathlib.Path, bytes | None]] = []

    def read(file: str = "config.json", **settings: Any) -> str:
        path = base / file
        changed.append((path, path.read_bytes() if path.exists() else None))
        content = json.loads(path.read_text()) if path.exists() else {}
        for name, value in settings.items():
            *parents, last = name.split("/")
            place = content[0] if file == "modules.json" else content
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        path.write_text(json.dumps(content))
        caplog.clear()
        try:
            model = huggingface.read(base)
            assert model.tokenizer is not None
            shown = repr(
                (
                    *(model.config, sorted(model.params), model.labels, model.problem_type),
                    model.inference,
                    *(model.tokenizer.fingerprint(), find_pooling_config(base)),
                    vars(model.tokenizer)["max_input_chars_per_word"],
                )
            )
        except InputError as error:
            shown = f"error: {error}"
        return f"{shown} {caplog.text}"

    yield read
    for path, content in reversed(changed):
        path.unlink() if content is None else path.write_bytes(content)


def settings_of(*actions: str) -> list[tuple[str, str]]:
    return [
        (file, name)
        for file, table in SETTINGS.items()
        for name, setting in table.items()
        if setting.action in actions
    ]


@pytest.mark.seconds
@pytest.mark.parametrize(("file", "name"), settings_of("honored"))
def test_honored_setting_changes_what_is_read(outcome, file: str, name: str) -> None:
    other_file, needed = WITH.get(name, (file, {}))
    outcome(other_file, **needed)
    before = outcome(file)
    assert "error:" not in before
    assert outcome(file) == before
    assert outcome(file, **{name: HONORED[file][name]}) != before


@pytest.mark.parametrize(("file", "name"), settings_of("rejected"))
def test_rejected_setting_is_named_with_a_fix(outcome, file: str, name: str) -> None:
    for value in SETTINGS[file][name].harmless:
        assert "error:" not in outcome(file, **{name: value})
    error = outcome(file, **{name: "other"})
    message = f"{file}: has {name}='other', which is not supported. {SETTINGS[file][name].note}"
    assert error.startswith("error:") and message in error


@pytest.mark.parametrize(("file", "name"), settings_of("warned"))
def test_warned_setting_is_named_once(outcome, file: str, name: str) -> None:
    for value in (None, *SETTINGS[file][name].harmless):
        assert f" has {name}" not in outcome(file, **{name: value})
    assert f"has {name}='other': {SETTINGS[file][name].note}" in outcome(file, **{name: "other"})
    assert f" has {name}" not in outcome(file, **{name: "other"})


def test_irrelevant_and_unknown_settings(caplog) -> None:
    path: Any = pathlib.Path("model")
    for file, table in SETTINGS.items():
        quiet = {n: "other" for n, s in table.items() if s.action in ("irrelevant", "watched")}
        check_settings(path, quiet, file)
    assert not caplog.text
    for _ in range(2):
        check_settings(path, {"zeta": 1, "alpha": False, "none": None}, "config.json")
    assert caplog.messages == ["model: unknown settings, which are not read: alpha, zeta."]


def write_tokenizer(path: pathlib.Path, files: dict[str, dict]) -> None:
    (path / "vocab.txt").write_text("\n".join(made.TOKENS) + "\n", "utf-8")
    for file, content in files.items():
        (path / file).write_text(json.dumps(content))


@pytest.mark.parametrize("name", made.TOKENIZERS)
def test_tokenizer_settings_give_the_ids_of_transformers(name: str, tmp_path) -> None:
    write_tokenizer(tmp_path, made.TOKENIZERS[name])
    golden = GOLDEN["tokenizers"]

    def check(tokenizer: Any) -> None:
        ids = [[tokenizer.cls_id, *tokenizer.encode(t), tokenizer.sep_id] for t in made.TEXTS]
        found = {"ids": ids, "pad": tokenizer.pad_id, "mask": tokenizer.mask_id}
        assert found == golden[name]
        offsets = [tokenizer.encode_with_offsets(text)[0] for text in made.TEXTS]
        assert offsets == [row[1:-1] for row in ids]

    check(load_tokenizer(tmp_path))
    load_tokenizer(tmp_path).save(tmp_path / "saved")
    check(load_tokenizer(tmp_path / "saved"))
    if name not in ("default", "added_tokens_decoder"):
        assert golden[name] != golden["default"]


@pytest.mark.slow
@pytest.mark.parametrize("name", made.MODELS)
def test_model_settings_give_the_logits_of_transformers(name: str, tmp_path) -> None:
    config = made.CONFIG | made.MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = huggingface.parse_bert_config(config, tmp_path)  # type: ignore[arg-type]
    arrays = draw_model(shape, None, "mlm").named_arrays("hf")
    arrays = {key: made.draw(key, array.shape) for key, array in arrays.items()}
    if name == "decoder.bias":
        arrays["cls.predictions.decoder.bias"] = made.draw(
            "cls.predictions.decoder.bias", (len(made.TOKENS),)
        )
    content = safetensors.numpy.save(arrays)
    (tmp_path / "model.safetensors").write_bytes(content)
    model = huggingface.read(tmp_path)  # type: ignore[arg-type]
    ids = jnp.array([made.IDS], jnp.int32)
    positions = jnp.arange(len(made.IDS), dtype=jnp.int32)[None]
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "example_ids": 0 * ids + 1}
    batch |= {"position_ids": positions, "masked_lm_positions": positions}
    network = BertWithHeads(dataclasses.replace(model.config, dtype="float32"), ("mlm",))
    params = {part: model.params[part] for part in ("encoder", "mlm")}
    logits = network.apply({"params": params}, batch, deterministic=True)["mlm_logits"]
    found = np.asarray(logits)[0, :, : len(made.TOKENS)]
    np.testing.assert_allclose(found, GOLDEN["models"][name], atol=2e-4)


def test_documentation_lists_every_setting() -> None:
    page = (pathlib.Path(__file__).parent.parent / "docs" / "data-formats.md").read_text()
    columns = ("honored", "rejected", "warned")
    for file, table in SETTINGS.items():
        names = [", ".join(f"`{n}`" for n, s in table.items() if s.action == c) for c in columns]
        assert f"| `{file}` | {' | '.join(names)} |" in page
