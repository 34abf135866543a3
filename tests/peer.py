"""What `transformers` makes of an exported directory; runs in an environment of its own.

PYTHON tests/peer.py DIRECTORY CLASS LINES OUTPUT
"""

import json
import sys

import torch
import transformers


def main() -> None:
    _, directory, kind, lines, output = sys.argv
    model, info = getattr(transformers, kind).from_pretrained(directory, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with open(lines, encoding="utf-8") as file:
        texts = file.read().split("\n")
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    inputs = torch.tensor([[tokenizer.cls_token_id, *ids[0][:20], tokenizer.sep_token_id]])
    with torch.no_grad():
        out = model.eval()(input_ids=inputs, token_type_ids=torch.zeros_like(inputs))
    found = {
        "version": transformers.__version__,
        "class": type(model).__name__,
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "ids": ids,
        "outputs": {name: value.numpy().tolist() for name, value in out.items()},
    }
    with open(output, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
