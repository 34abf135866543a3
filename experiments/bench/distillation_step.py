"""Cost of a distillation step, compared with the teacher's forward pass and the student's step.

    python -m experiments.bench.distillation_step [--topology v5e:2x2] [--losses relations]

Full sequences of random tokens in float32, with dropout 0.1 and AdamW. The teacher learns nothing,
so a step should cost its prediction more than the step without it, and nothing else. All programs
of a task take turns in one process. Figures are processor time, the minimum over the rounds, which
other programs of the machine disturb least. With --topology they are cycles that the TPU compiler
estimates, in bfloat16, as in `bertjax preflight`. Operations are those that XLA counts in the
compiled programs, which nothing disturbs.

In sequence classification the head reads one position, and the prediction and the step without
distillation compute the last block there only. A loss of its hidden states needs it at all
positions of both models. Of 6 and 3 blocks, with two passes backward for one forward, this alone
is a ratio of about (6 + 9) / (5.25 + 6.75) = 1.25. In token classification all programs compute
all positions, so the ratio is that of the losses.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.bench import harness

FIRST_TOKEN_ID, NUM_LABELS = 1000, 3
TASKS = {"token_classification": "token_labels", "sequence_classification": "labels"}
LOSSES: dict[str, dict[str, Any]] = {  # beside those of labels
    "logits": {},
    "hidden_states": {"hidden_weight": 1.0},
    "relations": {"relations_weight": 1.0},
}
TEACHER, STUDENT, DISTILLATION = "teacher's prediction", "student's step", "distillation step"


def make_config(args: argparse.Namespace, task: str, layers: int, num_devices: int) -> Any:
    """Return the resolved configuration of a run with a model of this many layers."""
    fields = {
        **dict.fromkeys(("steps", "eval_every", "checkpoint_every"), 1000),
        "batch_size": args.batch_size * num_devices,
        "max_seq_length": args.max_seq_length,
        "packing": False,
        "model.num_hidden_layers": layers,
        "model.hidden_size": args.hidden_size,
        "model.num_attention_heads": args.hidden_size // 32,
        "model.vocab_size": 30522,
        "model.num_labels": NUM_LABELS,
        "model.dtype": "bfloat16" if args.topology else "float32",
    }
    return harness.load(task, fields).resolve(None)


def make_batch(shapes: Mapping[str, Any], vocab_size: int, target: str) -> dict[str, np.ndarray]:
    """Return full sequences of random tokens, one labeled example each, in these shapes.

    Args:
      shapes: shapes of the batch's arrays by name.
      vocab_size: upper bound of token ids.
      target: name of the labels.
    """
    draw = np.random.Generator(np.random.Philox(key=0)).integers
    batch = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
    tokens = batch["input_ids"].shape
    batch["input_ids"][:] = draw(FIRST_TOKEN_ID, vocab_size, tokens)
    batch["example_ids"][:] = 1
    batch["position_ids"][:] = np.arange(tokens[1])
    batch[target][:] = draw(0, NUM_LABELS, batch[target].shape)
    batch[f"{target}_weights"][:] = 1
    return batch


class Programs:
    """The compiled programs of one task.

    Args:
      args: the arguments.
      task: one of `TASKS`.
      devices: devices to compile for.
    """

    def __init__(self, args: argparse.Namespace, task: str, devices: Any) -> None:
        import jax

        from bertjax.config.distill_config import DistillConfig
        from bertjax.steps.distillation import DistillationObjective
        from bertjax.steps.step_functions import StepFunctions
        from bertjax.tasks import registry

        teacher = make_config(args, task, args.teacher_layers, len(devices))
        student = make_config(args, task, args.student_layers, len(devices))
        objective = registry.make_objective(teacher)
        shapes = objective.batch_shapes(teacher.batch_size)
        functions = {TEACHER: StepFunctions(teacher, objective, devices)}
        self.compiled = {TEACHER: functions[TEACHER].compile_predict_step(shapes)}
        functions[STUDENT] = StepFunctions(student, registry.make_objective(student), devices)
        for name in args.losses:
            distill = DistillConfig(teacher=TEACHER, temperature=2.0, **LOSSES[name])
            config = dataclasses.replace(student, distill=distill)
            distillation = DistillationObjective(
                registry.make_objective(config),
                config,
                teacher.model,
                objective.heads,
                lambda: objective.init_params(jax.random.key(0)),
            )
            functions[f"{DISTILLATION}, {name}"] = StepFunctions(config, distillation, devices)
        for name, step_functions in functions.items():
            if name != TEACHER:
                self.compiled[name] = step_functions.compile_train_step()
        self._functions = functions
        self._batch_args = shapes, teacher.model.vocab_size, TASKS[task]

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return functions that run each program once and wait for its end."""
        import jax

        batch = make_batch(*self._batch_args)
        return {name: self._call(name, batch, jax) for name in self.compiled}

    def _call(self, name: str, batch: Mapping[str, np.ndarray], jax: Any) -> Callable[[], object]:
        functions, compiled = self._functions[name], self.compiled[name]
        on_device = jax.device_put(dict(batch), functions.batch_sharding)
        state = functions.init()
        if name == TEACHER:
            params = functions.predict_layout.place(state.params)
            constants = functions.constants()
            return lambda: jax.block_until_ready(compiled(params, on_device, constants))
        constants = functions.train_constants()

        def step() -> object:
            nonlocal state
            state, sums = compiled(state, on_device, constants)
            return jax.block_until_ready(sums)

        return step


