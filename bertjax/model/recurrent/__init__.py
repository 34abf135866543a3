"""Recurrent networks: an LSTM language model, and a BiLSTM between an encoder and its heads."""
