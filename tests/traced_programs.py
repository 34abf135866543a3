"""Matrix products of traced programs."""

import jax.extend
import numpy as np


def matrix_flops(jaxpr: jax.extend.core.Jaxpr) -> int:
    """Return twice the multiplications of all matrix products in a program, loops included."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = np.prod([left[axis] for axis in contracted], dtype=int)
            total += 2 * int(inner * np.prod(equation.outvars[0].aval.shape))
        total += equation.params.get("length", 1) * sum(
            matrix_flops(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params)
        )
    return total
