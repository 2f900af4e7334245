"""What no comparison with a reference can ask for, because the reference itself is not that exact.

Two things make it so. The source may round its own activations to 8 bits where the graph does not
(`Exported.requantized`). And the model may answer a change in the last digit of its inputs with a change of its
outputs that is larger than what is asked for: a detector that finds nothing puts out a sigmoid of rounding.
"""

from __future__ import annotations

from aot.config import Budget

ROUNDED = Budget(cosine=0.95, relative_l2=0.35)
"""What is left of a comparison with 8-bit activations; the cosine is the recipe's for INT8."""
FACTOR = 4.0
"""Two orders of summation differ by a few times what one change of the last digit does."""


def allowed(budget: Budget, *, moved: float, requantized: bool) -> Budget:
    """The budget, where it asks for more than can be had, brought to what can.

    moved: ||f(x') - f(x)|| / ||f(x)|| of the least exact output, x' being x moved in its last digit. A relative L2 of
    r leaves a cosine of 1 - r^2 / 2, for errors that are as likely along the output as across it.
    """
    relative = max(FACTOR * moved, (ROUNDED.relative_l2 or 0.0) if requantized else 0.0)
    cosine = min(1 - (FACTOR * moved) ** 2 / 2, (ROUNDED.cosine or 1.0) if requantized else 1.0)
    return budget.model_copy(
        update={
            "cosine": None if budget.cosine is None else min(budget.cosine, cosine),
            "relative_l2": None if budget.relative_l2 is None else max(budget.relative_l2, relative),
        }
    )
