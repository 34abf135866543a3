"""Fine-tuning data: readers of data sets, tokenized examples, packed batches."""
