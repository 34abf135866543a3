"""Speed of `transformers` under `torch.compile`, in an interpreter that may lack JAX."""

import functools
from collections.abc import Callable
from typing import Any

from experiments.bench import harness, train_step
from experiments.bench.accelerator.speed import case_fields
from experiments.bench.peers import torch_pretraining
from experiments.bench.train_step import MODEL_SIZES, Case

PEER = "transformers"


def measure_train_step(
    record: Callable[..., None], toy: bool, case: Case, mask: str = "padding"
) -> None:
    """Record milliseconds and memory of a step of `BertForPreTraining`.

    Args:
      mask: see `torch_pretraining.make_step`; "packing" has two examples a sequence.
    """
    import torch

    batch = train_step.make_batch(case, padded=mask == "padding")
    nonpad = float(batch["example_ids"].mean())
    if mask == "packing":
        is_second = batch["position_ids"] >= case[1] // 2
        batch["example_ids"] += is_second
        batch["position_ids"] = batch["position_ids"] % (case[1] // 2)
    device = _device()
    work = torch_pretraining.make_step(
        *MODEL_SIZES[case[0]], batch, True, torch.get_num_threads(), device, mask
    )
    seconds = harness.median_seconds(work, calls=1 if toy else 20)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    program = f"{PEER}, mask: {mask}"
    record("step", **case_fields(case, program, seconds, nonpad), bytes=memory)


def measure_embeddings(record: Callable[..., None], toy: bool, case: Case) -> None:
    """Record the time in which `BertModel` embeds full sequences, without a mask.

    It computes in bfloat16 on a GPU; a CPU without such instructions would take minutes.
    """
    import torch

    device = _device()
    batch = train_step.make_batch(case)
    names = ("input_ids", "token_type_ids")
    inputs = {name: torch.from_numpy(batch[name]).long().to(device) for name in names}
    sizes = MODEL_SIZES[case[0]]
    model = torch_pretraining.make_model(*sizes, "BertModel", device, add_pooling_layer=False)
    forward = torch.compile(model.eval().to(torch.bfloat16 if device == "cuda" else torch.float32))

    def work() -> object:
        with torch.inference_mode():
            embeddings: Any = forward(**inputs).last_hidden_state.float().mean(1)
        return functools.partial(lambda x: x.sum().item(), embeddings)

    seconds = harness.median_seconds(work, calls=1 if toy else 50)
    record("embeddings", **case_fields(case, PEER, seconds))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
