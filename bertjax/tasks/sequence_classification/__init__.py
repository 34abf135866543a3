"""Classes, labels or numbers of sentences and pairs: GLUE, and data of one's own."""
