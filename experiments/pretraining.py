"""Pre-training of every size of BERT, by four recipes.

    bertjax train --workdir runs/base-1 \
      --config pretraining:model=base,phase=1,recipe=paper,data=corpora/wiki
    bertjax train --workdir runs/base-2 \
      --config pretraining:model=base,phase=2,data=corpora/wiki,init=runs/base-1

    bertjax train --workdir runs/mini-left \
      --config pretraining:model=mini,recipe=modern,objective=clm,data=corpora/wiki
    bertjax train --workdir runs/mini \
      --config pretraining:model=mini,recipe=modern,data=corpora/wiki,init=runs/mini-left

model    tiny, mini, small, medium, base, large, or LAYERS-HIDDEN such as 6-512 (heads of 64)
phase    1: rows of 128 pieces; 2: rows of 512, from phase 1's checkpoint (init=DIR)
recipe   paper: 256 rows a step, 1M steps (Devlin et al. 2019, A.2)
         slides: 131,072 pieces a step, 1M steps (its authors' slides)
         lamb: 65,536 and 32,768 rows a step, 8,601 steps (You et al. 2020)
         modern: for little compute, 32 rows a step of phase 1: 2,500 steps from left to right, and
         from there (init=DIR) 10,000 with masks, by Muon, without dropout, 30% masked
objective  mlm_nsp: masked pieces and next sentences; mlm: masked pieces alone; clm: the
         next piece, by a model that sees none behind it
data     a directory that `bertjax prepare` wrote
smoke    shrinks all of it to a minute on a CPU
"""

from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

SIZES = {  # layers, hidden size
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

# Both phases of Adam are one run of a million steps: the rate that phase 1 ends at, a tenth of the
# way from 0, is where phase 2 begins. Warm-up and decay are told in shares of phase 1, so that they
# shrink with a run that is shortened. LAMB warms up in each phase.
_STEPS = {1: 900_000, 2: 100_000}
_ADAM = {
    1: {
        "learning_rate": 1e-4,
        "warmup": f"{100 * 10_000 / _STEPS[1]:.9f}%",
        "decay_steps": f"{100 * 1_000_000 / _STEPS[1]:.9f}%",
    },
    2: {"learning_rate": 1e-4 * 100_000 / 990_000, "warmup": 0},
}
RECIPES: dict[str, dict[int, dict[str, Any]]] = {
    "paper": {
        phase: {"batch_size": 256, "steps": _STEPS[phase], "optimizer": _ADAM[phase]}
        for phase in (1, 2)
    },
    "slides": {
        1: {"batch_size": 1024, "steps": _STEPS[1], "optimizer": _ADAM[1]},
        2: {"batch_size": 256, "steps": _STEPS[2], "optimizer": _ADAM[2]},
    },
    "lamb": {
        1: {
            "batch_size": 65_536,
            "steps": 7_038,
            "optimizer": {"name": "lamb", "learning_rate": 6e-3, "warmup": "28.43%"},
        },
        2: {
            "batch_size": 32_768,
            "steps": 1_563,
            "optimizer": {"name": "lamb", "learning_rate": 4e-3, "warmup": "12.8%"},
        },
    },
    "modern": {
        1: {
            "batch_size": 32,
            "steps": 10_000,
            "clm_steps": 2_500,
            "optimizer": {
                "name": "muon",
                "learning_rate": 2e-3,
                "warmup": "10%",
                "decay_steps": 0,
            },
            "model": {
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
                "initialization": "neighbours",
            },
            "masks": {"mlm_probability": 0.3, "max_predictions_per_seq": None},
            # All held-out text of a small corpus takes as long as hundreds of these steps.
            "cadence": {"checkpoint_every": "1%", "eval_every": "5%", "eval_batches": 20},
        },
    },
}
PHASES = {  # of a row: pieces, masked slots
    1: {"max_seq_length": 128, "max_predictions_per_seq": 20},
    2: {"max_seq_length": 512, "max_predictions_per_seq": 80},
}


def get_config(
    model: str = "base",
    phase: int = 1,
    recipe: str = "paper",
    objective: str = "mlm_nsp",
    data: str = "",
    init: str = "",
    smoke: bool = False,
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
    layers, hidden = _parse_model_size(model)
    _check_choice("phase", phase, PHASES)
    _check_choice("recipe", recipe, RECIPES)
    if phase not in RECIPES[recipe]:
        raise ValueError(f"recipe={recipe} has no phase={phase}: go on with another one's.")
    given = RECIPES[recipe][phase]
    left = objective == "clm"
    masks = {"max_predictions_per_seq": PHASES[phase]["max_predictions_per_seq"]} | given.get(
        "masks", {}
    )
    config = {
        "task": "pretraining",
        "seed": 0,
        "steps": given.get("clm_steps" if left else "steps", given["steps"]),
        "batch_size": given["batch_size"],
        "max_seq_length": PHASES[phase]["max_seq_length"],
        "packing": True,
        "gradient_accumulation_steps": 1,
        "log_every": 100,
        "checkpoint_every": "0.5%",
        "eval_every": "1%",
        "keep_period": "10%",
        **given.get("cadence", {}),
        "init": init,
        "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        "model": {
            "vocab_size": 30_522,
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "causal": left,
            "dtype": "bfloat16",
            **given.get("model", {}),
        },
        "optimizer": given["optimizer"],
        "data": {
            "dir": data,
            "objective": objective,
            **({} if left else masks),
        },
    }
    return ConfigDict(_shrink_for_smoke(config) if smoke else config)


def _shrink_for_smoke(config: dict) -> dict:
    model = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "dtype": "float32",
    }
    optimizer = {"learning_rate": 1e-3, "warmup": "10%", "decay_steps": 0}
    most = config["data"].get("max_predictions_per_seq")
    data = {"max_predictions_per_seq": most // 4} if most else {}
    return config | {
        "steps": 20,
        "batch_size": 8,
        "max_seq_length": config["max_seq_length"] // 4,
        "log_every": 5,
        "checkpoint_every": 10,
        "eval_every": 10,
        "eval_batches": 4,
        "keep_period": 0,
        "model": config["model"] | model,
        "optimizer": config["optimizer"] | optimizer,
        "data": config["data"] | data,
    }


def _check_choice(name: str, value: object, known: Iterable[object]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown: use one of {', '.join(map(str, known))}.")


def _parse_model_size(model: str) -> tuple[int, int]:
    if model in SIZES:
        return SIZES[model]
    layers, _, hidden = model.partition("-")
    if not (layers.isdigit() and hidden.isdigit() and int(hidden) % 64 == 0 and int(layers) > 0):
        raise ValueError(
            f"model={model!r} is unknown: use one of {', '.join(SIZES)}, or LAYERS-HIDDEN with a "
            "hidden size that 64 divides."
        )
    return int(layers), int(hidden)
