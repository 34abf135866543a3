"""Distillation: the objective with a teacher, and runs that learn from one."""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_squad
import toy_tasks
from model_files import write_hf
from random_models import assert_same_params, draw_model

from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.checkpointing.parameters import read_param_shapes
from bertjax.config.config import Config, MeshConfig
from bertjax.config.distill_config import DistillConfig
from bertjax.config.optimizer_config import OptimizerSection
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert_config import BertConfig
from bertjax.steps.distillation import DistillationObjective
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.training.initialization import open_recorded
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.answer_spans import ENDS_WORD, STARTS_WORD

TINY = BertConfig(
    100, num_hidden_layers=2, hidden_size=32, num_attention_heads=2, num_labels=3, dtype="float32",
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
WIDE = dataclasses.replace(TINY, hidden_size=64, num_attention_heads=4, num_hidden_layers=3)
ALL = {"labels_weight": 0.0, "logits_weight": 1.0, "hidden_weight": 1.0, "relations_weight": 1.0}
TASKS = [task for task in registry.TASKS if task != "embeddings"]  # which has no logits


def make_objective(
    task: str, teacher: BertConfig = TINY, model: BertConfig = TINY, mesh=(8, 1, 1), **distill
) -> DistillationObjective:
    """Return an objective whose teacher has the random parameters of another seed."""
    data = {**registry.data_fields()[task]}
    if task == "generation":
        data["max_target_length"] = 8
        model, teacher = (dataclasses.replace(m, decoder="prefix") for m in (model, teacher))
    config = Config(
        task, model=model, batch_size=8, max_seq_length=32, steps=10, mesh=MeshConfig(*mesh),
        data=data, optimizer=OptimizerSection(warmup=0),
        distill=DistillConfig("teacher", **ALL | distill),
    ).resolve()  # fmt: skip
    base = registry.make_objective(config, 8)
    return DistillationObjective(
        base, config, teacher, base.heads,
        lambda: registry.make_objective(dataclasses.replace(config, model=teacher)).init_params(
            jax.random.key(7)
        ),
    )  # fmt: skip


def draw_batch(objective: DistillationObjective) -> dict[str, jax.Array]:
    """Return a batch of sequences of two examples and padding, with all weights 1."""
    batch = {n: jnp.ones(x.shape, x.dtype) for n, x in objective.batch_shapes(8).items()}
    ids = np.random.default_rng(0).integers(5, 100, (8, 32))
    examples = np.repeat([1, 2, 0], [16, 12, 4])
    positions = np.arange(32) % 16
    for name, values in (("example_ids", examples), ("position_ids", positions)):
        batch[name] = jnp.broadcast_to(jnp.asarray(values, jnp.int32), (8, 32))
    if "span_boundaries" in batch:  # each token is a word
        batch["span_boundaries"] *= STARTS_WORD | ENDS_WORD
    return batch | {"input_ids": jnp.asarray(ids * (examples > 0), jnp.int32)}


def losses_and_gradient(objective, params, constants, progress=0.0):
    batch = draw_batch(objective)

    def loss(params, constants):
        sums = objective.train_sums(params, batch, None, constants, jnp.float32(progress))
        losses = {n: value / weight for n, (value, weight) in sums.items() if n.endswith("_loss")}
        return sum(losses.values()), losses

    (_, losses), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(
        params, constants
    )
    return losses, gradients


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_student_equal_to_its_teacher_has_no_loss_and_no_gradient(task: str) -> None:
    objective = make_objective(task)
    constants = objective.train_constants()
    losses, (gradient, _) = losses_and_gradient(objective, constants["teacher"], constants)
    assert {"hidden_loss", "query_relation_loss", "value_relation_loss"} < losses.keys()
    assert {f"{head}_logits_loss" for head in objective.heads} < losses.keys()
    np.testing.assert_allclose([*losses.values()], 0, atol=1e-6)
    for name, leaf in named_leaves(gradient):
        np.testing.assert_allclose(leaf, 0, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_no_gradient_reaches_the_teacher() -> None:
    objective = make_objective("pretraining", teacher=WIDE)
    params = objective.init_params(jax.random.key(0))
    losses, (gradient, of_constants) = losses_and_gradient(
        objective, params, objective.train_constants()
    )
    assert all(value > 0 for name, value in losses.items() if name not in ("mlm_loss", "nsp_loss"))
    assert all(not leaf.any() for _, leaf in named_leaves(of_constants))
    assert gradient["distill"]["projection"].any()


@pytest.mark.slow
def test_weights_and_temperature_change_linearly_over_the_run() -> None:
    objective = make_objective("pretraining", labels_weight="1..0.5", hidden_weight=0.0,
                               relations_weight=0.0)  # fmt: skip
    params, constants = objective.init_params(jax.random.key(0)), objective.train_constants()
    first, half, last = (
        losses_and_gradient(objective, params, constants, progress)[0]["mlm_loss"]
        for progress in (0.0, 0.5, 1.0)
    )
    np.testing.assert_allclose([half / first, last / first], [0.75, 0.5], rtol=1e-6)


@pytest.mark.minutes
@pytest.mark.parametrize("mesh", [(2, 2, 2), (1, 8, 1)], ids=str)
def test_losses_do_not_depend_on_mesh_or_accumulation(mesh: tuple) -> None:
    metrics = []
    for case, parts in (((8, 1, 1), 1), (mesh, 1), (mesh, 2)):
        objective = make_objective("pretraining", teacher=WIDE, mesh=case)
        config = dataclasses.replace(objective.config, gradient_accumulation_steps=parts)
        functions = StepFunctions(config, objective)
        state, constants = functions.init(), functions.train_constants()
        step = functions.compile_train_step()
        batch = jax.device_put(draw_batch(objective), functions.batch_sharding)
        steps = []
        for _ in range(3):
            state, sums = step(state, batch, constants)
            steps.append({n: float(value) / max(weight, 1) for n, (value, weight) in sums.items()})
        metrics.append(steps)
    # A KL of nearly equal distributions is the small difference of large terms: its error is that
    # of the terms. Updates by Adam enlarge it, as it divides by the gradient's size.
    for other in metrics[1:]:
        for step, atol in enumerate((2e-7, 2e-6, 2e-6)):
            for name, value in metrics[0][step].items():
                np.testing.assert_allclose(
                    other[step][name], value, rtol=1e-5, atol=atol, err_msg=f"{name}, step {step}"
                )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0}, r"distill\.temperature=0: not positive\. Use more than 0"),
        ({"temperature": "2.."}, "not a number from 0"),
        ({"labels_weight": -1}, "distill.labels_weight=-1: not a number from 0"),
        ({"logits_weight": float("nan")}, "not a number from 0"),
        ({"logits_weight": 0}, "no loss reads the teacher"),
        ({"hidden_loss": "l1"}, "distill.hidden_loss='l1': unknown. Use mse or cosine"),
        ({"teacher_dtype": "int8"}, "distill.teacher_dtype='int8': unknown"),
        ({"relations": "query+output"}, "not some of query, key and value"),
        ({"relation_heads": -1}, "negative. Use 0 or more"),
        ({"teacher": "", "temperature": 2}, "distill.temperature=2: needs a teacher"),
        ({"layer_map": "1:2"}, "distill.layer_map='1:2': distill.hidden_weight=0 does not read it"),
        ({"relation_layer": 2}, "distill.relation_layer=2: distill.relations_weight=0 does not"),
        (
            {"temperature": 2, "logits_weight": 0, "hidden_weight": 1},
            "distill.temperature=2: distill.logits_weight=0 does not read it",
        ),
    ],
)
def test_distill_config_rejects(fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DistillConfig(**{"teacher": "t", **fields})


@pytest.mark.parametrize(
    ("fields", "teacher", "message"),
    [
        ({"layer_map": "1:4"}, WIDE, r"the teacher has 3 layers, not 4\. Use 0 \(embeddings\)"),
        ({"layer_map": "3:3"}, WIDE, "the student has 2 layers, not 3"),
        ({"layer_map": "1:1,1:2"}, WIDE, "names a layer of the student twice"),
        ({"layer_map": "last"}, WIDE, "not STUDENT:TEACHER"),
        ({"relation_layer": 4}, WIDE, "distill.relation_layer=4: the teacher has 3 layers"),
        ({"relation_heads": 5}, WIDE, "distill.relation_heads=5: does not divide the hidden size"),
        ({}, dataclasses.replace(TINY, vocab_size=90), "model.vocab_size=100: the teacher .* 90"),
        ({}, dataclasses.replace(TINY, max_position_embeddings=16), "has 16 positions"),
        ({}, dataclasses.replace(TINY, bilstm=8), "the teacher has a layer mix or a BiLSTM"),
        ({}, dataclasses.replace(TINY, direction="left_to_right"), "the teacher's attention is"),
        ({}, dataclasses.replace(TINY, type_vocab_size=1), "two segments, the sentences of a pair"),
    ],
)
def test_objective_rejects_losses_that_do_not_fit(fields, teacher, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_objective("pretraining", teacher=teacher, **fields)


@pytest.mark.parametrize(
    ("student", "teacher", "pairs"),
    [
        (3, 6, [(0, 0), (1, 2), (2, 4), (3, 6)]),
        (4, 12, [(0, 0), (1, 3), (2, 6), (3, 9), (4, 12)]),
        (2, 3, [(0, 0), (1, 1), (2, 3)]),
    ],
)
def test_layers_are_compared_in_even_distances(student, teacher, pairs) -> None:
    assert DistillConfig("t").layer_pairs(student, teacher) == pairs


# Runs.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_tasks.write_data(path)
    return path


@pytest.fixture(scope="module")
def teacher(folder, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A classifier of two layers with random parameters, as a directory of Hugging Face."""
    config = toy_tasks.configuration("single_label", folder, model__num_hidden_layers=2)
    model = draw_model(
        dataclasses.replace(config.model, num_labels=3), toy_tasks.TOKENIZER,
        "pooler", "sequence_classification",
    )  # fmt: skip
    path = tmp_path_factory.mktemp("teacher") / "hf"
    return write_hf(dataclasses.replace(model, labels=("glad", "odd, or so", "sad")), path)


def configure(folder: pathlib.Path, teacher: object, **overrides: object) -> Config:
    fields = {"model__hidden_size": 32, "model__num_attention_heads": 2, "steps": 8,
              "log_every": 2, "checkpoint_every": 4, "eval_every": 8, "distill__teacher": teacher,
              "distill__hidden_weight": 1, "distill__relations_weight": "0..1",
              "distill__temperature": "4..1", "mesh__data": 8,
              "optimizer__warmup": 2}  # fmt: skip
    return toy_tasks.configuration("single_label", folder, **fields | overrides)


def train_metrics(workdir: pathlib.Path) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    names = ("loss", "hidden_loss", "key_relation_loss", "sequence_classification_logits_loss")
    return [{name: line.get(name) for name in ("step", *names)} for line in lines]


@pytest.mark.slow
def test_run_resumes_exactly_and_exports_the_student_alone(folder, teacher, tmp_path) -> None:
    copy = shutil.copytree(teacher, tmp_path / "teacher")
    config = configure(folder, copy)
    make_trainer(config, tmp_path / "whole").train()
    part = tmp_path / "part"
    trainer = make_trainer(config, part)
    trainer._is_last = lambda step: step >= 4  # type: ignore[method-assign]
    trainer.train()
    make_trainer(config, part).train()
    assert train_metrics(part)[-3:] == train_metrics(tmp_path / "whole")[-3:]
    assert_same_params(read_model(part).params, read_model(tmp_path / "whole").params)
    assert "distill" not in read_param_shapes(find_checkpoint(part))
    convert(part, tmp_path / "hf", "bertjax", "hf")
    assert read_model(tmp_path / "hf").params.keys() == read_model(part).params.keys()

    model = read_model(copy)
    write_hf(dataclasses.replace(model, params=jax.tree.map(lambda x: x + 1, model.params)), copy)
    with pytest.raises(InputError, match=r"distill\.teacher=.* Use another --workdir"):
        make_trainer(config, part)


@pytest.mark.slow
def test_run_rejects_teachers_that_do_not_fit(folder, teacher, tmp_path) -> None:
    other = dataclasses.replace(read_model(teacher), labels=("a", "b", "c"))
    write_hf(other, tmp_path / "labels")
    with pytest.raises(InputError, match="has the labels a, b, c, the data glad, odd, or so, sad"):
        make_trainer(configure(folder, tmp_path / "labels"), tmp_path / "run")
    encoder = draw_model(other.config, other.tokenizer)
    write_hf(encoder, tmp_path / "encoder")
    with pytest.raises(InputError, match=r"has the labels none|has no sequence classification"):
        make_trainer(configure(folder, tmp_path / "encoder"), tmp_path / "run")
    with pytest.raises(InputError, match="nosuch"):
        make_trainer(configure(folder, tmp_path / "nosuch"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_init_layers_takes_blocks_of_the_initial_model(folder, teacher, tmp_path) -> None:
    config = toy_tasks.configuration(
        "single_label", folder, teacher, init_layers=1, steps=2, mesh__data=8,
        optimizer__learning_rate=1e-12, optimizer__warmup=0,
    )  # fmt: skip
    assert config.model.num_hidden_layers == 1
    make_trainer(config, tmp_path / "run").train()
    again = open_recorded("init", config.init, tmp_path / "run")  # the record is of the whole model
    assert again.bert_config.num_hidden_layers == 2
    source, trained = read_model(teacher).params, read_model(tmp_path / "run").params
    for name, leaf in named_leaves(trained["encoder"]["blocks"]):
        expected = dict(named_leaves(source["encoder"]["blocks"]))[name]
        np.testing.assert_allclose(leaf[0], expected[1], atol=1e-9, err_msg=name)
    for layers, message in ((2, "has 2 layers, no 2"), ("0,0", "twice"), ("a", "not numbers")):
        with pytest.raises(InputError, match=message):
            bad = toy_tasks.configuration("single_label", folder, teacher, init_layers=layers)
            make_trainer(bad, tmp_path / "bad")


def test_step_flops_count_the_whole_teacher_of_a_student_with_some_of_its_layers(
    folder, teacher
) -> None:
    config = toy_tasks.configuration(
        "single_label", folder, teacher, init_layers=1, distill__teacher=teacher, mesh__data=8
    )
    task = registry.find_task(config.task)(config)
    whole = toy_tasks.configuration("single_label", folder, teacher, mesh__data=8)
    expected = registry.find_task(whole.task)(whole).objective.forward_flops(config.batch_size)
    combined = registry.make_train_objective(config, task.objective)
    assert combined.step_flops() - task.objective.step_flops() == expected


@pytest.mark.slow
def test_unlabeled_texts_teach_without_labels(folder, teacher, tmp_path) -> None:
    (tmp_path / "texts.csv").write_text("text\n" + "ba do\n" * 100)
    config = configure(folder, teacher, distill__unlabeled=tmp_path / "texts.csv", steps=4)
    task = registry.find_task(config.task)(config)
    labeled = task.examples.targets["labels"].weights
    assert (len(labeled), labeled.sum()) == (400, 300)
    make_trainer(config, tmp_path / "run").train()
    (tmp_path / "other.csv").write_text("title\nba\n")
    bad = dataclasses.replace(config.distill, unlabeled=str(tmp_path / "other.csv"))
    with pytest.raises(InputError, match="no column 'text'"):
        registry.find_task(config.task)(dataclasses.replace(config, distill=bad)).examples  # noqa: B018


UNLABELED = {
    "token_classification": [
        ("a.txt", "ba me, ki\n\nno\n"),
        ("a.jsonl", '{"words": ["ba", "me", ",", "ki"]}\n{"text": "no"}\n'),
        ("a.csv", 'text\n"ba me, ki"\nno\n'),
        ("a.conll", "ba\nme\n,\nki\n\nno\n"),
    ],
    "multiple_choice": [("a.jsonl", '{"context": "ba", "choices": ["me", "ki", "no"]}\n' * 2)],
    "question_answering": [
        ("a.json", json.dumps(toy_squad.questions(1, 2))),
        ("a.jsonl", '{"question": "Where lives bob?", "context": "Bob lives in Oslo."}\n' * 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [(kind, *case) for kind, cases in UNLABELED.items() for case in cases],
)
def test_unlabeled_examples_have_inputs_and_no_labels(
    kind, name, content, folder, tmp_path
) -> None:
    (tmp_path / name).write_text(content)
    distill = {"distill__logits": "unopened", "distill__unlabeled": tmp_path / name}
    if kind == "question_answering":
        toy_squad.TOKENIZER.save(tmp_path)
        (tmp_path / "train-v1.1.json").write_text(json.dumps(toy_squad.questions(1, 3)))
        (tmp_path / "dev-v1.1.json").write_text(json.dumps(toy_squad.questions(1, 3)))
        shape = {"model__hidden_size": 64, "model__num_attention_heads": 1}
        arguments = toy_squad.arguments(
            tmp_path, 1, init="", data__vocab=tmp_path / "vocab.txt", **shape, **distill
        )
        arguments[1] = arguments[1].replace(f",init={tmp_path / 'model'}", "")
        config = toy_tasks.load_arguments(arguments)
    else:
        config = toy_tasks.configuration(kind, folder, **distill)
    task = registry.find_task(config.task)(config)
    plain = dataclasses.replace(config, distill=DistillConfig())
    labeled = registry.find_task(config.task)(plain).examples
    examples, count = task.examples, len(labeled.lengths)
    assert len(examples) == len(labeled) + 2
    assert len(examples.lengths) > count
    assert examples.lengths[count:].min() > 2
    (target,) = examples.targets.values()
    num_values = len(next(iter(labeled.targets.values())).values)
    assert target.weights[:num_values].any() and not target.weights[num_values:].any()
    if kind == "token_classification":
        words = target.values[num_values:] < 0
        ids = examples.ids[num_values:]
        assert [toy_tasks.TOKENIZER.tokens[i] for i in ids[words]] == [
            "ba",
            "me",
            "[UNK]",
            "ki",
            "no",
        ]


def test_pretraining_has_no_text_with_labels() -> None:
    config = Config(data={**registry.data_fields()["pretraining"]},
                    distill=DistillConfig("teacher", unlabeled="texts.txt"))  # fmt: skip
    with pytest.raises(InputError, match=r"'texts\.txt': all text of task=pretraining is without"):
        registry.make_objective(config)