def measure_seconds(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the processor time of each call, the minimum over the rounds, in which all run."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            seconds[name].append(time.process_time() - began)
    return {name: min(values[1:]) for name, values in seconds.items()}  # the first one warms up


def estimate_cycles(programs: Programs, topology: Any) -> dict[str, float]:
    """Return the cycles of each program that the TPU compiler estimates."""
    from bertjax.preflight.estimates import estimate_tpu
    from bertjax.preflight.hlo import instruction_costs, parse_hlo

    cycles = {}
    for name, compiled in programs.compiled.items():
        costs = instruction_costs(parse_hlo(compiled.as_text() or ""))
        estimate = estimate_tpu(topology, topology.devices(), costs, 0.0, 0.0)
        cycles[name] = estimate["estimated_cycles"]
    return cycles


def format_lines(
    task: str, costs: Mapping[str, float], unit: str, operations: Mapping[str, float]
) -> list[str]:
    """Return a title and a line for each program.

    Distillation steps have their ratios to the teacher's prediction and the student's step.
    """
    lines = [f"{task:40}{unit:>16}{'ratio':>8}{'GFLOP':>10}{'ratio':>8}"]
    for name in costs:
        line = f"{name:40}"
        for values, width, scale in ((costs, 16, 1), (operations, 10, 1e9)):
            ratio = values[name] / (values[TEACHER] + values[STUDENT])
            column = f"{ratio:.2f}" if name.startswith(DISTILLATION) else ""
            line += f"{values[name] / scale:{width}.4g}{column:>8}"
        lines.append(line.rstrip())
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--topology", default="", help="such as v5e:2x2, with the sequences on each chip (this CPU)"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=[*LOSSES])
    parser.add_argument("--teacher-layers", type=int, default=6)
    parser.add_argument("--student-layers", type=int, default=3)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--max-seq-length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", type=int, default=1)
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    topology = None
    if args.topology:
        from bertjax.cli import jax_setup
        from bertjax.preflight.topology import Topology

        jax_setup.choose_platforms(compiles_only=True)
        topology = Topology(args.topology)
    else:
        harness.set_up_process()
    print(
        f"Teacher {args.teacher_layers} x {args.hidden_size}, student {args.student_layers} x "
        f"{args.hidden_size}, {args.batch_size} sequences of {args.max_seq_length} tokens"
    )
    for task in args.tasks:
        if topology:
            programs = Programs(args, task, topology.devices())
            costs, unit = estimate_cycles(programs, topology), "cycles"
        else:
            import jax

            programs = Programs(args, task, jax.devices()[:1])
            costs, unit = measure_seconds(programs.calls(), args.rounds), "CPU seconds"
        operations = {
            name: (compiled.cost_analysis() or {})["flops"]
            for name, compiled in programs.compiled.items()
        }
        lines = format_lines(task, costs, unit, operations)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
