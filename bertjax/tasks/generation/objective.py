"""Objective of generation: the next token of a target, given its source and its tokens so far."""

from collections.abc import Mapping
from typing import ClassVar

from bertjax.config.config import Config
from bertjax.tasks.finetuning import FinetuningObjective
from bertjax.tasks.task import check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.packed_examples import PackedShape

MLM_PROBABILITY = 0.7  # of UniLM's fine-tuning for questions
_MIN_SOURCE_LENGTH = 3  # [CLS], a token, [SEP]
_MIN_TARGET_LENGTH = 2  # a token, [SEP]


class GenerationObjective(FinetuningObjective):
    """Encoder with a decoder and the masked LM head.

    The decoder is the encoder itself, with a mask (Dong et al. 2019), or one with cross-attention
    (Rothe et al. 2020). With `decoder=masked_prefix` batches have masked targets.
    """

    DECODERS: ClassVar[tuple[str, ...]] = ("prefix", "masked_prefix", "cross_attention")
    heads = ("mlm",)
    LOSS_INPUTS = ("mlm", "masked_lm_ids", "masked_lm_weights")

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        model = config.model
        if not model.decoder:
            raise InputError(
                "model.decoder='': each target token would see the next one, which it predicts. "
                "Set model.decoder=prefix, masked_prefix or cross_attention."
            )
        super().__init__(config, batch_size_multiple)
        if not model.has_cross_attention:
            self.segments = "source and target"
            check_type_vocab_size(model, self.segments)
        if self.max_target_length < _MIN_TARGET_LENGTH:
            raise InputError(
                f"data.max_target_length={self.max_target_length}: no space for a token and [SEP]. "
                f"Use at least {_MIN_TARGET_LENGTH}."
            )
        if self.max_source_length < _MIN_SOURCE_LENGTH:
            raise InputError(
                f"data.max_target_length={self.max_target_length}: leaves no space for a source in "
                f"max_seq_length={config.max_seq_length}. Reduce it, or raise max_seq_length."
            )
        if not 0 < (probability := config.data["mlm_probability"]) <= 1:
            raise InputError(f"data.mlm_probability={probability}: not in (0, 1]. Use 0.7.")
        if probability != MLM_PROBABILITY and not model.predicts_masks:
            raise InputError(
                f"data.mlm_probability={probability}: model.decoder={model.decoder} masks no "
                "targets. Remove it, or set model.decoder=masked_prefix."
            )
        if (num_generated := config.data["num_generated"]) < -1:
            raise InputError(
                f"data.num_generated={num_generated}: no number of sources. Use -1 for all, or 0 "
                "for none."
            )

    def check_inputs_repeat(self) -> None:
        """Raise InputError if targets are masked."""
        if self.config.model.predicts_masks:
            raise InputError(
                "model.decoder='masked_prefix': each step masks other tokens, so that no two "
                "epochs have the same inputs, which stored logits belong to. Use distill.teacher."
            )

    @property
    def generates(self) -> bool:
        """True."""
        return True

    @property
    def max_target_length(self) -> int:
        """Maximal tokens of a target with [SEP]."""
        return int(self.config.data["max_target_length"])

    @property
    def max_source_length(self) -> int:
        """Maximal tokens of a source with [CLS] and [SEP]."""
        return self.config.max_seq_length - self.max_target_length

    @property
    def sequence_shape(self) -> PackedShape:
        """Tokens, examples and target tokens that a sequence holds at most.

        The targets of its examples share the space of one target, as their sources do that of one
        source.
        """
        return super().sequence_shape._replace(predictions=self.max_target_length)

    def targets(self) -> Mapping[str, Target]:
        """Return no labels: the tokens themselves are predicted."""
        return {}
