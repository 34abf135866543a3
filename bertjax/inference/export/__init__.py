"""Export of models to other runtimes: StableHLO, TensorFlow and ONNX."""
