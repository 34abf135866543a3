"""Open a model directory in `transformers` and write its outputs, labels and token ids as JSON.

    PYTHON tests/transformers_peer.py DIRECTORY CLASS LINES OUTPUT [SAVED [FIELDS]] [, ...]

PYTHON is the interpreter of an environment with torch and `transformers`. The model is saved to
SAVED, if that is given. FIELDS, a JSON object of configuration fields, makes a random model instead
of that in DIRECTORY. A comma precedes the arguments of the next model.
"""

import itertools
import json
import sys

import torch
import transformers


def main() -> None:
    for is_comma, arguments in itertools.groupby(sys.argv[1:], ",".__eq__):
        if not is_comma:
            describe(*arguments)


def describe(
    directory: str, kind: str, lines: str, output: str, saved: str = "", fields: str = ""
) -> None:
    if fields:
        torch.manual_seed(0)
        config = transformers.BertConfig(**json.loads(fields))
        if "EncoderDecoder" in kind:
            make = transformers.EncoderDecoderConfig.from_encoder_decoder_configs
            config = make(config, transformers.BertConfig(**json.loads(fields)))
        model, info = getattr(transformers, kind)(config), {}
    else:
        load = getattr(transformers, kind).from_pretrained
        model, info = load(directory, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with open(lines, encoding="utf-8") as file:
        texts = file.read().split("\n")
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    inputs = torch.tensor([[tokenizer.cls_token_id, *ids[0][:20], tokenizer.sep_token_id]])
    if "MultipleChoice" in kind:  # the only choice of one example
        inputs = inputs[None]
    others = {"token_type_ids": torch.zeros_like(inputs)}
    if model.config.is_encoder_decoder:  # a target of the same tokens
        others = {"decoder_input_ids": inputs, "use_cache": False}
    with torch.no_grad():
        out = model.eval()(input_ids=inputs, **others)
    description = {
        "version": transformers.__version__,
        "class": type(model).__name__,
        "missing": sorted(info.get("missing_keys", ())),
        "unexpected": sorted(info.get("unexpected_keys", ())),
        "problem_type": model.config.problem_type,
        "labels": [model.config.id2label[i] for i in range(len(model.config.id2label))],
        "label2id": model.config.label2id,
        "ids": ids,
        "outputs": {name: value.numpy().tolist() for name, value in out.items()},
    }
    if saved:
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
    with open(output, "w") as file:
        json.dump(description, file)


if __name__ == "__main__":
    main()
