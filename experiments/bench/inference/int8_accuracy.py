"""Scores of a model, and of its exports to ONNX with float32 and with int8 weights.

    python -m experiments.bench.inference.int8_accuracy --checkpoint DIR \
      [--config NAME[:OPTIONS]] [--config.FIELD=VALUE ...]

The eval sets are those of the configuration, which is that of the checkpoint's run if none is
given. Needs the extra [onnx].
"""

import argparse
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

from bertjax.cli.config_args import parse_overrides
from experiments.bench import harness


def measure_scores(
    spec: str | None, overrides: Mapping[str, str], checkpoint: str
) -> dict[str, dict[str, float]]:
    """Return the scores of each program on the only eval set of the task."""
    from bertjax.formats.detection import ONNX_FILE
    from bertjax.inference.export.onnx_model import write_onnx
    from bertjax.inference.export.quantization import quantize
    from bertjax.inference.onnx_directory import OnnxModel
    from bertjax.tasks import registry
    from bertjax.training.evaluator import evaluate
    from bertjax.workdir.run_config import make_run_config

    config = make_run_config(spec, overrides, checkpoint=checkpoint)
    scores = {harness.BERTJAX: dict(evaluate(config, checkpoint).scores)}
    task = registry.find_task(config.task)(config)
    (eval_set,) = task.eval_sets()
    with tempfile.TemporaryDirectory() as name:
        exported, quantized = pathlib.Path(name, "float32"), pathlib.Path(name, "int8")
        write_onnx(checkpoint, exported)
        shutil.copytree(exported, quantized)
        (quantized / ONNX_FILE).write_bytes(quantize((exported / ONNX_FILE).read_bytes()))
        for directory in (exported, quantized):
            outputs = OnnxModel(directory).run_function(task.objective)(eval_set.batches())
            evaluation = eval_set.evaluation({}, list(outputs))
            scores[f"ONNX, {directory.name}"] = dict(evaluation.scores)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--config", metavar="NAME[:OPTIONS]")
    args, overrides = parser.parse_known_args()
    harness.set_up_process()
    results = measure_scores(args.config, parse_overrides(overrides), args.checkpoint)
    names = [name for name in results[harness.BERTJAX] if all(name in s for s in results.values())]
    print(f"{'':32}" + "".join(f"{program:>16}" for program in results))
    for name in names:
        print(f"{name:32}" + "".join(f"{scores[name]:16.4f}" for scores in results.values()))


if __name__ == "__main__":
    main()
