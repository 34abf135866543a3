"""Files of google-research/bert, written by TensorFlow as its scripts write them."""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from random_models import draw_model

from bertjax.formats.huggingface import bert_config_dict
from bertjax.model.bert_config import BertConfig
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

MAX_PREDICTIONS = 5


class StoredPair(NamedTuple):
    """A pair of texts as token ids, and its label."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    is_random: bool


def draw_pairs(
    count: int, ids: Sequence[int], max_tokens: int, rng: np.random.Generator
) -> list[StoredPair]:
    """Return pairs of texts of random tokens, with `max_tokens` tokens at most."""
    pairs = []
    for _ in range(count):
        size = rng.integers(2, max_tokens, endpoint=True)
        text = tuple(rng.choice(ids, size).tolist())
        split = int(rng.integers(1, size))
        pairs.append(StoredPair(text[:split], text[split:], bool(rng.random() < 0.5)))
    return pairs


def masked_features(
    pair: StoredPair,
    special: Mapping[str, int],
    vocab_size: int,
    max_seq_length: int,
    rng: np.random.Generator,
) -> dict[str, list]:
    """Return the features of create_pretraining_data.py: masked tokens and padding."""
    tokens = [special["[CLS]"], *pair.a, special["[SEP]"], *pair.b, special["[SEP]"]]
    segments = [0] * (len(pair.a) + 2) + [1] * (len(pair.b) + 1)
    candidates = [i for i in range(1, len(tokens) - 1) if i != len(pair.a) + 1]
    count = min(MAX_PREDICTIONS, max(1, round(0.15 * len(tokens))))
    positions = sorted(rng.permutation(candidates)[:count].tolist())
    labels = [tokens[i] for i in positions]
    for i in positions:  # a random token may be any of the vocabulary, also a special one
        draw = rng.random()
        random_id = int(rng.integers(vocab_size))
        tokens[i] = special["[MASK]"] if draw < 0.8 else tokens[i] if draw < 0.9 else random_id
    padding = [0] * (max_seq_length - len(tokens))
    unused = [0] * (MAX_PREDICTIONS - len(positions))
    return {
        "input_ids": tokens + padding,
        "input_mask": [1] * len(tokens) + padding,
        "segment_ids": segments + padding,
        "masked_lm_positions": positions + unused,
        "masked_lm_ids": labels + unused,
        "masked_lm_weights": [1.0] * len(positions) + [0.0] * len(unused),
        "next_sentence_labels": [int(pair.is_random)],
    }


def serialize(features: Mapping[str, list]) -> bytes:
    """Return a tf.train.Example of lists of integers and floats."""
    import tensorflow as tf

    def feature(values: list) -> "tf.train.Feature":
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    parts = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=parts)).SerializeToString()


def write_records(path: pathlib.Path, records: Iterable[bytes]) -> pathlib.Path:
    """Write a TFRecord file."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def write_checkpoint(prefix: pathlib.Path, variables: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=[*variables],
        shape_and_slices=[""] * len(variables),
        tensors=[*variables.values()],
    )


def write_output(
    directory: pathlib.Path, tokenizer: WordPieceTokenizer, steps: Sequence[int], count: int = 200
) -> dict[int, dict[str, np.ndarray]]:
    """Write vocabulary, examples of 32 tokens and the checkpoints of run_pretraining.py.

    Returns:
      The variables of the model by step.
    """
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(tokenizer.tokens) + "\n")
    config = BertConfig(len(tokenizer.tokens), 2, 64, 2, max_position_embeddings=64)
    (directory / "bert_config.json").write_text(json.dumps(bert_config_dict(config)))
    model = draw_model(config, tokenizer, "pooler", "mlm", "nsp").named_arrays("tf1")
    variables = {}
    for step in steps:
        variables[step] = {name: array + step / 1e6 for name, array in model.items()}
        slots = {
            f"{n}/{slot}": array for n, array in model.items() for slot in ("adam_m", "adam_v")
        }
        content = variables[step] | slots | {"global_step": np.array(step, np.int64)}
        write_checkpoint(directory / f"model.ckpt-{step}", content)
    names = [f'"model.ckpt-{step}"' for step in steps]
    lines = [
        f"model_checkpoint_path: {names[-1]}",
        *(f"all_model_checkpoint_paths: {n}" for n in names),
    ]
    (directory / "checkpoint").write_text("\n".join(lines) + "\n")
    rng = np.random.default_rng(0)
    special = {token: tokenizer.tokens.index(token) for token in SPECIAL_TOKENS}
    records = [
        serialize(masked_features(pair, special, len(tokenizer.tokens), 32, rng))
        for pair in draw_pairs(count, tokenizer.text_token_ids, 29, rng)
    ]
    for part, name in enumerate(("a.tfrecord", "b.tfrecord")):
        write_records(directory / name, records[part::2])
    return variables


def read_checkpoint(prefix: pathlib.Path) -> dict[str, np.ndarray]:
    """Return the variables of a checkpoint."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
