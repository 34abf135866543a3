"""Make korquad_scores.json: what KorQuAD's official script computes.

    BERTJAX_DATA=... python tests/goldens/make_korquad_scores.py evaluate-v1.0.py

The argument is the script of KorQuAD 1.0. It compares characters of any language, so that other
sets in SQuAD's layout serve as data.
"""

import json
import os
import pathlib
import runpy
import sys

from make_cmrc_scores import VARIANTS, predictions, read

FILES = ("xquad.en.json", "cmrc2018_trial.json")


def main() -> None:
    """Write the file."""
    evaluate = runpy.run_path(sys.argv[1])["evaluate"]
    folder = pathlib.Path(os.environ["BERTJAX_DATA"]) / "xquad"
    scores = {}
    for file in FILES:
        articles = json.loads((folder / file).read_text("utf-8"))["data"]
        items = read(file, folder)
        for variant in VARIANTS:
            official = evaluate(articles, predictions(items, variant))
            scores[f"{file} {variant}"] = {
                "exact": official["exact_match"],
                "f1": official["f1"],
                "total": len(items),
            }
    path = pathlib.Path(__file__).with_name("korquad_scores.json")
    path.write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
