"""What `transformers` makes of an exported directory; runs in an environment of its own.

PYTHON tests/transformers_peer.py DIRECTORY CLASS LINES OUTPUT [THEIRS [FIELDS]] [, DIRECTORY ...]

It writes the model as its own to THEIRS, if that is given: with FIELDS, a JSON object, a random one
of their configuration, with the tokenizer of DIRECTORY. A comma begins another model.
"""

import itertools
import json
import sys

import torch
import transformers


def main() -> None:
    for separates, given in itertools.groupby(sys.argv[1:], ",".__eq__):
        if not separates:
            describe(*given)


def describe(directory: str, kind: str, lines: str, output: str, *theirs: str) -> None:
    if len(theirs) > 1:
        torch.manual_seed(0)
        config = transformers.BertConfig(**json.loads(theirs[1]))
        model, info = getattr(transformers, kind)(config), {}
    else:
        load = getattr(transformers, kind).from_pretrained
        model, info = load(directory, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with open(lines, encoding="utf-8") as file:
        texts = file.read().split("\n")
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    inputs = torch.tensor([[tokenizer.cls_token_id, *ids[0][:20], tokenizer.sep_token_id]])
    if "MultipleChoice" in kind:  # as its first and only question
        inputs = inputs[None]
    with torch.no_grad():
        out = model.eval()(input_ids=inputs, token_type_ids=torch.zeros_like(inputs))
    found = {
        "version": transformers.__version__,
        "class": type(model).__name__,
        "missing": sorted(info.get("missing_keys", ())),
        "unexpected": sorted(info.get("unexpected_keys", ())),
        "problem_type": model.config.problem_type,
        "labels": [model.config.id2label[i] for i in range(len(model.config.id2label))],
        "numbers": model.config.label2id,
        "ids": ids,
        "outputs": {name: value.numpy().tolist() for name, value in out.items()},
    }
    if theirs:
        model.save_pretrained(theirs[0])
        tokenizer.save_pretrained(theirs[0])
    with open(output, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
