"""Record the names of the arguments of Trainer and of google-research/bert.

    PYTHON tests/goldens/make_argument_names.py VERSION SOURCE BERT

SOURCE is the training_args.py of that version of transformers, BERT a clone.
"""

import ast
import json
import pathlib
import re
import sys

PATH = pathlib.Path(__file__).with_name("argument_names.json")
SCRIPTS = ("create_pretraining_data", "run_pretraining", "run_classifier", "run_squad")


def main() -> None:
    version, source, clone = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
    (arguments,) = (
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"
    )
    fields = [node.target for node in arguments.body if isinstance(node, ast.AnnAssign)]
    names = {"transformers": version}
    names["TrainingArguments"] = [field.id for field in fields if isinstance(field, ast.Name)]
    pattern = r'DEFINE_\w+\(\s*"(\w+)"'
    names |= {s: re.findall(pattern, (clone / f"{s}.py").read_text()) for s in SCRIPTS}
    PATH.write_text(json.dumps(names, indent=1) + "\n")


if __name__ == "__main__":
    main()
