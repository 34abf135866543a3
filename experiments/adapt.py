"""Adaptation to a domain: continued pre-training of any model on a domain's text.

    bertjax train --workdir runs/adapted \
      --config adapt:init=BASE,data=corpora/domain,general=corpora/general

    bertjax train --workdir runs/detour \
      --config adapt:objective=clm,init=BASE,data=corpora/domain,general=corpora/general
    bertjax train --workdir runs/adapted \
      --config adapt:init=runs/detour,data=corpora/domain,general=corpora/general

init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1, also one of
         `bertjax vocab --extend`
data     directory of the domain's corpus, which `bertjax prepare --vocab INIT` wrote
general  directory of a corpus of general text, prepared the same: it is replayed, and evaluated on
         beside the domain's, so that forgetting shows; none by default
replay   fraction of the sequences that are general text (0.1)
objective  mlm: masked LM; mlm_nsp: with next sentence prediction, whose head is new if init has
         none; clm: the first of two stages; the second is initialized from it (init=DIR)
smoke    shrink the run to a minute on a CPU

The learning rate rises again over 6% of the steps and falls to 0; the number of steps is that of
Gururangan et al. 2020. The masking rate falls, as in mmBERT (Marone et al. 2025), from 30% to 15%.
"""

from typing import Any

from ml_collections import ConfigDict

DIRECTIONS = {"mlm": "bidirectional", "mlm_nsp": "bidirectional", "clm": "left_to_right"}


def get_config(
    init: str = "",
    data: str = "",
    general: str = "",
    replay: float = 0.1,
    objective: str = "mlm",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    if objective not in DIRECTIONS:
        raise ValueError(f"objective={objective}: unknown. Use one of {', '.join(DIRECTIONS)}.")
    if not 0 < replay < 1:
        raise ValueError(f"replay={replay}: not between 0 and 1. Use 0.1, or leave general out.")
    if replay != 0.1 and not general:
        raise ValueError(f"replay={replay}: there is no text to replay. Give general=CORPUS.")
    data_fields: dict[str, Any] = {"dir": data, "objective": objective}
    if general:
        data_fields["dir"] = f"{data}+{general}"
        data_fields["mixture_weights"] = f"{1 - replay:g}+{replay:g}"
    if objective != "clm":
        data_fields["mlm_probability"] = "0.3..0.15"
    model: dict[str, Any] = {"direction": DIRECTIONS[objective], "dtype": "bfloat16"}
    config = {
        "task": "pretraining",
        "seed": 0,
        "steps": 12_500,
        "batch_size": 256,
        "max_seq_length": 128,
        "log_every": 100,
        "checkpoint_every": "2%",
        "eval_every": "5%",
        "eval_batches": 20,
        "init": init,
        "model": model,
        "optimizer": {"learning_rate": 1e-4, "warmup": "6%"},
        "data": data_fields,
    }
    if smoke:
        shape = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
        config |= {"steps": 20, "batch_size": 8, "max_seq_length": 32, "log_every": 5}
        config |= {"checkpoint_every": 10, "eval_every": 10, "eval_batches": 4}
        config["model"] = model | (shape if not init else {}) | {"dtype": "float32"}
    return ConfigDict(config)
