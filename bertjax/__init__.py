"""BERT pre-training, fine-tuning and evaluation in JAX, for TPU pods and GPUs."""

__version__ = "0.1.0"


class RunError(Exception):
    """A run ended before its end, for a reason that the message gives in one sentence."""
