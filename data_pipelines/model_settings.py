"""Settings in the files of published models, and what is done with each.

`honored` settings are read elsewhere. `rejected` and `warned` settings list the values that change
nothing. `watched` settings name tokens: a text that contains one is warned of. `irrelevant`
settings change no result: they concern decoded text, speed, or the records of other programs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.log import warn_once

Action = Literal["honored", "rejected", "warned", "watched", "irrelevant"]


class Setting(NamedTuple):
    """Treatment of a setting.

    Attributes:
      action: see the module.
      harmless: values that change nothing, besides null.
      note: consequence of other values, or the fix if they are rejected.
    """

    action: Action
    harmless: tuple[Any, ...] = ()
    note: str = ""


def _settings(action: Action, names: str) -> dict[str, Setting]:
    return dict.fromkeys(names.split(), Setting(action))


def _rejected(fix: str, *harmless: Any) -> Setting:
    return Setting("rejected", harmless, fix)


def _warned(note: str, *harmless: Any) -> Setting:
    return Setting("warned", harmless, note)


_SPECIAL_TOKENS = _settings(
    "honored",
    "pad_token unk_token cls_token sep_token mask_token additional_special_tokens "
    "extra_special_tokens",
) | _settings("watched", "bos_token eos_token")

_WORDPIECE_CLASSES = (
    *(
        f"{model}Tokenizer{suffix}"
        for model in (
            *("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "RetriBert"),
            *("SqueezeBert", "DPRQuestionEncoder", "DPRContextEncoder", "BertJapanese"),
        )
        for suffix in ("", "Fast")
    ),
    *("PreTrainedTokenizerFast", "TokenizersBackend", "BertTokenizerLegacy"),
)

_JAPANESE = "Use a model whose words are those of BERT's basic tokenizer."
_OWN_CODE = "code of the model's own is not run: the model is computed as plain BERT."

_TOKENIZER_CONFIG = {
    **_SPECIAL_TOKENS,
    **_settings("honored", "do_lower_case strip_accents do_basic_tokenize added_tokens_decoder"),
    **_settings("honored", "max_input_chars_per_word model_max_length max_len"),
    "tokenize_chinese_chars": _rejected("Use a model with tokenize_chinese_chars=true.", True),
    "word_tokenizer_type": _rejected("Use a model with word_tokenizer_type='basic'.", "basic"),
    "subword_tokenizer_type": _rejected(
        "Use a model with subword_tokenizer_type='wordpiece'.", "wordpiece"
    ),
    "do_word_tokenize": _rejected(_JAPANESE, True),
    "do_subword_tokenize": _rejected(_JAPANESE, True),
    "clean_text": _rejected("Use a model with clean_text=true.", True),
    "wordpieces_prefix": _rejected("Use a model with wordpieces_prefix='##'.", "##"),
    "never_split": _warned(
        "such words are split as any other, as by BertTokenizer of transformers 5.", [], ()
    ),
    "tokenizer_class": _warned(
        "the vocabulary is read as BERT's WordPiece. Check the tokens with `bertjax embed --level "
        "token`.",
        *_WORDPIECE_CLASSES,
    ),
    "auto_map": _warned(_OWN_CODE),
    "truncation_side": _warned("long texts lose their end.", "right"),
    "model_input_names": _warned(
        "the second text of a pair has token type 1 nevertheless.",
        *(
            [*names]
            for names in (
                ("input_ids", "token_type_ids", "attention_mask"),
                ("input_ids", "attention_mask", "token_type_ids"),
                ("input_ids", "token_type_ids"),
            )
        ),
    ),
    # The texts of tokens, and what follows tokenization.
    **_settings("irrelevant", "clean_up_tokenization_spaces split_special_tokens padding_side"),
    **_settings("irrelevant", "spaces_between_special_tokens decode_with_prefix_space errors"),
    **_settings("irrelevant", "max_length stride truncation truncation_strategy padding"),
    **_settings("irrelevant", "pad_to_multiple_of pad_token_type_id return_token_type_ids"),
    **_settings("irrelevant", "chat_template processor_class mecab_kwargs sudachi_kwargs"),
    **_settings("irrelevant", "jumanpp_kwargs add_prefix_space"),
    # Where and how it was saved.
    **_settings("irrelevant", "name_or_path special_tokens_map_file tokenizer_file vocab_file"),
    **_settings("irrelevant", "full_tokenizer_file use_fast from_slow backend is_local verbose"),
    **_settings("irrelevant", "local_files_only cache_dir trust_remote_code init_inputs legacy"),
    **_settings("irrelevant", "transformers_version tokenizer_version return_tensors"),
}

_TOKENIZER_JSON = {
    **_settings("honored", "model/type model/vocab model/unk_token model/max_input_chars_per_word"),
    **_settings("honored", "model/continuing_subword_prefix normalizer/type pre_tokenizer/type"),
    **_settings("honored", "normalizer/lowercase normalizer/strip_accents"),
    **_settings("honored", "added_tokens"),
    "normalizer/handle_chinese_chars": _rejected(
        "Use a model with tokenize_chinese_chars=true.", True
    ),
    "normalizer/clean_text": _rejected("Use a model with clean_text=true.", True),
    "post_processor/type": _warned(
        "texts begin with [CLS] and end with [SEP] nevertheless.",
        *("TemplateProcessing", "BertProcessing"),
    ),
    **_settings("honored", "post_processor/single"),
    **_settings("irrelevant", "post_processor/pair post_processor/special_tokens"),
    **_settings("irrelevant", "post_processor/sep post_processor/cls"),
    **_settings("irrelevant", "version truncation padding decoder"),
}

_CONFIG = {
    **_settings("honored", "model_type architectures vocab_size hidden_size num_hidden_layers"),
    **_settings("honored", "num_attention_heads intermediate_size hidden_act type_vocab_size"),
    **_settings("honored", "max_position_embeddings hidden_dropout_prob layer_norm_eps"),
    **_settings(
        "honored",
        "attention_probs_dropout_prob initializer_range is_decoder bertjax_decoder "
        "bertjax_label_sets bertjax_inference",
    ),
    **_settings("honored", "id2label label2id num_labels problem_type tie_word_embeddings"),
    "position_embedding_type": _rejected("Give a model with absolute positions.", "absolute"),
    "add_cross_attention": _rejected("Give an encoder.", False),
    "is_encoder_decoder": _rejected("Give an encoder.", False),
    "pruned_heads": _rejected("Give the model before its heads were pruned.", {}, []),
    "quantization_config": _rejected("Give the model before quantization."),
    "classifier_dropout": _warned("heads have the dropout rate of the encoder in training."),
    "function_to_apply": _warned("scores are those of problem_type.", ""),
    "auto_map": _warned(_OWN_CODE),
    "custom_pipelines": _warned(_OWN_CODE),
    "adapters": _warned("adapters are not read.", {}),
    "sbert_ce_default_activation_function": _warned(
        "a number is returned without this function.", "torch.nn.modules.linear.Identity"
    ),
    "sentence_transformers/activation_fn": _warned(
        "a number is returned without this function.", "torch.nn.modules.linear.Identity"
    ),
    "sentence_transformers/version": Setting("irrelevant"),
    # Computed with the same result.
    **_settings("irrelevant", "chunk_size_feed_forward use_cache torch_dtype dtype torchscript"),
    **_settings("irrelevant", "gradient_checkpointing use_bfloat16 attn_implementation"),
    **_settings("irrelevant", "_attn_implementation_autoset _attn_implementation tf_legacy_loss"),
    **_settings("irrelevant", "output_attentions output_hidden_states output_past return_dict"),
    **_settings("irrelevant", "use_return_dict cross_attention_hidden_size fused_qkv"),
    **_settings("irrelevant", "pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id"),
    **_settings("irrelevant", "mask_token_id unk_token_id decoder_start_token_id"),
    # Of BERT's multilingual configuration; no code reads them.
    **_settings("irrelevant", "directionality pooler_fc_size pooler_num_attention_heads"),
    **_settings("irrelevant", "pooler_num_fc_layers pooler_size_per_head pooler_type"),
    # Where and how it was saved and trained.
    **_settings("irrelevant", "_name_or_path name_or_path transformers_version finetuning_task"),
    **_settings("irrelevant", "task_specific_params tokenizer_class language _num_labels"),
    **_settings("irrelevant", "_commit_hash model_max_length xla_device eos_token_ids"),
    **_settings("irrelevant", "bertjax_history"),
    # Defaults of `generate`, written by older versions.
    **_settings("irrelevant", "max_length min_length do_sample early_stopping num_beams prefix"),
    **_settings("irrelevant", "num_beam_groups diversity_penalty temperature top_k top_p"),
    **_settings("irrelevant", "typical_p repetition_penalty length_penalty no_repeat_ngram_size"),
    **_settings("irrelevant", "encoder_no_repeat_ngram_size bad_words_ids suppress_tokens"),
    **_settings("irrelevant", "num_return_sequences output_scores return_dict_in_generate"),
    **_settings("irrelevant", "forced_bos_token_id forced_eos_token_id remove_invalid_values"),
    **_settings("irrelevant", "exponential_decay_length_penalty begin_suppress_tokens"),
    **_settings("irrelevant", "is_composition tie_encoder_decoder"),
}

_SENTENCE_BERT = {
    **_settings("honored", "max_seq_length do_lower_case"),
    "transformer_task": _rejected("Give a model of embeddings.", "feature-extraction"),
    "modality_config": _warned(
        "the last hidden states are pooled.",
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    **_settings("irrelevant", "model_args tokenizer_args config_args model_name_or_path"),
    **_settings("irrelevant", "cache_dir module_output_name"),
}

_SENTENCE_TRANSFORMERS = {
    **_settings("honored", "prompts default_prompt_name"),
    "truncate_dim": _rejected("Give the model without it, and cut the embeddings."),
    "model_type": _rejected(
        "Give a model of type SentenceTransformer or CrossEncoder.",
        *("SentenceTransformer", "CrossEncoder"),
    ),
    "activation_fn": _warned(
        "a number is returned without this function.", "torch.nn.modules.linear.Identity"
    ),
    "similarity_fn_name": _warned("similarities are cosines.", "cosine"),
    **_settings("irrelevant", "__version__"),
}

_POOLING = {
    **_settings("honored", "pooling_mode pooling_mode_cls_token pooling_mode_mean_tokens"),
    **_settings("honored", "pooling_mode_max_tokens pooling_mode_mean_sqrt_len_tokens"),
    **_settings("honored", "pooling_mode_weightedmean_tokens pooling_mode_lasttoken"),
    **_settings("honored", "include_prompt"),
    **_settings("irrelevant", "word_embedding_dimension embedding_dimension"),
}

_DENSE = {
    **_settings("honored", "out_features"),
    **_settings("irrelevant", "in_features bias"),  # those of the weights
    "activation_function": _rejected(
        "Use a model whose Dense has none, Identity.", "torch.nn.modules.linear.Identity"
    ),
    "module_input_name": _rejected(
        "Use a model whose Dense is of embeddings.", "sentence_embedding"
    ),
    "module_output_name": _rejected(
        "Use a model whose Dense is of embeddings.", "sentence_embedding"
    ),
}

_MODULES = {
    **_settings("honored", "path type"),
    "kwargs": _rejected("Give a model without them.", [], {}),
    **_settings("irrelevant", "idx name"),
}

SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "tokenizer_config.json": _TOKENIZER_CONFIG,
    "special_tokens_map.json": _SPECIAL_TOKENS,
    "tokenizer.json": _TOKENIZER_JSON,
    "config.json": _CONFIG,
    "modules.json": _MODULES,
    "sentence_bert_config.json": _SENTENCE_BERT,
    "config_sentence_transformers.json": _SENTENCE_TRANSFORMERS,
    "1_Pooling/config.json": _POOLING,
    "2_Dense/config.json": _DENSE,
}
"""The settings of each file. Those of an object inside tokenizer.json have its name before."""


def check_settings(path: epath.Path, settings: Mapping[str, Any], file_name: str) -> None:
    """Reject or warn of the settings of a file that change a result here; see `SETTINGS`.

    Unknown settings are named in one warning.

    Args:
      path: the file, for messages.
      settings: its content.
      file_name: key of `SETTINGS`.

    Raises:
      InputError: a setting is rejected.
    """
    table, unknown = SETTINGS[file_name], []
    for name, value in _flatten(settings, table):
        setting = table.get(name)
        if value is None or (setting and any(_equal(value, other) for other in setting.harmless)):
            continue
        shown = f"has {name}={json.dumps(value) if isinstance(value, bool) else _shorten(value)}"
        if setting is None:
            unknown.append(name)
        elif setting.action == "rejected":
            raise InputError(f"{path}: {shown}, which is not supported. {setting.note}")
        elif setting.action == "warned":
            warn_once((str(path), name), f"{path}: {shown}: {setting.note}")
    if unknown:
        names = ", ".join(sorted(unknown))
        warn_once((str(path), names), f"{path}: unknown settings, which are not read: {names}.")


def _flatten(
    settings: Mapping[str, Any], table: Mapping[str, Setting]
) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and any(known.startswith(f"{name}/") for known in table):
            yield from ((f"{name}/{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
