"""Embeddings of a file of texts."""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.loading import find_tokenizer
from bertjax.formats.sentence_transformers import MODULES_FILE, find_pooling_config
from bertjax.inference.embedding_files import (
    TEXTS_KEY,
    WRITERS,
    PartFiles,
    check_suffix,
    texts_to_bytes,
)
from bertjax.inference.output_records import InputProblems
from bertjax.inference.output_shards import InputFile, Shard, ShardsWriter, Summary
from bertjax.inference.predictor import AnyModel, Runner, open_model
from bertjax.mesh.cluster import ProcessShare
from bertjax.mesh.finite import check_finite
from bertjax.tasks.embeddings.encoder_embeddings import (
    EmbeddingOptions,
    EmbeddingsObjective,
    TextEmbeddings,
    embed_texts,
)
from bertjax.tasks.embeddings.pipeline import warn_unused_prompts
from bertjax.tasks.input_lines import parse_line
from bertjax.workdir.draft import exclusive_draft
from bertjax.workdir.lock import WorkdirLock
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.log import warn_once

_log = logging.getLogger("bertjax")

LINES_PER_PART = {"text": 4096, "word": 256, "token": 256}  # by level
# In a directory of several processes: few enough that a small corpus has some for each of them,
# and that a file of BERT-Base has 50 MB.
PARTS_PER_SHARD = 4


def find_embedding_options(
    directory: epath.PathLike,
    layers: Sequence[int] = (-1,),
    level: str = "text",
    pooling: str | None = None,
    normalize: bool = False,
) -> tuple[epath.Path, EmbeddingOptions]:
    """Return the model in a directory and the options of its embeddings.

    A directory of sentence-transformers gives the defaults of pooling, projection, normalization
    and length, and the prompt and the case of texts. Elsewhere the pooling is "mean".

    Raises:
      InputError: an option is invalid, or the directory has a pooling that bertjax lacks and none
        is given.
    """
    # Words and tokens are not pooled.
    saved = find_pooling_config(directory, pooling if level == "text" else "mean")
    if saved is None:
        return model_path(directory), EmbeddingOptions(
            tuple(layers), level, pooling or "mean", normalize
        )
    projection_size = 0
    if not pooling and level == "text":
        pooling, normalize = saved.pooling, saved.normalize or normalize
        projection_size = saved.projection_size
        if projection_size and tuple(layers) != (-1,):
            raise InputError(
                f"{directory}: a linear layer projects vectors of its last layer. Leave the layers "
                "out, or give --pooling for vectors without it."
            )
        suffix = ", scaled to length 1" if normalize else ""
        _log.info("%s: a text's embedding is pooled by %s%s.", saved.model, pooling, suffix)
    elif level == "text":
        parts = {
            "linear layer": saved.projection_size > 0,
            "scaling to length 1": saved.normalize and not normalize,
        }
        if left_out := " and ".join(part for part, is_used in parts.items() if is_used):
            _log.info("%s: pooling=%s leaves out its %s.", saved.model, pooling, left_out)
    if not (model_path(directory) / MODULES_FILE).exists():  # else reported by its reader
        warn_unused_prompts(saved.query_prompt, saved.document_prompt)
    if saved.prompt:
        _log.info("%s: each text begins with the prompt %r.", saved.model, saved.prompt)
    if saved.do_lower_case:
        _log.info("%s: texts are lower-cased.", saved.model)
    length = saved.max_seq_length
    options = EmbeddingOptions(tuple(layers), level, pooling or "mean", normalize, length)
    return saved.model, dataclasses.replace(
        options,
        do_lower_case=saved.do_lower_case,
        prompt=saved.prompt,
        projection_size=projection_size,
    )


