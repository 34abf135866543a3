"""Text to batches: sources, vocabularies, token shards, tf.data pipeline. No jax, no bertjax."""


class InputError(ValueError):
    """What the user gave cannot be used: a file, a vocabulary, a text or an option.

    The message is one sentence that names the thing, its value and the cure; the command line
    prints it as it stands and ends with exit status 2.
    """
