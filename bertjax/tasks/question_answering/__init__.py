"""Questions on passages: SQuAD and what has its layout."""
