"""BERT pre-training, fine-tuning and evaluation in JAX, for TPU pods and GPUs."""

__version__ = "0.1.0"
