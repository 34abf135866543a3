"""The command of synthetic question answering as a whole, killed and resumed."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import toy_squad
from conftest import LONG, process_environment
from random_models import draw_model

from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from experiments.synthetic_qa import questions
from experiments.synthetic_qa.options import STAGE_NAMES

ROOT = pathlib.Path(__file__).parent.parent


def passage(letters: str, number: int) -> tuple[str, list[dict]]:
    """Return two sentences of twenty words, and questions about the first and about neither."""
    homes = [(toy_squad.NAMES[(number + i) % 4], toy_squad.PLACES[(number // 4 + i) % 4])
             for i in range(2)]  # fmt: skip
    text = " ".join(
        f"In {' '.join(letters[:15])} {name.title()} lives in {place.title()}."
        for name, place in homes
    )
    name, place = homes[0]
    answer = {"text": place.title(), "answer_start": text.index(place.title())}
    qas = [
        {
            "id": f"{number}-{asked}",
            "question": f"Where lives {asked}?",
            "answers": answers,
            "is_impossible": not answers,
        }
        for asked, answers in ((name, [answer]), ("x", []))
    ]
    return text, qas


def write_toys(folder: pathlib.Path) -> list[str]:
    """Write a model, questions and text; return the command for them without its workdir."""
    for split, numbers in (("train", range(32)), ("dev", range(12))):
        paragraphs = [dict(zip(("context", "qas"), passage("abcdefghijklmnopqrs", i), strict=True))
                      for i in numbers]  # fmt: skip
        # Articles, for two halves of the eval split.
        data = [{"title": str(i), "paragraphs": paragraphs[i::4]} for i in range(4)]
        content = {"version": "v2.0", "data": data}
        (folder / f"{split}-v2.0.json").write_text(json.dumps(content))
    lines = [passage("srqponmlkjihgfedcba", i)[0] for i in range(18)]
    documents = ["\n".join(lines[i : i + 3]) for i in range(0, 18, 3)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    config = BertConfig(len(toy_squad.TOKENIZER.tokens), 2, 64, 2, max_position_embeddings=192)
    (folder / "model").mkdir()
    model = draw_model(config, toy_squad.TOKENIZER, "pooler", "mlm")
    huggingface.write(model, folder / "model")
    command = ["--encoder", folder / "model", "--squad", folder, "--text", folder / "text.txt"]
    command += ["--sentence-pairs", 60, "--paragraphs", 12, "--block-size", 5, "--num-answers", 2]
    command += ["--null-threshold", "inf", "--negatives-per-question", 1]
    command += ["--readers", "real", "synthetic"]
    shared = {"steps": 20, "batch_size": 8, "max_seq_length": 128, "model.dtype": "float32"}
    shared |= {"optimizer.learning_rate": 2e-3, "checkpoint_every": 5}
    shared |= {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}
    fields = dict.fromkeys(("decoder", "questions", "answers", "reader", "first_pass"), shared)
    windows = {"data.doc_stride": 40}
    fields |= {name: shared | windows for name in ("answers", "reader", "first_pass")}
    for name in ("questions", "reader"):
        fields[name] = fields[name] | {"steps": 200, "checkpoint_every": 50}
    for model_name, values in fields.items():
        for name, value in values.items():
            command += ["--set", f"{model_name}.{name}={value}"]
    return [str(word) for word in command]


def start(command: list[str], workdir: pathlib.Path) -> subprocess.Popen:
    program = [sys.executable, "-m", "experiments.synthetic_qa", "--workdir", str(workdir)]
    return subprocess.Popen(
        [*program, *command], env=process_environment(), start_new_session=True, text=True,
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run_to_end(command: list[str], workdir: pathlib.Path) -> str:
    process = start(command, workdir)
    output, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors
    return output


def contents(workdir: pathlib.Path) -> dict[str, str]:
    """Return the files of the stages but those of runs, and the parameters' digests."""
    text = {path: path.read_text() for path in workdir.rglob("*.json*") if "run" not in path.parts}
    names = {str(path.relative_to(workdir)): text for path, text in text.items()}
    return {
        name: text.replace(str(workdir), "")
        for name, text in names.items()
        if re.search(r"(pairs|spans|questions|candidates|7-negatives|data-\d|scores-\d)", name)
        and "commands" not in name and "/pass-" not in name
    }  # fmt: skip


@pytest.mark.minutes
def test_killed_command_resumes_to_the_same_bytes(tmp_path) -> None:
    pytest.importorskip("textblob", reason="bertjax[synthetic] is not installed")
    command = write_toys(tmp_path)
    output = run_to_end(command, tmp_path / "whole")
    assert output.index("1. decoder") < output.index("$ bertjax train")
    expected = contents(tmp_path / "whole")
    fates = [json.loads(line)["fate"] for name, text in expected.items()
             if "candidates" in name for line in text.splitlines()]  # fmt: skip
    assert len(fates) == 24 and questions.KEPT in fates
    assert {name.split("/")[0] for name in expected} == {
        f"{number}-{name}" for number, name in enumerate(STAGE_NAMES, 1) if name != "answers"
    }
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "Questions that were kept" in page and "Unanswerable questions" in page

    commands = output.count("$ bertjax ")
    chosen = random.Random(os.environ.get("BERTJAX_SEED", 0))
    for number in sorted(chosen.sample(range(1, commands), 3)):
        process = start(command, tmp_path / "killed")
        seen = 0
        assert process.stdout is not None
        for line in process.stdout:
            seen += line.startswith("$ bertjax ")
            # Commands that have ended are not printed again: the count is of this attempt.
            if seen == max(1, number // 3):
                break
        time.sleep(chosen.uniform(0, 8))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    run_to_end(command, tmp_path / "killed")
    assert contents(tmp_path / "killed") == expected
