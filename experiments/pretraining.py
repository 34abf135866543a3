"""Pre-training of BERT of any size, by four recipes.

    bertjax train --workdir runs/base-1 \
      --config pretraining:model=base,phase=1,recipe=paper,data=corpora/wiki
    bertjax train --workdir runs/base-2 \
      --config pretraining:model=base,phase=2,data=corpora/wiki,init=runs/base-1

    bertjax train --workdir runs/base-3 \
      --config pretraining:model=base,phase=3,data=corpora/wiki,init=runs/base-2

    bertjax train --workdir runs/mini-clm \
      --config pretraining:model=mini,recipe=modern,objective=clm,data=corpora/wiki
    bertjax train --workdir runs/mini \
      --config pretraining:model=mini,recipe=modern,data=corpora/wiki,init=runs/mini-clm

model    tiny, mini, small, medium, base, large, LAYERS-HIDDEN such as 6-512 (heads of 64), or a
         bert_config.json; that of init by default, or base
phase    1: sequences of 128 tokens; 2: sequences of 512, initialized from phase 1 (init=DIR);
         3: sequences of 1,024, of paper and slides: 131,072 tokens a step for 10,000 steps at a
         peak of 3e-5, from phase 2 or any BERT (init=DIR), whose positions are copied
recipe   paper: 256 sequences a step, 1M steps (Devlin et al. 2019, A.2)
         slides: 131,072 tokens a step, 1M steps (slides of its authors)
         lamb: 65,536 and 32,768 sequences a step, 8,601 steps (You et al. 2020)
         modern: for small budgets, phase 1 with 32 sequences a step: 2,500 steps of CLM, then
         10,000 of MLM (init=DIR), Muon, no dropout, 30% masked
objective  mlm_nsp: masked LM and next sentence prediction; mlm: masked LM; clm: causal LM;
         clm_reverse: from right to left
data     directory of a corpus that `bertjax prepare` wrote
smoke    shrink the run to a minute on a CPU
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

# Both phases of Adam form one run of a million steps: phase 2 starts at the learning rate at which
# phase 1 ends, a tenth of the peak. Warm-up and decay are fractions of phase 1, so a shorter run
# shortens them too. LAMB warms up in each phase. Phase 3 begins where the rate is 0. It warms up to
# Longformer's rate in as many steps (Beltagy et al. 2020, section 5).
_STEPS = {1: 900_000, 2: 100_000}
_ADAM = {
    1: {
        "learning_rate": 1e-4,
        "warmup": f"{100 * 10_000 / _STEPS[1]:.9f}%",
        "decay_steps": f"{100 * 1_000_000 / _STEPS[1]:.9f}%",
    },
    2: {"learning_rate": 1e-4 * 100_000 / 990_000, "warmup": 0},
}
_PHASE_3 = {
    "batch_size": 128,
    "steps": 10_000,
    "optimizer": {"learning_rate": 3e-5, "warmup": "5%"},
    "model": {"max_position_embeddings": 1024},
}
_LAMB = {
    1: {"name": "lamb", "learning_rate": 6e-3, "warmup": "28.43%"},
    2: {"name": "lamb", "learning_rate": 4e-3, "warmup": "12.8%"},
}
_MUON = {"name": "muon", "learning_rate": 2e-3, "warmup": "10%", "decay_steps": 0}
RECIPES: dict[str, dict[int, dict[str, Any]]] = {
    "paper": {
        phase: {"batch_size": 256, "steps": _STEPS[phase], "optimizer": _ADAM[phase]}
        for phase in (1, 2)
    }
    | {3: _PHASE_3},
    "slides": {
        1: {"batch_size": 1024, "steps": _STEPS[1], "optimizer": _ADAM[1]},
        2: {"batch_size": 256, "steps": _STEPS[2], "optimizer": _ADAM[2]},
        3: _PHASE_3,
    },
    "lamb": {
        1: {"batch_size": 65_536, "steps": 7_038, "optimizer": _LAMB[1]},
        2: {"batch_size": 32_768, "steps": 1_563, "optimizer": _LAMB[2]},
    },
    "modern": {
        1: {
            "batch_size": 32,
            "steps": 10_000,
            "clm_steps": 2_500,
            "optimizer": _MUON,
            "model": {
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
                "attention_init": "local",
            },
            "data": {"mlm_probability": 0.3, "max_predictions_per_seq": None},
            # The whole eval split of a small corpus takes as long as hundreds of these steps.
            "cadence": {"checkpoint_every": "1%", "eval_every": "5%", "eval_batches": 20},
        }
    },
}
DIRECTIONS = {"clm": "left_to_right", "clm_reverse": "right_to_left"}  # by objective
PHASES = {  # limits of a sequence: tokens, predictions
    1: {"max_seq_length": 128, "max_predictions_per_seq": 20},
    2: {"max_seq_length": 512, "max_predictions_per_seq": 80},
    3: {"max_seq_length": 1024, "max_predictions_per_seq": 160},
}


def get_config(
    model: str = "",
    phase: int = 1,
    recipe: str = "paper",
    objective: str = "mlm_nsp",
    data: str = "",
    init: str = "",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    _check_choice("phase", phase, PHASES)
    _check_choice("recipe", recipe, RECIPES)
    if phase not in RECIPES[recipe]:
        raise ValueError(f"recipe={recipe}: has no phase={phase}. Use another recipe for it.")
    settings = RECIPES[recipe][phase]
    direction = DIRECTIONS.get(objective, "bidirectional")
    causal = objective in DIRECTIONS
    masking = {"max_predictions_per_seq": PHASES[phase]["max_predictions_per_seq"]}
    masking |= settings.get("data", {})
    config = {
        "task": "pretraining",
        "seed": 0,
        "steps": settings.get("clm_steps" if causal else "steps", settings["steps"]),
        "batch_size": settings["batch_size"],
        "max_seq_length": PHASES[phase]["max_seq_length"],
        "packing": True,
        "gradient_accumulation_steps": 1,
        "log_every": 100,
        "checkpoint_every": "0.5%",
        "eval_every": "1%",
        "keep_period": "10%",
        **settings.get("cadence", {}),
        "init": init,
        "init_positions": "copy" if init and phase == 3 else "",
        "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        "model": {
            # Without these fields, `init` has them, or the defaults are those of base.
            **(_model_fields(model) if model else {}),
            "direction": direction,
            "dtype": "bfloat16",
            **settings.get("model", {}),
        },
        "optimizer": settings["optimizer"],
        "data": {"dir": data, "objective": objective, **({} if causal else masking)},
    }
    return ConfigDict(_shrink_for_smoke(config, model, init) if smoke else config)


def _shrink_for_smoke(config: dict, model: str, init: str) -> dict:
    shape = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    if "intermediate_size" in config["model"]:
        shape["intermediate_size"] = 256
    optimizer = {"learning_rate": 1e-3, "warmup": "10%", "decay_steps": 0}
    predictions = config["data"].get("max_predictions_per_seq")
    data = {"max_predictions_per_seq": predictions // 4} if predictions else {}
    return config | {
        "steps": 20,
        "batch_size": 8,
        "max_seq_length": config["max_seq_length"] // 4,
        "log_every": 5,
        "checkpoint_every": 10,
        "eval_every": 10,
        "eval_batches": 4,
        "keep_period": 0,
        "model": config["model"] | (shape if model or not init else {}) | {"dtype": "float32"},
        "optimizer": config["optimizer"] | optimizer,
        "data": config["data"] | data,
    }


def _check_choice(name: str, value: object, known: Iterable[object]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r}: unknown. Use one of {', '.join(map(str, known))}.")


def _model_fields(model: str) -> dict[str, Any]:
    if model.endswith(".json"):
        from bertjax.formats.tf1 import read_model_fields

        return read_model_fields(model)
    if model in SIZES:
        layers, hidden = SIZES[model]
    else:
        layers, hidden = _parse_model_size(model)
    return {
        "vocab_size": 30_522,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
    }


def _parse_model_size(model: str) -> tuple[int, int]:
    layers, _, hidden = model.partition("-")
    if not (layers.isdigit() and hidden.isdigit() and int(hidden) % 64 == 0 and int(layers) > 0):
        raise ValueError(
            f"model={model!r}: unknown. Use one of {', '.join(SIZES)}, LAYERS-HIDDEN with a hidden "
            "size divisible by 64, or a bert_config.json."
        )
    return int(layers), int(hidden)