class Embedder:
    """Encoder on all devices of this process.

    Args:
      checkpoint: checkpoint, workdir, or model of Hugging Face or TF1; or an open one.
      options: options of the embeddings.

    Attributes:
      options: options with the model's maximum length.

    Raises:
      InputError: there is no such model, or it lacks these layers.
    """

    def __init__(self, checkpoint: epath.PathLike | AnyModel, options: EmbeddingOptions) -> None:
        self._pretrained = model = open_model(checkpoint)
        positions = model.bert_config.max_position_embeddings
        max_seq_length = min(options.max_seq_length or positions, positions)
        self.options = dataclasses.replace(options, max_seq_length=max_seq_length)
        self._tokenizer = model.tokenizer or find_tokenizer(model.path)
        config = Config(model=model.bert_config, max_seq_length=max_seq_length, batch_size=1)
        self._objective = EmbeddingsObjective(config, jax.device_count(), self.options)
        self._runner = Runner(model, self._objective)

    def encode(self, texts: Sequence[str]) -> TextEmbeddings:
        """Return the embeddings of some texts; raise CommandError if they are not finite."""
        encoded = embed_texts(texts, self._runner.run, self._tokenizer, self._objective)
        check_finite(encoded.embeddings, "embeddings")
        return encoded

    def warn_truncated(self, num_truncated: int, num_texts: int) -> None:
        """Log how many texts were truncated, if any."""
        if num_truncated:
            _log.warning(
                "%d of %d texts are longer than %d tokens and were truncated.",
                num_truncated,
                num_texts,
                self.options.max_seq_length,
            )

    def write(self, lines: Iterable[str], output: epath.PathLike, file_name: str = "") -> int:
        """Write the embeddings of every line to a file, and return the number of lines.

        A call that was interrupted resumes after its last part.

        Args:
          lines: texts, or JSON objects with "text".
          output: the file; see `PartFiles`.
          file_name: name of the file of the lines, whose suffix may give the format; see
            `bertjax.tasks.input_lines.parse_line`.

        Raises:
          InputError: a line is neither, there are none, the suffix is unknown, or see `PartFiles`
            and `exclusive_draft`.
        """
        output = epath.Path(output)
        check_suffix(output)
        with exclusive_draft(output, "--output") as lock:
            count, num_truncated = self._write_file(
                _iter_texts(lines, file_name=file_name), output, lock
            )
        self.warn_truncated(num_truncated, count)
        return count

    def write_shards(
        self, files: Sequence[InputFile[str]], output: epath.PathLike, share: ProcessShare
    ) -> Summary:
        """Write a process's share of the embeddings of every line of files to a directory.

        Args:
          files: the files, whose items are lines as of `write`.
          output: the directory; its suffix is that of the shards.
          share: share of this process.

        Raises:
          InputError: a line is invalid, the suffix is unknown, or see `ShardsWriter.write`.
        """
        output = epath.Path(output)
        check_suffix(output)

        def write_shard(shard: Shard[str], path: epath.Path, lock: WorkdirLock) -> InputProblems:
            texts = _iter_texts(shard.items, shard.first, shard.input)
            return InputProblems(self._write_file(texts, path, lock)[1])

        rows = PARTS_PER_SHARD * LINES_PER_PART[self.options.level]
        writer = ShardsWriter(output, output.suffix, self._settings, rows, _to_bytes, share)
        summary = writer.write(files, write_shard)
        self.warn_truncated(summary.problems.num_truncated, summary.rows)
        return summary

    @property
    def _settings(self) -> dict[str, Any]:
        """Everything but the texts that determines the embeddings."""
        model, vocabulary = self._pretrained.digest, self._tokenizer.fingerprint()
        return {"model": model, "vocabulary": vocabulary, **vars(self.options)}

    def _write_file(
        self, texts: Iterator[str], output: epath.Path, lock: WorkdirLock
    ) -> tuple[int, int]:
        """Write the embeddings of texts to a file; return the number of texts and truncated ones.

        Both include the texts of parts that were there.

        Args:
          texts: the texts.
          output: the file.
          lock: lock of the directory of its parts, from which it is moved.
        """
        parts, number, count, num_truncated = PartFiles(output, self._settings, lock), 0, 0, 0
        lines_per_part = LINES_PER_PART[self.options.level]
        while chunk := list(itertools.islice(texts, lines_per_part)):
            joined = "\n".join(chunk).encode("utf-8", "surrogatepass")
            digest = hashlib.sha256(joined).hexdigest()
            part_truncated = parts.find_num_truncated(number, digest)
            if part_truncated is None:
                embeddings = self.encode(chunk)
                part_truncated = embeddings.num_truncated
                parts.write(number, digest, _make_part(chunk, embeddings), part_truncated)
            num_truncated += part_truncated
            number, count = number + 1, count + len(chunk)
        if not count:
            raise InputError("the input has no lines. Give some text.")
        parts.finish(number, WRITERS[output.suffix])
        return count, num_truncated


def _to_bytes(line: str) -> bytes:
    return line.strip().encode("utf-8", "surrogatepass")


def _iter_texts(lines: Iterable[str], num_before: int = 0, file_name: str = "") -> Iterator[str]:
    for number, line in enumerate(lines, num_before + 1):
        location = f"{file_name}:{number}" if file_name else f"line {number}"
        content = parse_line(location, line, file_name)
        if not isinstance(content, str):
            if "text_pair" in content:
                warn_once(
                    "text_pair", f'{location}: "text_pair" is not read: one text is embedded.'
                )
            value = content.get("text")
            if not isinstance(value, str):
                raise InputError(f'{location}: no "text". Write {{"text": "..."}}, or text.')
            content = value
        yield content


def _make_part(texts: Sequence[str], embeddings: TextEmbeddings) -> dict[str, np.ndarray]:
    part = {TEXTS_KEY: texts_to_bytes(texts), "embeddings": embeddings.embeddings}
    if embeddings.tokens is not None:
        part["counts"] = np.array([len(tokens) for tokens in embeddings.tokens], np.int64)
        part["tokens"] = np.array([token for tokens in embeddings.tokens for token in tokens])
    return part
