"""Pre-training of every size of BERT, by four recipes.

    bertjax train --workdir runs/base-1 \
      --config pretrain:model=base,phase=1,recipe=paper,data=corpora/wiki
    bertjax train --workdir runs/base-2 \
      --config pretrain:model=base,phase=2,data=corpora/wiki,init=runs/base-1

    bertjax train --workdir runs/mini-left \
      --config pretrain:model=mini,recipe=modern,objective=left_to_right,data=corpora/wiki
    bertjax train --workdir runs/mini \
      --config pretrain:model=mini,recipe=modern,data=corpora/wiki,init=runs/mini-left

model    tiny, mini, small, medium, base, large, or LAYERS-HIDDEN such as 6-512 (heads of 64)
phase    1: rows of 128 pieces; 2: rows of 512, from phase 1's checkpoint (init=DIR)
recipe   paper: 256 rows a step, 1M steps (Devlin et al. 2019, A.2)
         slides: 131,072 pieces a step, 1M steps (its authors' slides)
         lamb: 65,536 and 32,768 rows a step, 8,601 steps (You et al. 2020)
         modern: for little compute, 32 rows a step of phase 1: 2,500 steps from left to right, and
         from there (init=DIR) 10,000 with masks, by Muon, without dropout, 30% masked
objective  mlm_nsp: masked pieces and next sentences; mlm: masked pieces alone; left_to_right: the
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
            "left_steps": 2_500,
            "optimizer": {
                "name": "muon",
                "learning_rate": 2e-3,
                "warmup": "10%",
                "decay_steps": 0,
            },
            "model": {
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "initialization": "neighbours",
            },
            "masks": {"mask_prob": 0.3, "max_predictions": None},
            # All held-out text of a small corpus takes as long as hundreds of these steps.
            "cadence": {"checkpoint_every": "1%", "eval_every": "5%", "eval_batches": 20},
        },
    },
}
SHAPES = {  # of a row: pieces, masked slots
    1: {"seq_len": 128, "max_predictions": 20},
    2: {"seq_len": 512, "max_predictions": 80},
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
    layers, hidden = _size(model)
    _check("phase", phase, SHAPES)
    _check("recipe", recipe, RECIPES)
    if phase not in RECIPES[recipe]:
        raise ValueError(f"recipe={recipe} has no phase={phase}: go on with another one's.")
    given = RECIPES[recipe][phase]
    left = objective == "left_to_right"
    masks = {"max_predictions": SHAPES[phase]["max_predictions"]} | given.get("masks", {})
    config = {
        "task": "pretrain",
        "seed": 0,
        "steps": given.get("left_steps" if left else "steps", given["steps"]),
        "batch_size": given["batch_size"],
        "seq_len": SHAPES[phase]["seq_len"],
        "packing": True,
        "accumulation": 1,
        "log_every": 100,
        "checkpoint_every": "0.5%",
        "eval_every": "1%",
        "keep_every": "10%",
        **given.get("cadence", {}),
        "init": init,
        "mesh": {"data": -1, "fsdp": 1, "model": 1},
        "model": {
            "vocab_size": 30_522,
            "num_layers": layers,
            "hidden_size": hidden,
            "num_heads": hidden // 64,
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
    return ConfigDict(_smoke(config) if smoke else config)


def _smoke(config: dict) -> dict:
    model = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "dtype": "float32"}
    optimizer = {"learning_rate": 1e-3, "warmup": "10%", "decay_steps": 0}
    most = config["data"].get("max_predictions")
    data = {"max_predictions": most // 4} if most else {}
    return config | {
        "steps": 20,
        "batch_size": 8,
        "seq_len": config["seq_len"] // 4,
        "log_every": 5,
        "checkpoint_every": 10,
        "eval_every": 10,
        "eval_batches": 4,
        "keep_every": 0,
        "model": config["model"] | model,
        "optimizer": config["optimizer"] | optimizer,
        "data": config["data"] | data,
    }


def _check(name: str, value: object, known: Iterable[object]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown: use one of {', '.join(map(str, known))}.")


def _size(model: str) -> tuple[int, int]:
    if model in SIZES:
        return SIZES[model]
    layers, _, hidden = model.partition("-")
    if not (layers.isdigit() and hidden.isdigit() and int(hidden) % 64 == 0 and int(layers) > 0):
        raise ValueError(
            f"model={model!r} is unknown: use one of {', '.join(SIZES)}, or LAYERS-HIDDEN with a "
            "hidden size that 64 divides."
        )
    return int(layers), int(hidden)
