"""Record layers of PyTorch's LSTM with a projection, and ELMo's mix of them.

    PYTHON tests/goldens/make_elmo.py      # with torch

Layers add their input from the second on. The scalar mix is that of Peters et al. 2018, equation 1.
"""

import pathlib

import numpy as np

PATH = pathlib.Path(__file__).with_name("elmo.npz")
LAYERS, SIZE, UNITS, VOCAB, LENGTH = 2, 6, 10, 16, 9
MIX_WEIGHTS, MIX_FACTOR = (0.3, -1.0, 0.8), 1.7


def draw() -> dict[str, np.ndarray]:
    """Return token ids [2, LENGTH], and parameters by their names here, with gates i, f, o, g."""
    random = np.random.default_rng(0)
    shapes = {
        "word": (VOCAB, SIZE),
        "kernel": (LAYERS, SIZE, 4 * UNITS),
        "recurrent": (LAYERS, SIZE, 4 * UNITS),
        "bias": (LAYERS, 4 * UNITS),
        "projection": (LAYERS, UNITS, SIZE),
    }
    params = {name: random.normal(0, 0.4, shape) for name, shape in shapes.items()}
    params["ids"] = random.integers(0, VOCAB, (2, LENGTH))
    return {
        name: array.astype("int32" if name == "ids" else "float32")
        for name, array in params.items()
    }


def main() -> None:
    import torch

    arrays = draw()
    states = [torch.tensor(arrays["word"])[torch.tensor(arrays["ids"]).long()]]
    order = np.r_[0 : 2 * UNITS, 3 * UNITS : 4 * UNITS, 2 * UNITS : 3 * UNITS]  # i, f, g, o
    for layer in range(LAYERS):
        lstm = torch.nn.LSTM(SIZE, UNITS, batch_first=True, proj_size=SIZE)
        values = {
            "weight_ih_l0": arrays["kernel"][layer][:, order].T,
            "weight_hh_l0": arrays["recurrent"][layer][:, order].T,
            "bias_ih_l0": arrays["bias"][layer][order],
            "bias_hh_l0": np.zeros(4 * UNITS, np.float32),
            "weight_hr_l0": arrays["projection"][layer].T,
        }
        lstm.load_state_dict({name: torch.tensor(array.copy()) for name, array in values.items()})
        with torch.no_grad():
            output, _ = lstm(states[-1])
        states.append(output + states[-1] if layer else output)
    weights = torch.softmax(torch.tensor(MIX_WEIGHTS), dim=0)
    mix = MIX_FACTOR * sum(weight * state for weight, state in zip(weights, states, strict=True))
    np.savez_compressed(PATH, states=torch.stack(states).numpy(), mix=mix.numpy())


if __name__ == "__main__":
    main()
